"""Programs cross as data: the same bits, the same lines, and nothing that calls Python."""

from __future__ import annotations

import contextlib
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

import pytest_pallas
from pallas_sim.chips import TARGETS
from pallas_sim.machine import Machine
from pallas_sim.simulation import SimulatedCall, evaluate
from pallas_sim.tracing import tracing_for
from pytest_pallas import ProgramError
from pytest_pallas.candidates import codec
from pytest_pallas.candidates.codec import ProgramData, encode
from pytest_pallas.candidates.program_reader import decode
from pytest_pallas.compat import programs
from pytest_pallas.draw.arguments import as_arguments
from pytest_pallas.draw.arrays import draw_once
from pytest_pallas.grid.kernel_calls import kernel_calls

F32 = np.float32


def program_of(function: Callable[..., Any], *args: Any, target: str = "v6e") -> ProgramData:
    call = SimulatedCall.of(function, args, {})
    with tracing_for(TARGETS[target]):
        call.trace(target)
    jaxpr, shape = call.traced
    return ProgramData(jaxpr, jax.tree.structure(shape))


def outcome(program: ProgramData, args: Any, target: str, monitored: bool) -> tuple[Any, ...]:
    """What a program gives on a chip: bits of its results or its error, findings."""
    chip = TARGETS[target]
    machine = Machine(target=chip.name, seed=3, cores=chip.cores, monitored=monitored)
    results: list[Any] = []
    error = ""
    with tracing_for(chip):
        try:
            for value in evaluate(program.jaxpr, machine, args):
                array = np.asarray(value)
                bits = b"" if array.dtype == object else array.tobytes()
                results.append((array.dtype, array.shape, bits))
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return results, error, [str(finding) for finding in machine.findings]


def crossed(
    function: Callable[..., Any], args: Any, target: str = "v6e", *, monitored: bool = True
) -> ProgramData:
    """Cross, and compare what the program gives; if ``monitored``, what is out of order, too."""
    program = program_of(function, *args, target=target)
    with tracing_for(TARGETS[target]):
        other = decode(encode(program))
    arrays = [leaf for leaf in jax.tree.leaves(args) if hasattr(leaf, "dtype")]
    assert outcome(other, arrays, target, monitored) == outcome(program, arrays, target, monitored)
    return other


def add(x: Any, y: Any) -> Any:
    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def loops(x: Any) -> Any:
    """A while loop, a loop of a known length, a branch, scratch and a copy."""

    def body(x_ref: Any, o_ref: Any, buffer: Any, arrived: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, buffer, arrived)
        copy.start()
        copy.wait()

        def step(i: Any, total: Any) -> Any:
            return total + buffer[pl.ds(i, 1), :]

        total = jax.lax.fori_loop(0, 8, step, jnp.zeros((1, 128), F32))
        total = jax.lax.while_loop(lambda t: t[0, 0] > 1, lambda t: t / 2, total)

        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            o_ref[...] = jnp.broadcast_to(jnp.where(total > 0, total, -total), (8, 128))

    return pl.pallas_call(
        body,
        grid=(2,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
        scratch_shapes=[pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.DMA],
    )(x)


@jax.custom_vjp
def with_gradient(x: Any, y: Any) -> Any:
    return add(x, y)


with_gradient.defvjp(lambda x, y: (add(x, y), None), lambda _, g: (g, g))


def outside(x: Any, y: Any) -> Any:
    """What surrounds kernels: scans, keys, constants, trees of results."""
    table = jnp.asarray(np.arange(8 * 128, dtype=F32).reshape(8, 128))
    noise = jax.random.normal(jax.random.key(3), (8, 128))
    _, sums = jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(128), x)
    return {"sum": add(with_gradient(x, y), table), "rest": (sums, jax.nn.gelu(noise), None)}


def on_a_gpu(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def ones(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(F32)


@pytest.mark.parametrize(
    ("function", "args", "target"),
    [
        (add, (ones(8, 128), ones(8, 128)), "v6e"),
        (loops, (ones(8, 128),), "v6e"),
        (outside, (ones(8, 128), ones(8, 128)), "v6e"),
        (on_a_gpu, (ones(128),), "h100"),
    ],
)
def test_a_program_gives_the_same_bits(function: Any, args: Any, target: str) -> None:
    other = crossed(function, args, target)
    with tracing_for(TARGETS[target]):
        assert decode(encode(other)).digest == other.digest


#: Kernels whose programs hold code of Python, by what is refused.
REFUSED = {
    "blackwell_matmul": "inline_mgpu",
    "blackwell_matmul_pairs": "inline_mgpu",
    "blackwell_matmul_dynamic": "inline_mgpu",
    "reverse_bits": "inline_mgpu",
}

#: A few of each kind of kernel, for every run of the tests.
SAMPLE = (
    *("basics", "dma", "mosaic_gpu.row_softmax", "portable", "mpmd", "sparsecore", "collectives"),
)


def cases_of(module: str) -> Any:
    """Specs of a module with the chips that they are for."""
    for spec in pytest_pallas.suite(module).specs():
        assert isinstance(spec, pytest_pallas.KernelSpec), spec
        for platform, chip in (("tpu", "v6e"), ("gpu", "h100")):
            labels = [name for name in spec.claimed if name.startswith(f"{platform}-sim")]
            if labels:
                yield spec, platform, labels[0].partition(":")[2] or chip


def cross_spec(spec: Any, platform: str, target: str, *, monitored: bool = True) -> str:
    kernel, options, inputs = spec.kernel_for(platform), {}, spec.inputs
    if spec.mesh_axes:
        axes = spec.mesh_axes[0]
        sizes = {
            name: size if isinstance(size, int) else 2 if len(axes) > 1 else size[0]
            for name, size in axes.items()
        }
        kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
        mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)
        options, inputs = {"mesh": mesh}, inputs(mesh)
    drawn = as_arguments(draw_once(inputs))
    options |= {**drawn.options, **drawn.tuning}

    def function(*args: Any) -> Any:
        return kernel(*args, **options)

    refusal = ""
    try:
        crossed(function, drawn.args, target, monitored=monitored)
    except ProgramError as refused:  # not of every tuning of a kernel
        refusal = refused.name
    assert refusal in ("", REFUSED.get(spec.name, ""))
    return refusal


@pytest.mark.parametrize("module", SAMPLE)
def test_a_reference_kernel_of_each_kind_crosses(module: str) -> None:
    spec, platform, target = random.Random(module).choice(
        list(cases_of(f"reference_kernels.{module}"))
    )
    cross_spec(spec, platform, target)


MODULES = (
    *("attention", "basics", "collective_matmul", "collectives", "dma", "matmul", "mosaic_gpu"),
    *("mpmd", "parallel", "portable", "random", "reductions", "refs", "sparse", "sparsecore"),
)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_every_reference_kernel_crosses(module: str) -> None:
    for spec, platform, target in cases_of(f"reference_kernels.{module}"):
        cross_spec(spec, platform, target, monitored=False)


def test_inlined_code_is_refused() -> None:
    """``inline_mgpu`` has a function of Python, which the simulator reads where it is traced."""
    (case,) = (
        case
        for case in cases_of("reference_kernels.mosaic_gpu.reverse_bits")
        if case[0].name == "reverse_bits"
    )
    assert cross_spec(*case) == "inline_mgpu"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["tpu", "triton", "mosaic_gpu"])
def test_every_published_kernel_crosses(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples/published")
    crossing = 0
    for spec, platform, target in cases_of(f"published.{folder}"):
        try:
            cross_spec(spec, platform, target, monitored=False)
        except (ValueError, NameError, TypeError, NotImplementedError):
            assert spec.xfail, spec.name  # JAX does not trace it
        else:
            crossing += 1
    assert crossing > 10


# What a writer refuses, by name.


def with_callback(x: Any) -> Any:
    return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), add(x, x))


def with_io(x: Any) -> Any:
    return io_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), add(x, x))


def with_debug(x: Any) -> Any:
    jax.debug.callback(lambda y: None, x)
    return add(x, x)


def with_ffi(x: Any) -> Any:
    return jax.ffi.ffi_call("anything", jax.ShapeDtypeStruct(x.shape, x.dtype))(add(x, x))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (with_callback, "pure_callback"),
        (with_io, "io_callback"),
        (with_debug, "debug_callback"),
        (with_ffi, "ffi_call"),
    ],
)
def test_what_calls_python_or_a_library_is_refused(function: Any, name: str) -> None:
    with pytest.raises(ProgramError, match=name) as refused:
        encode(program_of(function, ones(8, 128)))
    assert refused.value.name == name


def test_constants_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MOST_ARRAYS", 1 << 10)
    table = np.zeros((8, 128), F32)
    with pytest.raises(ProgramError, match="constants"):
        encode(program_of(lambda x: add(x, table), ones(8, 128)))


def test_prints_are_left_out() -> None:
    def printing(x: Any) -> Any:
        jax.debug.print("{}", x)
        return add(x, x)

    program = decode(encode(program_of(printing, ones(8, 128))))
    assert "debug_print" not in str(program.jaxpr)


# Lines, and the digest.


SOURCE = """
import jax
from jax.experimental import pallas as pl
{comment}
def kernel(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * {factor}
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


def from_source(folder: Path, **parts: Any) -> ProgramData:
    path = folder / "candidate.py"
    path.write_text(SOURCE.format(**parts))
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return program_of(names["kernel"], ones(8, 128))


def test_lines_cross_and_name_the_files_of_the_reader(tmp_path: Path) -> None:
    data = encode(from_source(tmp_path, comment="#", factor=2), str(tmp_path))
    assert str(tmp_path).encode() not in data
    program = decode(data, "/somewhere/else")
    (call,) = kernel_calls(program.jaxpr)
    assert call.source.startswith("/somewhere/else/candidate.py:8")
    body = call.eqn.params["jaxpr"]
    assert "/somewhere/else/candidate.py" in str(body.debug_info.func_src_info)


def test_the_digest_is_that_of_what_is_computed(tmp_path: Path) -> None:
    def digest(**parts: Any) -> str:
        return decode(encode(from_source(tmp_path, **parts), str(tmp_path))).digest

    first = digest(comment="#", factor=2)
    assert first == digest(comment="# another\n# file", factor=2)
    assert first != digest(comment="#", factor=3)


# What a reader refuses: anything that is no program.


def parts_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = struct.unpack("<I", data[8:12])
    return json.loads(data[12 : 12 + size]), data[12 + size :]


def joined(header: Any, rest: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return codec.MAGIC + struct.pack("<I", len(text)) + text + rest


@pytest.fixture(scope="module")
def data() -> bytes:
    return encode(program_of(outside, ones(8, 128), ones(8, 128)))


def test_damaged_bytes_are_refused(data: bytes) -> None:
    for cut in (0, 4, 11, 12, 100, len(data) - 1):
        with pytest.raises(ProgramError):
            decode(data[:cut])
    with pytest.raises(ProgramError):
        decode(data + b"more")
    with pytest.raises(ProgramError, match="too large"):
        decode(codec.MAGIC + struct.pack("<I", 1 << 31))
    with pytest.raises(ProgramError):
        decode(codec.MAGIC + struct.pack("<I", 200_000) + b"[" * 200_000)


def test_changed_programs_are_programs_or_refused(data: bytes) -> None:
    header, rest = parts_of(data)
    rng = random.Random(7)
    strange = [None, -1, 10**9, 10**30, "", "x", [], {}, [[]], True, 1.5, "jax._src.core.Jaxpr"]
    for _ in range(150):
        changed = json.loads(json.dumps(header))
        holder: Any = changed
        while True:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            key = rng.choice(list(keys))
            if not isinstance(holder[key], (list, dict)) or not holder[key] or rng.random() < 0.1:
                break
            holder = holder[key]
        holder[key] = rng.choice(strange)
        with contextlib.suppress(ProgramError):  # nothing else is raised
            assert isinstance(decode(joined(changed, rest)), ProgramData)


def small(*nodes: Any, **more: Any) -> bytes:
    header = {"version": 1, "nodes": nodes, "arrays": [], "root": [0, 0], "frames": []}
    return joined({**header, "stacks": [], "lines": {}, **more})


@pytest.mark.parametrize(
    "nodes",
    [
        [["object", "subprocess.Popen", []]],
        [["class", "builtins.eval"]],
        [["enum", "os.PathLike", "register"]],
        [["object", "jax._src.pallas.core.CostEstimate", [["__class__", 0]]]],
        [["tree", "builtins.eval", 0, []]],
        [["int", "9" * 100]],
        [["mesh", [], [1 << 30], []]],
        [["none"], ["array of", [0] * 100, 0, False, 0]],
        [["unknown"]],
        [["tuple", [0]]],
        [["tuple", [5]]],
    ],
)
def test_what_is_not_listed_is_not_made(nodes: Any) -> None:
    with pytest.raises(ProgramError):
        decode(small(*nodes))


def test_a_program_may_not_name_a_primitive_that_calls_python(data: bytes) -> None:
    header, rest = parts_of(data)
    for name in ("pure_callback", "debug_callback", "inline_mgpu", "ffi_call", "nothing"):
        changed = json.loads(json.dumps(header))
        node = next(node for node in changed["nodes"] if node[0] == "program" and node[5])
        node[5][0][0] = name
        with pytest.raises(ProgramError, match="may cross"):
            decode(joined(changed, rest))


def test_parts_that_are_used_very_often_are_counted() -> None:
    nodes = [["none"], *(["tuple", [number, number]] for number in range(40))]
    with pytest.raises(ProgramError, match="more than"):
        decode(small(*nodes))


def test_a_class_of_parameters_holds_data_only() -> None:
    """What makes an object of any fields, or runs code when it is made, has no place there."""
    for name, cls in programs.classes().items():
        assert name.startswith("jax"), name
        assert not {"__class__", "__dict__"} & set(programs.fields_of(cls)), name
