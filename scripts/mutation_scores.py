"""What a green test is worth: the same mutants against three kinds of tests.

    uv run python scripts/mutation_scores.py [NAME ...] [--max-examples N] [--write]

The obvious test calls a kernel on three square shapes, and compares with the reference by
``assert_allclose`` at 1e-2, on the portable interpreter. The second does so for the shapes, dtypes
and values that the spec draws. The third are the spec's own checks (``--pallas-mutate``). Only
mutants that are not equivalent count, those of the kernels' gradients are left out for all three,
and they are the same for all.

``--write`` puts the table into docs/mutation.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax.numpy as jnp
import numpy as np

from pallas_sim.compat.source import own_lines
from pytest_pallas.backends.execution import to_numpy
from pytest_pallas.backends.interpreters import interpret
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.backends.tracing import jitted, split
from pytest_pallas.draw.arguments import Arguments, as_arguments
from pytest_pallas.draw.examples import ExampleSource
from pytest_pallas.mutate import Mutant, mutants_of
from pytest_pallas.mutate.runner import unknown
from pytest_pallas.run.collection import suite
from pytest_pallas.spec import KernelSpec

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/mutation.md"

#: The sides of the squares.
SIZES = (128, 256, 512)

#: How near the obvious test wants to be.
NEAR = 1e-2


def _array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Row:
    """A kernel to compare the tests on.

    Attributes:
      module: where it is.
      name: of the spec.
      square: the arguments of the obvious test for a size.
    """

    module: str
    name: str
    square: Callable[[int], tuple[Any, ...]]


ROWS = (
    Row("reference_kernels.basics.add_vectors", "add_blocks", lambda n: (_array(n),) * 2),
    Row("reference_kernels.reductions.softmax", "softmax", lambda n: (_array(n, n),)),
    Row("reference_kernels.reductions.rms_norm", "rms_norm", lambda n: (_array(n, n), _array(n))),
    Row("reference_kernels.matmul.matmul_naive", "matmul_naive", lambda n: (_array(n, n),) * 2),
    Row("reference_kernels.matmul.matmul", "matmul", lambda n: (_array(n, n), _array(n, n))),
    Row(
        "reference_kernels.attention.flash_attention",
        "flash_attention",
        lambda n: tuple(_array(1, 1, n, n // 2) for _ in range(3)),
    ),
)


@dataclass(frozen=True)
class Scores:
    """Of one kernel.

    Attributes:
      name: of the kernel.
      mutants: how many count.
      killed: how many each kind of test killed: obvious, random shapes, the spec's checks.
    """

    name: str
    mutants: int
    killed: tuple[int, int, int]


def compared(row: Row, examples: int) -> Scores:
    """Run the three tests of a kernel."""
    [spec] = [spec for spec in suite(row.module).specs() if spec.name == row.name]
    squares = [Arguments(row.square(size)) for size in SIZES]
    drawn = [as_arguments(each) for each in ExampleSource(spec.inputs).choose(0, examples).values()]
    verdicts = _verdicts(row, examples)
    found = {unknown(m).key: m for call in (*drawn, *squares) for m in _mutants(spec, call)}
    counted = {
        key: found[key]
        for key, verdict in verdicts.items()
        if key in found and verdict["status"] in ("killed", "survived")
    }
    return Scores(
        row.name,
        len(counted),
        (
            sum(_noticed(spec, squares, mutant) for mutant in counted.values()),
            sum(_noticed(spec, drawn, mutant) for mutant in counted.values()),
            sum(verdicts[key]["status"] == "killed" for key in counted),
        ),
    )


def _call(spec: KernelSpec, arguments: Arguments, mutant: Mutant | None = None) -> Call:
    return Call(
        function=spec.kernel_for("tpu"),
        args=arguments.args,
        options={**arguments.options, **arguments.tuning},
        settings=RunSettings(rewriting=mutant, timeout=15.0),
    )


def _mutants(spec: KernelSpec, arguments: Arguments) -> Sequence[Mutant]:
    backend = interpret()
    static, arrays = split(_call(spec, arguments))
    with backend.context(races=False), own_lines():
        return mutants_of(jitted(static).trace(arrays).jaxpr)


def _noticed(spec: KernelSpec, calls: Sequence[Arguments], mutant: Mutant) -> bool:
    """Whether a call with a mutant raises, or differs from the reference by more than ``NEAR``."""
    for arguments in calls:
        with own_lines():
            outcome = interpret().run(_call(spec, arguments, mutant))
        if outcome.error is not None:
            return True
        wanted = to_numpy(spec.reference(*map(jnp.asarray, arguments.args), **arguments.options))
        for got, right in zip(_leaves(outcome.values), _leaves(wanted), strict=True):
            with contextlib.suppress(AssertionError), np.errstate(all="ignore"):
                np.testing.assert_allclose(
                    got.astype(np.float64), right.astype(np.float64), rtol=NEAR, atol=NEAR
                )
                continue
            return True
    return False


def _leaves(values: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(values)


def _verdicts(row: Row, examples: int) -> Mapping[str, Mapping[str, Any]]:
    """What became of the mutants under the spec's own checks, by key."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--pallas-mutate",
        ]
        command += [f"--pallas-suite={row.module}", "-k", f"{row.name}-mutants"]
        command += [f"--pallas-max-examples={examples}", f"--pallas-results={results}"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        records = json.loads(results.read_text())["records"]
    [record] = [record for record in records if record["kernel"] == row.name]
    return {verdict["key"]: verdict for verdict in record["mutants"]}


def table(scores: Sequence[Scores]) -> Iterator[str]:
    """The scores as a table of Markdown."""
    yield "| kernel | mutants | three squares at 1e-2 | drawn shapes at 1e-2 | the spec's checks |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for each in scores:
        shares = [f"{100 * killed / each.mutants:.0f} %" for killed in each.killed]
        yield f"| `{each.name}` | {each.mutants} | {' | '.join(shares)} |"
    total = sum(each.mutants for each in scores)
    sums = [sum(each.killed[kind] for each in scores) for kind in range(3)]
    yield f"| all | {total} | {' | '.join(f'{100 * s / total:.0f} %' for s in sums)} |"


def main() -> int:
    """Compare, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="kernels (default: all of the table)")
    parser.add_argument("--max-examples", type=int, default=8)
    parser.add_argument("--write", action="store_true", help="put the table into docs/mutation.md")
    options = parser.parse_args()
    scores: list[Scores] = []
    for row in ROWS:
        if not options.names or row.name in options.names:
            scores.append(compared(row, options.max_examples))
            print(f"{row.name}: {scores[-1]}", file=sys.stderr, flush=True)
    text = "\n".join(table(scores))
    print(text)
    if options.write:
        page = PAGE.read_text()
        block = f"<!-- scores -->\n{text}\n<!-- end -->"
        PAGE.write_text(
            re.sub(r"<!-- scores -->.*?<!-- end -->", lambda _: block, page, flags=re.S)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
