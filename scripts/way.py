"""The way of three fixed requests through the modules, and how much code there is.

Prints the table of docs/internals.md: for each request the modules that it visits, the moves from
one module to another, and the depth of calls. Then the modules and the lines of code of both
packages. A *move* is a pair of functions of two modules of which one calls the other; however
often it does, it is read once. Imports are not followed: each request runs once before it is
measured, as a kernel of its own.

    uv run python scripts/way.py            the table
    uv run python scripts/way.py --modules  the modules of each request, too
    uv run python scripts/way.py --moves    the moves of each request, too
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

#: The packages whose modules are counted, by their folders.
PACKAGES = {name: ROOT / name for name in ("pallas_sim", "pytest_pallas")}

#: The package that a request may enter and leave as often as it likes: the simulator.
MACHINE = "pallas_sim"

#: A test that fails, and one check of one spec on one example. ``NAME`` makes a kernel of its own.
TESTS = """
import jax
import numpy as np
from jax.experimental import pallas as pl
from pytest_pallas import KernelSpec, strategies, suite


def kernel_NAME(x_ref, o_ref):
    e = jax.numpy.exp(x_ref[...] - jax.numpy.max(x_ref[...], axis=1, keepdims=True))
    o_ref[...] = e / jax.numpy.sum(e, axis=1, keepdims=True)


def softmax_NAME(x):
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = (pl.cdiv(x.shape[0], 8),)
    return pl.pallas_call(
        kernel_NAME, out_shape=shape, grid=grid, in_specs=[block], out_specs=block
    )(x)


def test_fails_NAME(pallas_check):
    x = np.linspace(0, 1, 8 * 127, dtype=np.float32).reshape(8, 127)
    pallas_check(softmax_NAME, x, reference=jax.nn.softmax)


test_spec_NAME = suite(
    KernelSpec(
        name="softmax_NAME",
        kernel=softmax_NAME,
        reference=jax.nn.softmax,
        inputs=strategies.arrays("m n", dims={"m": [8], "n": [128]}),
    )
)
"""


@dataclass
class Way:
    """What a request visits.

    Attributes:
      modules: their names.
      moves: caller and callee of two modules, each as module and qualified name.
      depth: the most calls of these packages inside each other.
    """

    modules: set[str] = field(default_factory=set)
    moves: set[tuple[tuple[str, str], tuple[str, str]]] = field(default_factory=set)
    depth: int = 0

    def outside(self) -> set[str]:
        """The modules outside of the machine."""
        return {name for name in self.modules if not is_machine(name)}

    def moves_outside(self) -> int:
        """The moves of which one end is outside of the machine."""
        return sum(not (is_machine(a) and is_machine(b)) for (a, _), (b, _) in self.moves)


def is_machine(module: str) -> bool:
    """Whether a module is of the simulator."""
    return module.partition(".")[0] == MACHINE


@contextmanager
def followed(way: Way) -> Iterator[None]:
    """Note the calls of both packages that are made in this context, in this thread."""
    stack: list[tuple[FrameType, tuple[str, str]]] = []
    importing = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        if event not in ("call", "return"):
            return
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in PACKAGES:
            return
        if frame.f_code.co_name == "<module>":
            importing += 1 if event == "call" else -1
            return
        if importing:
            return
        if event == "return":
            if stack and stack[-1][0] is frame:
                stack.pop()
            return
        callee = module, frame.f_code.co_qualname
        way.modules.add(module)
        if stack and stack[-1][1][0] != module:
            way.moves.add((stack[-1][1], callee))
        stack.append((frame, callee))
        way.depth = max(way.depth, len(stack))

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


class Following:
    """A plugin of pytest that follows one test of those that run."""

    def __init__(self, test: str, way: Way) -> None:
        """Follow the test whose name has ``test`` in it."""
        self.test, self.way = test, way

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Follow the test from its set-up to its last report."""
        if self.test not in item.nodeid:
            return (yield)
        with followed(self.way):
            return (yield)


def run_pytest(folder: str, name: str, tests: str, *plugins: Any) -> str:
    """Run some of the tests of ``TESTS`` in this process; what pytest printed."""
    file = Path(folder, f"test_a_{name}.py")
    file.write_text(TESTS.replace("NAME", name), encoding="utf-8")
    options = [
        *("-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--rootdir", folder),
        *("--import-mode=importlib", "-c", "/dev/null", "-k", tests, str(file)),
        *("--pallas-isolate=never", "--pallas-database=none", "--pallas-backend=tpu-sim"),
        *("--pallas-checks=forward", "--pallas-sanitize=none", "--pallas-max-examples=1"),
    ]
    with redirect_stdout(io.StringIO()) as printed:
        pytest.main(options, plugins=plugins)
    return printed.getvalue()


def of_failure() -> Way:
    """The way of the test that fails, from its set-up to its report."""
    way = Way()
    with tempfile.TemporaryDirectory() as folder:
        run_pytest(folder, "warm", "fails")
        printed = run_pytest(folder, "measured", "fails", Following("fails", way))
    assert "MismatchError" in printed, printed
    return way


def of_spec() -> Way:
    """The way of a whole run: options, collection, one check of one spec on one example."""
    way = Way()
    with tempfile.TemporaryDirectory() as folder:
        run_pytest(folder, "warm", "forward")
        with followed(way):
            printed = run_pytest(folder, "measured", "forward")
    assert "1 passed" in printed, printed
    return way


def of_race() -> Way:
    """The way of ``simulate`` on a kernel in which two copies write one buffer."""
    import jax
    import numpy as np
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    from pallas_sim import simulate

    def race() -> Callable[[Any], Any]:
        def body(x_ref: Any, o_ref: Any, semaphores: Any) -> None:
            copies = [
                pltpu.make_async_copy(x_ref, o_ref, semaphores.at[number]) for number in range(2)
            ]
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()

        def call(x: Any) -> Any:
            return pl.pallas_call(
                body,
                out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
                in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
                out_specs=pl.BlockSpec(memory_space=pl.ANY),
                scratch_shapes=[pltpu.SemaphoreType.DMA((2,))],
            )(x)

        return call

    way, x = Way(), np.ones((8, 128), np.float32)
    simulate(race(), x)
    with followed(way):
        findings = simulate(race(), x).findings
    assert [finding.kind for finding in findings] == ["race"], findings
    return way


REQUESTS: dict[str, Callable[[], Way]] = {
    "a failing `pallas_check` of the README's softmax": of_failure,
    "one spec, one check, one example": of_spec,
    "`simulate` of a kernel with a race": of_race,
}


def code_lines(text: str) -> int:
    """How many lines of a module have a token that is no comment, docstring or import."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                left_out.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    spaces = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in spaces and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - left_out)


def main() -> None:
    """Print the table and the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--modules", action="store_true", help="name the modules of each request")
    parser.add_argument("--moves", action="store_true", help="list the moves of each request, too")
    given = parser.parse_args()
    print(
        "| request | modules outside of the machine | in the machine | moves outside "
        "| in the machine | depth |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    ways = {title: run() for title, run in REQUESTS.items()}
    for title, way in ways.items():
        outside, moves = way.outside(), way.moves_outside()
        inside = len(way.modules) - len(outside), len(way.moves) - moves
        print(f"| {title} | {len(outside)} | {inside[0]} | {moves} | {inside[1]} | {way.depth} |")
    print("\n| package | modules | lines of code | all lines |")
    print("| --- | --- | --- | --- |")
    for package, folder in PACKAGES.items():
        texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
        code, lines = sum(map(code_lines, texts)), sum(text.count("\n") for text in texts)
        print(f"| `{package}` | {len(texts)} | {code:,} | {lines:,} |")
    if given.modules:
        for title, way in ways.items():
            print(f"\n{title}:", *sorted(way.outside()), sep="\n  ")
    if given.moves:
        for title, way in ways.items():
            lines = [f"{':'.join(a)} -> {':'.join(b)}" for a, b in sorted(way.moves)]
            print(f"\n{title}:", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
