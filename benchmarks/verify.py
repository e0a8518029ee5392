"""Candidates a minute, and what one ``allclose`` on ``interpret`` sees of the wrong kernels.

    python benchmarks/verify.py [--part PART] [--candidates N] [--hidden N] [--processes N]

``speed``: a matmul in several variants, right and wrong, is judged on ``tpu-sim:v6e`` with 20
hidden calls, in two processes. ``cheats`` and ``broken``: the wrong kernels of ``tests/verify`` and
of ``tests/broken`` are judged, and compared with what a benchmark does: one call on JAX's
interpreter, and ``allclose``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

sys.path[:0] = [str(ROOT / part) for part in ("tests/verify", "tests/broken", "tests/support")]

#: What a benchmark asks of an answer.
ALLCLOSE = {"rtol": 1e-2, "atol": 1e-2}

#: Chips to judge a kernel on: the first that it is written for.
CHIPS = ("tpu-sim:v6e", "gpu-sim:h100", "gpu-sim:b200", "tpu-sim:tpu7x", "gpu-sim:a100")

MATMUL = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
def kernel(x, w):
    (m, k), n = x.shape, w.shape[1]
    def body(x_ref, w_ref, o_ref):
        o_ref[...] = jnp.dot(x_ref[...], w_ref[...])
    return pl.pallas_call(
        body,
        grid=({grid},),
        in_specs=[
            pl.BlockSpec(({rows}, k), lambda i: (i, 0)),
            pl.BlockSpec((k, n), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec(({rows}, n), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
    )(x, w)
"""


def judged(numbers: Sequence[int], hidden: int) -> list[bool]:
    """Judge some of the variants of the matmul."""
    import jax.numpy as jnp

    from pytest_pallas import verify_many
    from pytest_pallas.candidates.source import CandidateSource

    candidates: list[CandidateSource] = []
    for number in numbers:
        rows = (8, 16, 32, 64)[number % 4]
        grid = f"pl.cdiv(m, {rows})" if number % 5 else f"max(m // {rows}, 1)"
        text = MATMUL.format(rows=rows, grid=grid) + f"# {number}\n"
        name = f"matmul {number}"
        candidates.append(
            CandidateSource(name=name, files={"c.py": text}, module="c.py", function="kernel")
        )
    reports = verify_many(
        candidates, jnp.matmul, "m k, k n", targets=("tpu-sim:v6e",), hidden=hidden, seed=1
    )
    return [report.passed for report in reports]


def throughput(count: int, hidden: int, processes: int) -> None:
    """Print how many candidates a minute are judged."""
    parts = [range(start, count, processes) for start in range(processes)]
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        list(pool.map(judged, [[0]] * processes, [1] * processes))  # starts them
        begun, before = time.monotonic(), os.times()
        passed = [one for part in pool.map(judged, parts, [hidden] * processes) for one in part]
        seconds = time.monotonic() - begun
    after = os.times()
    used = after.children_user - before.children_user
    print(
        f"{count} candidates ({sum(passed)} pass) with {hidden} hidden calls in {seconds:.1f} s: "
        f"{60 * count / seconds:.0f} a minute in {processes} processes (children: {used:.1f} CPU s)"
    )


def compared() -> None:
    """Print what one ``allclose`` sees of the cheats that give an answer."""
    import jax
    import numpy as np

    from pytest_pallas import verify_many
    from pytest_pallas.candidates.source import CandidateSource

    cheats: Any = importlib.import_module("cheats")

    def reference(x: Any, y: Any) -> Any:
        return 2 * x + y

    names = [name for name, (_, reason) in cheats.CHEATS.items() if not _attacks(name, reason)]
    candidates = [
        CandidateSource(
            name=name, files={"c.py": cheats.CHEATS[name][0]}, module="c.py", function="kernel"
        )
        for name in names
    ]
    reports = verify_many(
        candidates, reference, "m n, m n", targets=("tpu-sim:v6e",),
        sizes={"m": 16, "n": 128}, hidden=6, seed=5, budget=10,
    )  # fmt: skip
    caught = {report.name for report in reports if not report.passed}
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((16, 128)).astype(np.float32) for _ in range(2))
    usual: set[str] = set()
    for name in names:
        scope: dict[str, Any] = {}
        text = cheats.CHEATS[name][0]
        if "interpret=True" not in text:
            text = text.replace("out_shape=", "interpret=True, out_shape=")
        try:
            exec(text, scope)
            answer = scope["kernel"](x, y)
            (answer,) = jax.tree.leaves(answer)
            if answer.shape != x.shape or not np.allclose(answer, 2 * x + y, rtol=1e-3, atol=1e-2):
                usual.add(name)
        except Exception:  # a cheat that raises here is seen
            usual.add(name)
    missed = ", ".join(sorted(set(names) - usual))
    print(f"of {len(names)} cheats, verify refuses {len(caught)}, one allclose {len(usual)}")
    print(f"not seen by one allclose: {missed}")


def _attacks(name: str, reason: str) -> bool:
    """Return whether a cheat attacks the process: it is not run in this one."""
    own = {
        "no program",
        "ended early",
        "forks",
        "timed out",
        "crashed",
        "too much output",
        "no answer",
    }
    own |= {"SystemExit", "OSError", "MemoryError", "FileNotFoundError", "too large"}
    return reason in own or name.startswith(("patches", "dot_", "endless", "huge"))


def broken(hidden: int) -> None:
    """Print what both see of the kernels of ``tests/broken`` that run on one device."""
    import pytest_pallas
    from pytest_pallas.candidates.source import CandidateSource

    table: Any = importlib.import_module("table")
    left_out: list[str] = []
    seen: dict[bool, list[tuple[str, str, str]]] = {True: [], False: []}
    for spec in table.specs().values():
        chip = next((chip for chip in CHIPS if spec.claims(chip.partition(":")[0])), "")
        name = getattr(spec.kernel, "__qualname__", "<")
        if spec.meshes or not chip or "<" in name or "." in name:
            left_out.append(spec.name)
            continue
        text = f"from {spec.kernel.__module__} import {name} as kernel\n"
        source = CandidateSource(
            name=spec.name, files={"c.py": text}, module="c.py", function="kernel"
        )
        try:
            report = pytest_pallas.verify(
                source, spec=spec, targets=(chip,), hidden=hidden, seed=5, budget=30
            )
            verdict = report.undecided or report.reason
        except (pytest_pallas.PallasError, AssertionError) as error:
            left_out.append(f"{spec.name} ({type(error).__name__})")
            continue
        right = table.is_right(spec.name)
        seen[right].append((spec.name, verdict, _seen_by_allclose(spec)))
        print(*seen[right][-1], sep=" | ", flush=True)
    for right, rows in seen.items():
        judged = sum(bool(verdict) for _, verdict, _ in rows)
        usual = sum(bool(error) for _, _, error in rows)
        kind = "right" if right else "wrong"
        print(f"of {len(rows)} {kind} kernels verify refuses {judged}, one allclose {usual}")
        print("  by verify only:", ", ".join(n for n, verdict, e in rows if verdict and not e))
        print("  not by verify:", ", ".join(n for n, verdict, _ in rows if not verdict))
    print("left out:", ", ".join(left_out))


def _seen_by_allclose(spec: Any) -> str:
    """Return what a call on JAX's interpreter raises, or "" if its answer is close."""
    import pytest_pallas
    from pytest_pallas.candidates.task import TaskInputs, task_of

    drawn = TaskInputs(inputs=spec.inputs, hidden=0)
    call = task_of(spec.reference, drawn, seed=5).calls[0].arguments
    try:
        pytest_pallas.check(
            spec.kernel,
            call,
            reference=spec.reference,
            backend="interpret",
            tolerance=ALLCLOSE,
            check_dtype=False,
            nan_ok=True,
            sanitize="none",
        )
    except pytest_pallas.PallasError as error:
        return type(error).__name__
    return ""


def main() -> None:
    """Print all, or a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--part", choices=("speed", "cheats", "broken"))
    options = parser.parse_args()
    if options.part in (None, "speed"):
        throughput(options.candidates, options.hidden, options.processes)
    if options.part in (None, "cheats"):
        compared()
    if options.part in (None, "broken"):
        broken(6)


if __name__ == "__main__":
    main()
