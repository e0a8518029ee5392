"""Trace a candidate in a process that holds nothing of the judge.

``serve`` runs in a process of its own, without threads, that has imported JAX. For each job it
forks: the fork gives up what ``jail`` takes away, imports the candidate, traces it for shapes, and
answers with programs as data. It never sees an input, a reference or a seed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from pytest_pallas.candidates import jail

#: Modules that candidates need: imported once, before the fork.
_PRELOADS = (
    *("jax", "jax.numpy", "jax.experimental.pallas", "jax.experimental.pallas.tpu"),
    *("jax.experimental.pallas.mosaic_gpu", "jax.experimental.pallas.triton"),
    *("pallas_sim.simulation", "pytest_pallas.candidates.codec"),
)

_SIZES = struct.Struct("<IQ")


def serve(descriptor: int) -> None:
    """Answer the jobs that arrive at a socket until it is closed."""
    channel = socket.socket(fileno=descriptor)
    for module in _PRELOADS:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    from pytest_pallas.compat import programs

    programs.classes()
    programs.primitive_of("add")
    _trace_once()
    gc.freeze()  # forks share the memory of what no collection looks at
    root = tempfile.mkdtemp(prefix="pallas_verify_")
    visible = visible_folders()
    channel.sendall(b"+")
    try:
        while True:
            head, descriptors, _, _ = socket.recv_fds(channel, 8, 2)
            if len(head) < 8:
                return
            job = _receive(channel, struct.unpack("<Q", head)[0])
            _run(channel, job, descriptors, root, visible)
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(root)


def _trace_once() -> None:
    """Trace a kernel, so that forks find what JAX makes at its first trace.

    That is not for a chip, because ``tracing_for`` starts JAX, and with it threads.
    """
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    from pytest_pallas.candidates.codec import ProgramData, encode

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...]) + pl.program_id(0)

    def kernel(x: Any, y: Any) -> Any:
        block = pl.BlockSpec((8, 8), lambda i: (i, 0))
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        grid = (pl.cdiv(x.shape[0], 8),)
        call = pl.pallas_call(
            body, grid=grid, in_specs=[block, block], out_specs=block, out_shape=shape
        )
        return call(x, y)

    facts = {"args": [((8, 8), "float32")] * 2, "options": {}}
    jaxpr, shape = _traced(kernel, facts)
    encode(ProgramData(jaxpr, jax.tree.structure(shape)))


def _receive(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            os._exit(1)
        data += part
    return bytes(data)


def visible_folders() -> list[str]:
    """Return the folders that Python needs, none inside of another one."""
    paths = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache"]
    paths += [sys.prefix, sys.base_prefix, *sys.path]
    paths += ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"]
    paths += ["/sys/devices/system/cpu"]
    known = {os.path.abspath(path) for path in paths if path and os.path.exists(path)}
    known |= {os.path.realpath(path) for path in known}
    kept: list[str] = []
    for path in sorted(known - {"/"}):
        if not any(path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept


def _run(
    channel: socket.socket,
    job: bytes,
    descriptors: Sequence[int],
    root: str,
    visible: Sequence[str],
) -> None:
    """Run one job in a fork, until the judge says that it is over."""
    reader, writer = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        try:
            os.close(reader)
            channel.close()
            _keep(json.loads(job), descriptors, root, visible, writer)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    for descriptor in descriptors:
        os.close(descriptor)
    channel.sendall(struct.pack("<I", keeper))
    over = channel.recv(1)
    with contextlib.suppress(OSError):
        os.killpg(keeper, signal.SIGTERM)
    _, status = os.waitpid(keeper, 0)
    os.close(reader)
    if not over:
        os._exit(0)
    channel.sendall(struct.pack("<i", status))


def _keep(
    job: dict[str, Any],
    descriptors: Sequence[int],
    root: str,
    visible: Sequence[str],
    gate: int,
) -> None:
    """Start the process of a candidate, and end it and all that it has started."""
    os.setsid()
    jail.end_with_parent()
    jail.adopt_orphans()
    limits = jail.SandboxLimits(**job["limits"])
    names = jail.separate(root, visible, limits) if job["separate"] else []
    folder = jail.FOLDER if names else tempfile.mkdtemp(prefix="pallas_candidate_")
    if not names:
        os.chmod(folder, 0o777)
    candidate = os.fork()
    if candidate == 0:
        try:
            os.setsid()
            _become(job, descriptors, folder, names, limits)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    for descriptor in (*descriptors, gate):
        os.close(descriptor)

    def end(*_: Any) -> None:
        with contextlib.suppress(OSError):
            os.killpg(candidate, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(candidate, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    _, status = os.waitpid(candidate, 0)
    _end_orphans()
    if not names:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _end_orphans() -> None:
    """End every process that the candidate has left; with a process namespace there is none."""
    while True:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                children = file.read().split()
        except OSError:
            children = []
        for child in children:
            with contextlib.suppress(OSError):
                os.kill(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _become(
    job: dict[str, Any],
    descriptors: Sequence[int],
    folder: str,
    names: list[str],
    limits: jail.SandboxLimits,
) -> None:
    """Become the candidate: write its files, give up what it may not have, and answer."""
    answers, output = descriptors
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    kept = os.dup2(answers, 3) if answers != 3 else 3
    os.closerange(4, 65536)
    os.environ.clear()
    os.environ.update(
        {"HOME": folder, "TMPDIR": folder, "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin"}
    )
    tempfile.tempdir = folder
    for name, text in job["files"].items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(path, 0o444)
    os.chdir(folder)
    names += jail.restrict(bool(names), folder, limits)

    def say(facts: Mapping[str, Any], body: bytes = b"") -> None:
        if facts["kind"] in ("end", "error"):  # what is printed later is not waited for
            with contextlib.suppress(Exception):
                sys.stdout.flush()
        header = json.dumps(facts).encode()
        data = memoryview(_SIZES.pack(len(header), len(body)) + header + body)
        while data:
            data = data[os.write(kept, data) :]

    say({"kind": "sandbox", "in_force": names})
    sys.argv[:] = [job["module"]]
    beside = os.path.dirname(os.path.join(folder, job["module"]))
    sys.path[:0] = dict.fromkeys((beside, folder))
    _trace_all(job, folder, say)
    os._exit(0)


def _trace_all(job: Mapping[str, Any], folder: str, say: Callable[..., None]) -> None:
    """Import the candidate, and answer with its programs."""
    import jax

    from pallas_sim.chips import TARGETS
    from pallas_sim.tracing import tracing_for
    from pytest_pallas.candidates.codec import ProgramData, encode

    stage, case = "imports", -1

    def failed(error: BaseException) -> None:
        say({"kind": "error", "stage": stage, "case": case, **_described(error, folder)})

    try:
        function: Any = _imported(os.path.join(folder, job["module"]), job["package"])
        for part in job["function"].split("."):
            function = getattr(function, part)
        if not callable(function):
            raise TypeError(f"{job['function']} is no function")
        say({"kind": "imported"})
        stage = "traces"
        with tracing_for(TARGETS[job["target"]]):
            for number, case in enumerate(job["order"]):
                unseen = number >= len(job["cases"])
                try:
                    with _without_judge() if unseen else contextlib.nullcontext():
                        jaxpr, shape = _traced(function, job["cases"][case])
                    body = encode(ProgramData(jaxpr, jax.tree.structure(shape)), folder)
                except Exception as error:
                    facts = _described(error, folder)
                    say({"kind": "refused", "stage": stage, "case": case, **facts})
                    continue
                say({"kind": "program", "case": case}, body)
    except BaseException as error:  # SystemExit, too
        with contextlib.suppress(BaseException):
            failed(error)
        return
    say({"kind": "end"})


def _imported(path: str, package: str) -> Any:
    """Import a file, whatever its name: it may be that of a module that is imported already.

    Args:
      path: of the file.
      package: what its relative imports start from; "" if it is in none.
    """
    if package:
        importlib.import_module(package)
    name, before = os.path.basename(path).removesuffix(".py"), f"{package}." if package else ""
    name = f"{before}{name if f'{before}{name}' not in sys.modules else f'candidate_{name}'}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _without_judge() -> Generator[None]:
    """Hide the modules of the judge from who looks for them in this context.

    A candidate that computes something else when it finds none is seen by its two programs.
    """
    names = ("pytest_pallas", "pallas_sim", "pytest")
    hidden = {name: sys.modules[name] for name in sys.modules if name.split(".")[0] in names}
    for name in hidden:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(hidden)


def _traced(function: Any, facts: Mapping[str, Any]) -> Any:
    """Return the program of one call, or of its derivative, and the shapes of its results."""
    import jax
    import jax.numpy as jnp

    options = facts["options"]
    args: list[Any] = [
        jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype)) for shape, dtype in facts["args"]
    ]
    wrt, count = tuple(facts.get("gradient", ())), len(args)

    def call(*arrays: Any) -> Any:
        if not wrt:
            return function(*arrays, **options)
        inputs, cotangents = list(arrays[:count]), arrays[count:]

        def of_some(*some: Any) -> Any:
            for position, value in zip(wrt, some, strict=True):
                inputs[position] = value
            return function(*inputs, **options)

        outputs, pull = jax.vjp(of_some, *(inputs[position] for position in wrt))
        return pull(jax.tree.unflatten(jax.tree.structure(outputs), cotangents))

    if wrt:
        of_call = jax.eval_shape(lambda *arrays: function(*arrays, **options), *args)
        args = [*args, *jax.tree.leaves(of_call)]
    with jax.enable_x64(any(arg.dtype == jnp.float64 for arg in args)):
        return jax.make_jaxpr(call, return_shape=True)(*args)


def _described(error: BaseException, folder: str) -> dict[str, Any]:
    """Return what to say of an error: its type, its text, the candidate's line."""
    kind = type(error).__name__
    try:
        text = str(error)
    except BaseException:
        text = "its message cannot be written"
    line = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(f"{folder}/"):
            line = f"{frame.filename.removeprefix(f'{folder}/')}:{frame.lineno}"
    if isinstance(error, SyntaxError) and error.lineno:
        line = f"{os.path.basename(error.filename or '')}:{error.lineno}"
    return {
        "type": kind,
        "message": text[:2000].replace(f"{folder}/", ""),
        "name": str(getattr(error, "name", "") or "")[:200],
        "line": line,
    }
