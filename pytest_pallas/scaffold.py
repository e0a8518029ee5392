"""Write a test module with a guessed spec, and run it once: ``pytest-pallas new MODULE:FUNCTION``.

``loading`` imports the function. ``scaffold_read`` reads its signature, docstring and source.
``scaffold_trace`` finds by trial traces which arguments it accepts, and ``scaffold_guess`` what
else a spec has. ``text_of`` writes the module,
with a comment ``FILL IN`` for each decision that is left to a person; these are printed, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_sim.errors import OptionError
from pytest_pallas.draw.meshes import DEVICES

if TYPE_CHECKING:
    from pytest_pallas.scaffold_guess import Guess

_DESCRIPTION = """\
Write a test module for a function that calls a Pallas kernel, and run it once. The shapes and
dtypes of its arguments are guessed from its signature, annotations, docstring and source, and from
trial traces. Lines with FILL IN are for you."""

#: Simulated devices that JAX starts with.
_DEVICES = 8

#: The mark of a decision for a person, in the module and in the output.
FILL_IN = "FILL IN"


def add_parser(commands: Any) -> None:
    """Add the command ``new`` to the subparsers of an ``argparse.ArgumentParser``."""
    summary = "write a test module for a kernel, and run it once"
    parser = commands.add_parser("new", help=summary, description=_DESCRIPTION)
    parser.add_argument(
        "target", metavar="MODULE:FUNCTION", help="such as mykernels.softmax:softmax"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.py",
        help="the file to write (default: tests/test_FUNCTION_kernel.py)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    parser.add_argument("--no-run", action="store_true", help="write the file and do not run it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the module and run it.

    Returns:
      The exit status of pytest; 0 with ``--no-run``.

    Raises:
      OptionError: there is no such function, or the file exists or cannot be written.
    """
    from pallas_sim import set_platforms
    from pytest_pallas.backends.devices import simulate
    from pytest_pallas.loading import load, outside_of_pytest

    set_platforms()
    simulate(_DEVICES, os.environ, explicit=False)  # for a mesh
    loaded = load(arguments.target)
    path: Path = arguments.output or Path("tests") / f"test_{loaded.short}_kernel.py"
    if path.exists() and not arguments.force:
        raise OptionError(f"{path} exists; give --force to overwrite it, or -o another file")
    if path.suffix != ".py":
        raise OptionError(f"-o {path}: a test module ends in .py, such as {path.stem}.py")
    _require_writable(path)

    from pytest_pallas.scaffold_guess import guess

    made = guess(loaded)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text_of(made), encoding="utf-8")
    except OSError as error:
        raise _not_writable(path, error.strerror or str(error)) from None
    print(f"wrote {path} (looked at {loaded.module}:{loaded.name} for {made.seconds:.1f} s)")  # noqa: T201
    for gap in gaps(made):
        print(f"  {FILL_IN} {gap}")  # noqa: T201
    options = ["-m", "pytest", *outside_of_pytest(loaded.module, path), str(path)]
    if arguments.no_run:
        print(f"run it: python {shlex.join(options)}")  # noqa: T201
        return 0
    options.append("--pallas-profile=quick")
    print(f"$ python {shlex.join(options)}", flush=True)  # noqa: T201
    return subprocess.run([sys.executable, *options, "-q"], check=False).returncode


def _require_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the guess takes its time.

    Raises:
      OptionError: its folder is read-only, or no folder.
    """
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise _not_writable(path, f"{folder} is no folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise _not_writable(path, f"{folder} is read-only")


def _not_writable(path: Path, reason: str) -> OptionError:
    other = Path(tempfile.gettempdir()) / path.name
    return OptionError(
        f"{path} cannot be written: {reason}. Give -o a file in a folder that can be written, such "
        f"as -o {other}; tests run from there, too"
    )


def gaps(guess: Guess) -> Iterator[str]:
    """List the decisions for a person, one sentence each."""
    if not guess.loaded.reference:
        alike = f"; is it {guess.alike}?" if guess.alike else ""
        yield f"the reference: the same function in jnp{alike}"
    if not guess.traced:
        yield "the inputs: no call that was tried can be traced"
    elif guess.call.trace.reference_problem:
        yield f"the reference or the inputs: {guess.call.trace.reference_problem}"
    if guess.traced and not guess.call.trace.kernels:
        yield f"the function: {guess.loaded.short} has no Pallas kernel for these arguments"
    for array in _integers(guess):
        yield f"the values of {array.name}: guessed from its name"


# Arrays of lengths, ids and indices, which are drawn after the others.


@dataclass(frozen=True)
class Integers:
    """An array that is drawn after the others, because its values depend on their sizes.

    Attributes:
      number: of the array.
      name: of the array.
      strategy: the strategy in Python, where ``drawn`` are the other arrays.
      comment: the guess about its values.
    """

    number: int
    name: str
    strategy: str
    comment: str


#: By the end of a name: the strategy for ``count`` integers about an axis of ``most`` elements.
_KINDS = (
    (
        r"len(gth)?s?$|_lens?$|counts?$",
        "pst.lengths({count}, max_length={most})",
        "lengths of up to {most}",
    ),
    (
        r"sizes$",
        "pst.group_sizes({count}, total={most})",
        "sizes of groups that add up to {most} at most",
    ),
    (r"segment|^seg", "pst.segment_ids({count})", "the segment of each token"),
    (r"perm", "pst.permutations({count})", "a permutation"),
    (r"", "pst.indices({count}, size={most})", "indices from 0 to {most} - 1"),
)

#: Names of tables of pages, of positions, and of arrays that indices refer to.
_TABLE, _POSITION = (
    re.compile(r"(page|block)s?_?table"),
    re.compile(r"^pos|position|offset|start|step"),
)
_INDEXED = re.compile(r"page|cache|table|embed|pool")


def _integers(guess: Guess) -> list[Integers]:
    """List the arrays of integers of up to two axes whose name tells their meaning."""
    attempt, leaves = guess.call.attempt, guess.call.leaves
    late = [
        number
        for number, leaf in enumerate(leaves)
        if leaf.integers and "int" in attempt.dtypes[number] and len(attempt.shapes[number]) < 3
    ]
    if len(late) == len(leaves):
        return []
    integers: list[Integers] = []
    for number in late:
        name = leaves[number].name
        counts, most = _counts(guess, number, late), _most(guess, number, late)
        shown = [_drawn(count) for count in counts]
        if _TABLE.search(name) and len(counts) == 2:
            strategy = f"pst.page_tables({shown[0]}, pages_each={shown[1]}, pages={_drawn(most)})"
            integers.append(Integers(number, name, strategy, f"numbers of pages below {most}"))
            continue
        strategy, comment = next(kind[1:] for kind in _KINDS if re.search(kind[0], name))
        strategy = strategy.format(count=" * ".join(shown) or "1", most=_drawn(most))
        if len(counts) != 1:
            strategy += f".map(lambda flat: flat.reshape(({', '.join(shown)})))"
        integers.append(Integers(number, name, strategy, comment.format(most=most)))
    return integers


def _counts(guess: Guess, number: int, late: Sequence[int]) -> list[str]:
    """Name the size of each axis of an array of integers; 4 if no other array has it."""
    counts: list[str] = []
    for axis in range(len(guess.call.attempt.shapes[number])):
        [own] = [dim for dim in guess.dims if (number, axis) in dim.axes]
        known = own.name.isdigit() or any(n not in late for n, _ in own.axes)
        counts.append(own.name if known else "4")
    return counts


def _most(guess: Guess, number: int, late: Sequence[int]) -> str:
    """Guess the dim of the axis that the integers of an array refer to."""
    names = {axis: dim.name for dim in guess.dims for axis in dim.axes}
    shapes, leaves = guess.call.attempt.shapes, guess.call.leaves
    others = [n for n in range(len(shapes)) if n not in late]
    name = leaves[number].name
    indexed = [n for n in others if _INDEXED.search(leaves[n].name) and shapes[n]]
    tables = [n for n in late if _TABLE.search(leaves[n].name) and len(shapes[n]) == 2]
    if re.search(_KINDS[0][0], name) and tables and indexed and len(shapes[indexed[0]]) > 1:
        return f"{_counts(guess, tables[0], late)[1]} * {names[indexed[0], 1]}"
    if shapes[number] and not (indexed and (_TABLE.search(name) or len(shapes[number]) == 2)):
        [own] = [dim for dim in guess.dims if (number, 0) in dim.axes]
        for n, axis in own.axes:
            if n not in late and axis + 1 < len(shapes[n]):
                return names[n, axis + 1]
    largest = max(indexed or others, key=lambda n: len(shapes[n]))
    axis = 1 if _POSITION.search(name) and len(shapes[largest]) > 2 else 0
    return names[largest, axis] if shapes[largest] else "1"


def _drawn(dim: str) -> str:
    """Write a product of dims and numbers, where ``drawn`` are the other arrays."""
    factors = (part if part.isdigit() else f'drawn.recipe["{part}"]' for part in dim.split(" * "))
    return " * ".join(factors)


# The text of the module.


def text_of(guess: Guess) -> str:
    """Write the module."""
    parts = ["\n".join(lines) for lines in (*_functions(guess), _spec(guess))]
    body = "\n\n\n".join(parts)
    lines = [
        f'"""The spec of ``{guess.loaded.short}``, guessed by ``pytest-pallas new``.',
        "",
        *_wrapped("", _summary(guess)),
        '"""',
        "",
        *_imports(guess, body),
        *[""] * (2 if len(parts) > 1 else 1),
        body,
        "",
        "test_kernels = pytest_pallas.suite(SPEC)",
        "",
    ]
    return "\n".join(lines)


def _summary(guess: Guess) -> str:
    if not guess.traced:
        return f"No call that was tried can be traced; see {FILL_IN} below."
    call = guess.call
    sources = sorted({leaf.source for leaf in call.leaves if leaf.source and not call.ignored})
    sources.append(f"{len(call.lab.known)} traces")
    see = f"; see {FILL_IN} below" if any(gaps(guess)) else ""
    return f"Shapes, dtypes and options are those that it accepted ({', '.join(sources)}){see}."


def _imports(guess: Guess, body: str) -> Iterator[str]:
    yield from ("from __future__ import annotations", "")
    if re.search(r"\bst\.", body):
        yield "from hypothesis import strategies as st"
    types = [operand.build.partition("(")[0] for operand in guess.call.operands]
    names = [guess.loaded.name.partition(".")[0], guess.loaded.reference]
    names += [name for name in types if name.isidentifier()]
    imports = [
        name if name == _imported(name) else f"{name} as {_imported(name)}"
        for name in dict.fromkeys(filter(None, names))
    ]
    imports.sort(key=lambda text: (not text[0].isupper(), text))
    yield f"from {guess.loaded.module} import {', '.join(imports)}"
    yield from ("", "import pytest_pallas", "from pytest_pallas import KernelSpec")
    if "pst." in body:
        yield "from pytest_pallas import strategies as pst"


def _imported(name: str) -> str:
    """Rename an imported function whose name the module uses for a function of its own."""
    return f"_{name}" if name in ("reference", "call") else name


def _order(guess: Guess) -> list[int]:
    """Order the numbers of the arrays: those that depend on others come last."""
    late = [array.number for array in _integers(guess)]
    return [n for n in range(len(guess.call.leaves)) if n not in late] + late


def _adapted(guess: Guess) -> bool:
    """Whether the function cannot be called with its arrays in order."""
    order = _order(guess)
    plain = all(operand.plain for operand in guess.call.operands)
    return order != sorted(order) or not plain or guess.mesh_parameter not in ("", "mesh")


def _reference_adapted(guess: Guess) -> bool:
    """Whether the reference cannot be called as the kernel is, with arrays in order and a mesh."""
    mesh = guess.mesh_parameter
    return _adapted(guess) or (mesh == "mesh" and not _takes(guess.loaded.reference_function, mesh))


def _functions(guess: Guess) -> Iterator[list[str]]:
    """Write the functions of the module: a call by arrays alone, and the reference."""
    loaded = guess.loaded
    if _adapted(guess):
        yield _call(guess, "call", loaded.name)
    if not loaded.reference:
        yield _missing_reference(guess)
    elif _reference_adapted(guess):
        yield _call(guess, "reference", loaded.reference)


def _call(guess: Guess, name: str, function: str) -> list[str]:
    leaves = [guess.call.leaves[n].name for n in _order(guess)]
    arguments: list[str] = []
    for operand in guess.call.operands:
        value = operand.build.format(*(leaf.name for leaf in operand.leaves))
        arguments.append(f"{operand.name}={value}" if operand.keyword else value)
    parameters = [*leaves, "**options"]
    if (mesh := guess.mesh_parameter) and (name == "reference" or mesh != "mesh"):
        parameters[-1:] = ["*", "mesh", "**options"]
        takes_mesh = name == "call" or _takes(guess.loaded.reference_function, mesh)
        arguments += [f"{mesh}=mesh"] if takes_mesh else []
    call = f"{_imported(function)}({', '.join([*arguments, '**options'])})"
    return [
        f"def {name}({', '.join(parameters)}):",
        f'    """``{function.rpartition(".")[2]}`` with arrays in order."""',
        *_indented(f"return {call}", 4),
    ]


def _takes(function: Any, name: str) -> bool:
    """Whether a function takes an argument of this name."""
    from pytest_pallas.checks.cross import accepted

    return bool(accepted(function, [name]))


def _missing_reference(guess: Guess) -> list[str]:
    from pytest_pallas.loading import REFERENCES

    loaded = guess.loaded
    parameters = [guess.call.leaves[n].name for n in _order(guess)]
    keywords = [*guess.options, *(["mesh"] if guess.mesh_parameter else [])]
    parameters += ["*", *keywords] if keywords else []
    tried = ", ".join(pattern.format(loaded.short) for pattern in REFERENCES)
    comments = [
        f"{FILL_IN}: plain jax.numpy, without Pallas. It follows the dtypes of its arguments. "
        f"{loaded.module} has none of {tried}."
    ]
    if guess.alike:
        comments.append(
            f"{guess.alike} has the same name and returns the same shapes; if it computes the "
            f"same, write reference={guess.alike} below."
        )
    problem = f"{FILL_IN} the reference of {loaded.short}: the same function in jnp"
    return [
        f"def reference({', '.join(parameters)}):",
        '    """The same function in jnp."""',
        *(line for comment in comments for line in _wrapped("    # ", comment)),
        f'    raise NotImplementedError("{problem}")',
    ]


def _spec(guess: Guess) -> Iterator[str]:
    loaded, adapted = guess.loaded, _adapted(guess)
    kernel = "call" if adapted else _imported(loaded.name)
    own = loaded.reference and not _reference_adapted(guess)
    reference = _imported(loaded.reference) if own else "reference"
    gpu = guess.call.trace.platforms == frozenset({"gpu"})
    yield "SPEC = KernelSpec("
    yield f'    name="{loaded.short}",'
    yield f'    kernel={{"gpu": {kernel}}},' if gpu else f"    kernel={kernel},"
    yield f"    reference={reference},"
    for comment in _comments(guess):
        yield from _wrapped("    # ", comment)
    for error, count in () if guess.traced else guess.call.errors[:4]:
        yield from _wrapped("    #   ", f"{count} times {error}")
    inputs = "\n".join(_inputs(guess))
    axes = guess.mesh_axes
    if axes:
        inputs = inputs.replace("inputs=", "inputs=lambda mesh: ", 1)
    yield from inputs.splitlines()
    if axes:
        usual = list(axes.values()) == [DEVICES]
        yield f"    meshes={_value(*axes) if usual else _mapping(axes)},"
    if guess.vmap_error:
        yield from _wrapped("    # ", f"jax.vmap: {guess.vmap_error}")
        yield "    vmappable=False,"
    if guess.differentiable:
        order = _order(guess)
        yield f"    differentiable={tuple(sorted(map(order.index, guess.differentiable)))},"
    yield "    # More to say: differentiable=, exact=, batch_axes=, relations=, raises=, typical=."
    yield ")"


def _comments(guess: Guess) -> Iterator[str]:
    """Write comments on the inputs: what was not followed or refused, and what is left to do."""
    call = guess.call
    for text in call.ignored:
        yield f"Not followed, because no call can be traced so: {text}."
    if not guess.traced:
        yield (
            f"{FILL_IN} the shapes, dtypes and keyword arguments. {call.tries} calls were tried, "
            f"such as {call.attempt}. They raised:"
        )
        return
    if call.trace.reference_problem:
        yield (
            f"{FILL_IN}: for {call.attempt} the kernel can be traced, and the reference not "
            f"rightly: {call.trace.reference_problem}."
        )
    if call.trace.wrong_blocks:
        yield f"For {call.attempt} the grid reads or writes wrong blocks; see the check grid."
    if not call.trace.kernels:
        yield f"{FILL_IN}: for {call.attempt} there is no Pallas kernel in it."
    yield from guess.left_out
    for dim in guess.dims:
        if dim.refused is not None:
            size, error = dim.refused
            yield f"{dim.name}={size} was refused: {error}"


def _inputs(guess: Guess) -> Iterator[str]:
    """Write the field ``inputs``."""
    integers = _integers(guess)
    if not guess.call.leaves and not guess.tuning and not guess.options:
        yield "    inputs=st.just(()),"
        return
    late = {array.number for array in integers}
    arrays = _arrays(guess, [n for n in range(len(guess.call.leaves)) if n not in late])
    if not integers and not guess.tuning and not guess.options:
        yield from _indented(f"inputs={arrays},", 4)
        return
    yield "    inputs=pst.arguments("
    yield from _indented(f"{arrays},", 8)
    if integers:
        yield "        then=lambda drawn: {"
        for array in integers:
            yield from _wrapped("            # ", f"{FILL_IN}: {array.comment}")
            yield from _indented(f'"{array.name}": {array.strategy},', 12)
        yield "        },"
    for keyword, values in (("options", guess.options), ("tuning", guess.tuning)):
        if values:
            strategies = {name: _strategy(choices) for name, choices in values.items()}
            yield from _indented(f"{keyword}={_mapping(strategies)},", 8)
    yield "    ),"


def _strategy(values: Sequence[Any]) -> str:
    if len(values) == 1:
        return _value(values[0])
    if {True, False} == {*values} and all(isinstance(value, bool) for value in values):
        return "st.booleans()"
    return f"st.sampled_from([{', '.join(map(_value, values))}])"


def _value(value: Any) -> str:
    text = repr(value)
    return text.replace("'", '"') if isinstance(value, str) and '"' not in text else text


def _mapping(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"


def _arrays(guess: Guess, numbers: Sequence[int]) -> str:
    """Write ``pst.arrays(...)`` of some of the arrays."""
    names = {axis: dim.name for dim in guess.dims for axis in dim.axes}
    ranks = [len(guess.call.attempt.shapes[n]) for n in numbers]
    shapes = ", ".join(
        " ".join(names[n, axis] for axis in range(rank)) or "()"
        for n, rank in zip(numbers, ranks, strict=True)
    )
    shown = [dim for dim in guess.dims if any(n in numbers for n, _ in dim.axes)]
    labels = {dim.name for dim in shown}
    constraints = [
        text for text in guess.constraints if {*re.findall(r"[A-Za-z_]\w*", text)} <= labels
    ]
    text = "; ".join(filter(None, (shapes, ", ".join(constraints))))
    arguments = [f'"{text}"', f"dtype={_dtype(guess, numbers)}"]
    named = [dim for dim in shown if not dim.name.isdigit()]
    axis = next(iter(guess.mesh_axes), "")
    multiples = {
        dim.name: f'{dim.multiple_of} * mesh.shape["{axis}"]'
        if dim in guess.sharded
        else dim.multiple_of
        for dim in named
        if dim.multiple_of > 1
    }
    if multiples:
        arguments.append(f"multiple_of={_mapping(multiples)}")
    if sizes := {dim.name: list(dim.sizes) for dim in named if dim.sizes}:
        arguments.append(f"dims={_mapping(sizes)}")
    return f"pst.arrays({', '.join(arguments)})"


def _dtype(guess: Guess, numbers: Sequence[int]) -> str:
    """Write the argument ``dtype`` for some of the arrays."""
    rows = list(dict.fromkeys(tuple(row[n] for n in numbers) for row in guess.dtypes))
    if not numbers:
        return '"float32"'
    if all(len(set(row)) == 1 for row in rows):
        dtypes = ", ".join(_value(row[0]) for row in rows)
        return dtypes if len(rows) == 1 else f"pst.dtypes({dtypes})"
    pairs = ", ".join(f"({', '.join(map(_value, row))})" for row in rows)
    return pairs if len(rows) == 1 else f"pst.dtype_pairs({pairs})"


def _wrapped(prefix: str, text: str) -> list[str]:
    """Wrap a text to lines of up to 100 characters, each with a prefix."""
    return textwrap.wrap(
        " ".join(text.split()),
        100,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
    )


def _indented(text: str, by: int) -> list[str]:
    """Indent a call: on one line if it fits, else with an argument on each line."""
    line = f"{' ' * by}{text}"
    if len(line) <= 100:
        return [line]
    head, opening, rest = re.match(r"(.*\)\.map|[^({]*)([({])(.*)$", text, re.DOTALL).groups()  # pyright: ignore
    closing = {"(": ")", "{": "}"}[opening]
    inner, _, tail = rest.rpartition(closing)
    return [
        f"{' ' * by}{head}{opening}",
        *(line for part in _split(inner) for line in _indented(f"{part},", by + 4)),
        f"{' ' * by}{closing}{tail}",
    ]


def _split(text: str) -> list[str]:
    """Split the arguments of a call at commas outside of brackets and strings."""
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
