"""Compiling the TPU reference kernels: whole runs, and what supervision and cost reports add.

    uv run python benchmarks/compiling.py runs [pairs]       every kernel for five chips
    uv run python benchmarks/compiling.py overhead [chip]    workers against direct calls

Targets: an unchanged suite in under 10 s on 2 cores; through a worker under 1.2 times the time of
a direct ``.compile()``. A cold and a warm run follow each other, and so do the ways to compile one
program, so that all of them see the same machine. Needs libtpu.

Measured on 21 November 2026 on 2 cores, with JAX 0.12.0.1 and libtpu 0.0.50: 560 programs took
47 s cold and 0.27 times that warm (two pairs; 0.23 after collection was made cheaper, one run), so
the first target is just missed. One after the other, the 112 programs for v5e took 1.45 times as
long in a worker as directly: 1.29 of it is libtpu writing what the cost report is read from (1.46
with the scratch folder on a disk); the worker, lowering there and reading add a factor of 1.12.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

#: Where a run of pytest keeps the programs that it compiles.
PROGRAMS = "BENCHMARK_PROGRAMS"

#: What a process that compiles for an absent TPU needs; see ``pytest_pallas.compile.libtpu``.
DIRECT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def run(target: str, cache: Path, *options: str, **environment: str) -> float:
    """Wall time of a pytest run of all reference kernels for ``target``, in seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "--pallas-suite=reference_kernels"]
    command += [f"--pallas-backend=tpu-compile:{target}", "-o", f"cache_dir={cache}", *options]
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(done.stdout)
    return time.perf_counter() - started


def runs(pairs: int) -> None:
    """Print the medians of cold and warm runs, and of their ratios."""
    with tempfile.TemporaryDirectory() as name:
        cache = Path(name)
        times = [(run("all", cache, "--cache-clear"), run("all", cache)) for _ in range(pairs)]
    cold, warm = (statistics.median(each) for each in zip(*times, strict=True))
    ratio = statistics.median(b / a for a, b in times)
    print(f"cold {cold:7.1f} s")
    print(f"warm {warm:7.1f} s, {ratio:.2f} of cold  (medians of {pairs} pairs)")


def pytest_configure() -> None:
    """As a plugin of the run that collects programs: keep what is handed to the workers."""
    from pytest_pallas.compile.service import Service

    folder, submit = Path(os.environ[PROGRAMS]), Service.submit
    seen: set[bytes] = set()

    def keeping(self: Service, program: Any, *, timeout: float) -> Any:
        if program.module not in seen:
            seen.add(program.module)
            path = folder / f"{len(seen):04}-{program.devices}"
            path.write_bytes(program.module)
        return submit(self, program, timeout=timeout)

    Service.submit = keeping  # pyright: ignore[reportAttributeAccessIssue]


def overhead(target: str) -> None:
    """Print the sums of the times of the ways to compile one program after the other."""
    from pytest_pallas.compile.machine_code import PASS_LABELS

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        programs, dumps = scratch / "programs", scratch / "dumps"
        programs.mkdir()
        here = str(Path(__file__).parent)
        run(
            target,
            scratch / "cache",
            "-pcompiling",
            PYTHONPATH=here,
            BENCHMARK_PROGRAMS=str(programs),
        )
        flags = (
            f"--xla_jf_dump_to={dumps} --xla_jf_dump_llo_text=true "
            f"--xla_jf_dump_llo_pass_label_regex={PASS_LABELS}"
        )
        ways = {
            "direct": direct(target),
            "with dumps": direct(target, LIBTPU_INIT_ARGS=flags),
            "in a worker": supervised(target),
        }
        paths = sorted(programs.iterdir())
        for way in ways.values():
            way(paths[0])  # starts the process, and libtpu
        sums = dict.fromkeys(ways, 0.0)
        for path in paths:
            for words, way in ways.items():
                sums[words] += way(path)
    print(f"{len(paths)} programs for {target}, one after the other")
    for words, total in sums.items():
        print(f"{words:<12}{total:8.1f} s {total / sums['direct']:6.2f} of direct")


def direct(target: str, **environment: str) -> Callable[[Path], float]:
    """A process that compiles without supervision; gives the seconds of ``.compile()`` alone."""
    process = subprocess.Popen(
        [sys.executable, __file__, "child", target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **DIRECT, **environment},
        text=True,
    )

    def compile_apart(path: Path) -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        print(path, file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    return compile_apart


def child(target: str) -> None:
    """What ``direct`` starts."""
    from jax import stages

    from pytest_pallas.compile import libtpu as libtpu_worker
    from pytest_pallas.compile import libtpu as programs

    seconds: list[float] = []
    compile_program = stages.Lowered.compile

    def timed(self: stages.Lowered, *args: Any, **options: Any) -> stages.Compiled:
        started = time.perf_counter()
        compiled = compile_program(self, *args, **options)
        seconds.append(time.perf_counter() - started)
        return compiled

    stages.Lowered.compile = timed
    for path in _lines():
        devices = libtpu_worker._devices(target, _devices_of(path))
        programs.compile_program(path.read_bytes(), devices)
        print(json.dumps(seconds.pop()), flush=True)


def supervised(target: str) -> Callable[[Path], float]:
    """The session's service with one worker; gives the seconds from handing over to the report."""
    from pytest_pallas.compile.service import CompileRequest, Service

    service = Service(workers=1, memory_bytes=2**34, cache=None)

    def compile_by_service(path: Path) -> float:
        module, devices = path.read_bytes(), _devices_of(path)
        # Another dump folder each time: the service compiles nothing twice.
        service._running.clear()
        request = CompileRequest(target=target, module=module, devices=devices)
        started = time.perf_counter()
        report = service.submit(request, timeout=600).result()
        assert report.status == "compiled", report.text
        return time.perf_counter() - started

    return compile_by_service


def _devices_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def _lines() -> Iterator[Path]:
    for line in sys.stdin:
        yield Path(line.strip())


def main() -> None:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["runs", *rest]:
            runs(int(rest[0]) if rest else 3)
        case ["overhead", *rest]:
            overhead(rest[0] if rest else "v5e")
        case ["child", target]:
            child(target)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
