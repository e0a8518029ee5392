"""The text of a test module, from what was guessed of a function."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_pallas.scaffold.guess import Guess
from pytest_pallas.scaffold.integers import integers_of

#: What a reader searches for, and a run prints.
FILL_IN = "FILL IN"


def text_of(guess: Guess) -> str:
    """The module."""
    spec = "\n".join(_spec(guess))
    functions = "\n\n\n".join("\n".join(each) for each in _functions(guess))
    body = f"{functions}\n\n\n{spec}" if functions else spec
    lines = [
        f'"""The spec of ``{guess.loaded.short}``, guessed by ``pytest-pallas new``.',
        "",
        *_wrapped("", _summary(guess)),
        '"""',
        "",
        *_imports(guess, body),
        *(["", ""] if functions else [""]),
        body,
        "",
        "test_kernels = pytest_pallas.suite(SPEC)",
        "",
    ]
    return "\n".join(lines)


def gaps(guess: Guess) -> Iterator[str]:
    """What a person must fill in, or look at, one sentence each."""
    if not guess.loaded.reference:
        alike = f"; is it {guess.alike}?" if guess.alike else ""
        yield f"the reference: the same function in jnp{alike}"
    if not guess.traced:
        yield "the inputs: no call that was tried can be traced"
    elif guess.found.trace.reference_problem:
        yield f"the reference or the inputs: {guess.found.trace.reference_problem}"
    if guess.traced and not guess.found.trace.kernels:
        yield f"the function: {guess.loaded.short} has no Pallas kernel for these arguments"
    for each in integers_of(guess):
        yield f"the values of {each.leaf}: guessed from its name"


def _summary(guess: Guess) -> str:
    found = guess.found
    said = sorted({leaf.said_by for leaf in found.leaves if leaf.said_by and not found.ignored})
    sources = ", ".join([*said, f"{found.lab.tries or found.tries} traces"])
    if not guess.traced:
        return f"No call that was tried can be traced; see {FILL_IN} below."
    see = f"; see {FILL_IN} below" if any(gaps(guess)) else ""
    return f"Shapes, dtypes and options are those that it accepted ({sources}){see}."


def _imports(guess: Guess, body: str) -> Iterator[str]:
    yield "from __future__ import annotations"
    yield ""
    if "types.SimpleNamespace(" in body:
        yield from ("import types", "")
    if re.search(r"\bst\.", body):
        yield "from hypothesis import strategies as st"
    names = [guess.loaded.name.partition(".")[0]]
    names += [guess.loaded.reference] if guess.loaded.reference else []
    names += [name for name in _types(guess) if re.search(rf"\b{name}\(", body)]
    words = [f"{n} as {_imported(n)}" if n != _imported(n) else n for n in dict.fromkeys(names)]
    words.sort(key=lambda word: (not word[0].isupper(), word))
    yield f"from {guess.loaded.module} import {', '.join(words)}"
    yield ""
    yield "import pytest_pallas"
    yield "from pytest_pallas import KernelSpec"
    if "pst." in body:
        yield "from pytest_pallas import strategies as pst"


def _imported(name: str) -> str:
    """The name of an imported function here, where ``call`` and ``reference`` are taken."""
    return f"_{name}" if name in ("reference", "call") else name


def _types(guess: Guess) -> Iterator[str]:
    """The types of pytrees."""
    for operand in guess.found.operands:
        match = re.match(r"([A-Z_a-z]\w*)\(", operand.build)
        if match:
            yield match.group(1)


def _adapted(guess: Guess) -> bool:
    """Whether the function cannot be called with its arrays in order."""
    return _order(guess) != list(range(len(guess.found.leaves))) or not all(
        operand.plain for operand in guess.found.operands
    )


def _order(guess: Guess) -> list[int]:
    """The numbers of the arrays, those that depend on others last."""
    late = [each.number for each in integers_of(guess)]
    return [n for n in range(len(guess.found.leaves)) if n not in late] + late


def _functions(guess: Guess) -> Iterator[list[str]]:
    """The functions of the module: one for a call by arrays alone, and the reference."""
    loaded = guess.loaded
    if _adapted(guess):
        yield _call(guess, "call", loaded.name, f"``{loaded.short}`` with arrays in order.")
    if not loaded.reference:
        yield _missing_reference(guess)
    elif _adapted(guess):
        name = _imported(loaded.reference)
        yield _call(guess, "reference", name, f"``{loaded.reference}`` with arrays in order.")


def _call(guess: Guess, name: str, function: str, says: str) -> list[str]:
    leaves = [guess.found.leaves[n].name for n in _order(guess)]
    words: list[str] = []
    for operand in guess.found.operands:
        value = operand.build.format(*(leaf.name for leaf in operand.leaves))
        words.append(f"{operand.name}={value}" if operand.keyword else value)
    function = _imported(function)
    lines = [f"def {name}({', '.join([*leaves, '**options'])}):", f'    """{says}"""']
    call = f"    return {function}({', '.join([*words, '**options'])})"
    if len(call) <= 100:
        return [*lines, call]
    return [
        *lines,
        f"    return {function}(",
        *(f"        {word}," for word in [*words, "**options"]),
        "    )",
    ]


def _missing_reference(guess: Guess) -> list[str]:
    leaves = [guess.found.leaves[n].name for n in _order(guess)]
    options = list(guess.options)
    words = [*leaves, *(["*", *options] if options else [])]
    tried = ", ".join(_tried(guess))
    lines = [
        f"def reference({', '.join(words)}):",
        '    """The same function in jnp."""',
        *_wrapped(
            "    # ",
            f"{FILL_IN}: plain jax.numpy, without Pallas. It follows the dtypes of its arguments. "
            f"{guess.loaded.module} has none of {tried}.",
        ),
    ]
    if guess.alike:
        lines += _wrapped(
            "    # ",
            f"{guess.alike} has the same name and returns the same shapes; if it computes the "
            f"same, write reference={guess.alike} below.",
        )
    problem = f"{FILL_IN} the reference of {guess.loaded.short}: the same function in jnp"
    return [*lines, f'    raise NotImplementedError("{problem}")']


def _tried(guess: Guess) -> list[str]:
    from pytest_pallas.scaffold.loading import REFERENCES

    return [pattern.format(guess.loaded.short) for pattern in REFERENCES]


def _spec(guess: Guess) -> Iterator[str]:
    loaded, found = guess.loaded, guess.found
    kernel = "call" if _adapted(guess) else _imported(loaded.name)
    gpu = found.trace.platforms == frozenset({"gpu"})
    reference = _imported(loaded.reference) if loaded.reference else "reference"
    yield "SPEC = KernelSpec("
    yield f'    name="{loaded.short}",'
    yield f'    kernel={{"gpu": {kernel}}},' if gpu else f"    kernel={kernel},"
    yield f"    reference={'reference' if _adapted(guess) else reference},"
    yield from _said(guess)
    yield from _inputs(guess)
    if guess.vmap_error:
        yield from _wrapped("    # ", f"jax.vmap: {guess.vmap_error}")
        yield "    vmappable=False,"
    if guess.differentiable and guess.traced:
        order = _order(guess)
        positions = tuple(sorted(order.index(n) for n in guess.differentiable))
        yield f"    differentiable={positions},"
    yield "    # More to say: differentiable=, exact=, batch_axes=, relations=, raises=, typical=."
    yield ")"


def _said(guess: Guess) -> Iterator[str]:
    """Comments on how the inputs were found, and what is to do."""
    found = guess.found
    for text in found.ignored:
        yield from _wrapped("    # ", f"Not followed, because no call can be traced so: {text}.")
    if not guess.traced:
        yield from _wrapped(
            "    # ",
            f"{FILL_IN} the shapes, dtypes and keyword arguments. {found.tries} calls were tried, "
            f"such as {found.attempt}. They raised:",
        )
        for error, count in found.errors[:4]:
            yield from _wrapped("    #   ", f"{count} times {error}")
        return
    if found.trace.reference_problem:
        yield from _wrapped(
            "    # ",
            f"{FILL_IN}: for {found.attempt} the kernel can be traced, and the reference not "
            f"rightly: {found.trace.reference_problem}.",
        )
    if found.trace.wrong_blocks:
        yield from _wrapped(
            "    # ",
            f"For {found.attempt} the grid reads or writes wrong blocks; see the check grid.",
        )
    if not found.trace.kernels:
        yield from _wrapped(
            "    # ", f"{FILL_IN}: for {found.attempt} there is no Pallas kernel in it."
        )
    for text in guess.left_out:
        yield from _wrapped("    # ", text)
    for dim in guess.dims.dims:
        if dim.refused is not None:
            size, error = dim.refused
            yield from _wrapped("    # ", f"{dim.name}={size} was refused: {error}")


def _inputs(guess: Guess) -> Iterator[str]:
    """The strategy."""
    integers = integers_of(guess)
    late = {each.number for each in integers}
    order = [n for n in _order(guess) if n not in late]
    if not order and not late and not guess.tuning and not guess.options:
        yield "    inputs=st.just(()),"
        return
    arrays = _arrays(guess, order)
    if not integers and not guess.tuning and not guess.options:
        yield from _indented(f"inputs={arrays},", 4)
        return
    yield "    inputs=pst.arguments("
    yield from _indented(f"{arrays},", 8)
    if integers:
        yield "        then=lambda drawn: {"
        for each in integers:
            yield from _wrapped("            # ", f"{FILL_IN}: {each.comment}")
            yield f'            "{each.leaf}": {each.strategy},'
        yield "        },"
    for word, values in (("options", guess.options), ("tuning", guess.tuning)):
        if values:
            yield from _indented(f"{word}={{{_keywords(values)}}},", 8)
    yield "    ),"


def _keywords(values: Mapping[str, Sequence[Any]]) -> str:
    return ", ".join(
        f'"{name}": {_value(each[0]) if len(each) == 1 else _choice(each)}'
        for name, each in values.items()
    )


def _choice(values: Sequence[Any]) -> str:
    if set(values) == {False, True} and all(isinstance(value, bool) for value in values):
        return "st.booleans()"
    return f"st.sampled_from([{', '.join(map(_value, values))}])"


def _value(value: Any) -> str:
    text = repr(value)
    return text.replace("'", '"') if isinstance(value, str) and '"' not in text else text


def _arrays(guess: Guess, order: Sequence[int]) -> str:
    """``pst.arrays(...)`` of some of the arrays."""
    names = {axis: dim.name for dim in guess.dims.dims for axis in dim.axes}
    shapes = guess.found.attempt.shapes
    texts = [" ".join(names[n, axis] for axis in range(len(shapes[n]))) or "()" for n in order]
    text = ", ".join(texts)
    shown = [dim for dim in guess.dims.dims if any(n in order for n, _ in dim.axes)]
    labels = {dim.name for dim in shown}
    constraints = [
        each for each in guess.dims.constraints if set(re.findall(r"[A-Za-z_]\w*", each)) <= labels
    ]
    if constraints:
        text += "; " + ", ".join(constraints)
    if len(texts) == 1 and texts == ["()"]:
        text = "()"
    words = [f'"{text}"', f"dtype={_dtype(guess, order)}"]
    named = [dim for dim in shown if not dim.name.isdigit()]
    multiples = {dim.name: dim.multiple_of for dim in named if dim.multiple_of > 1}
    sizes = {dim.name: list(dim.sizes) for dim in named if dim.sizes}
    if multiples:
        words.append(f"multiple_of={_mapping(multiples)}")
    if sizes:
        words.append(f"dims={_mapping(sizes)}")
    return f"pst.arrays({', '.join(words)})"


def _mapping(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}"


def _dtype(guess: Guess, order: Sequence[int]) -> str:
    """The argument ``dtype`` for some of the arrays."""
    rows = list(dict.fromkeys(tuple(row[n] for n in order) for row in guess.dtypes))
    if all(len(set(row)) <= 1 for row in rows):
        names = [row[0] for row in rows if row]
        if len(names) == 1:
            return f'"{names[0]}"'
        if not names:
            return '"float32"'
        return f"pst.dtypes({', '.join(map(_value, names))})"
    if len(rows) == 1:
        return f"({', '.join(map(_value, rows[0]))})"
    return f"pst.dtype_pairs({', '.join(f'({", ".join(map(_value, row))})' for row in rows)})"


def _wrapped(prefix: str, text: str) -> list[str]:
    """A text in lines of up to 100 characters, each with a prefix."""
    return textwrap.wrap(
        " ".join(text.split()),
        100,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
    )


def _indented(text: str, by: int) -> list[str]:
    """A call on one line if it fits, else one argument a line."""
    line = f"{' ' * by}{text}"
    if len(line) <= 100:
        return [line]
    head, opening, rest = re.match(r"([^({]*)([({])(.*)$", text, re.DOTALL).groups()  # pyright: ignore
    closing = {"(": ")", "{": "}"}[opening]
    inner, _, tail = rest.rpartition(closing)
    parts = _split(inner)
    return [
        f"{' ' * by}{head}{opening}",
        *(line for part in parts for line in _indented(f"{part},", by + 4)),
        f"{' ' * by}{closing}{tail}",
    ]


def _split(text: str) -> list[str]:
    """The arguments of a call: divided at commas outside of brackets and strings."""
    parts, depth, quoted, current = list[str](), 0, False, ""
    for letter in text:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 and not quoted:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return [*parts, current.strip()] if current.strip() else parts
