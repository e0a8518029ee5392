"""Candidates a minute, and what one ``allclose`` on ``interpret`` sees of the wrong kernels.

    python benchmarks/verify.py [--candidates N] [--hidden N] [--processes N]

First a matmul in several variants, right and wrong, is judged on ``tpu-sim:v6e`` with 20 hidden
calls, in two processes. Then the wrong kernels of ``tests/verify`` are judged, and compared with
what a benchmark does: one call at the given shape on JAX's interpreter, and ``allclose``.
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

sys.path.insert(0, str(ROOT / "tests/verify"))

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
        text = cheats.CHEATS[name][0].replace("out_shape=", "interpret=True, out_shape=")
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
    own = {"ended early", "forks", "timed out", "crashed", "too much output", "no answer"}
    own |= {"SystemExit", "OSError", "MemoryError", "FileNotFoundError", "too large"}
    return reason in own or name.startswith(("patches", "dot_", "endless", "huge"))


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    throughput(options.candidates, options.hidden, options.processes)
    compared()


if __name__ == "__main__":
    main()
