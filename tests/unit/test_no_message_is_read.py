"""Facts are data: no code of the package reads a text that the package wrote.

What comes from outside (compilers, JAX, pytest, command lines, source files) is text, and is read.
Where this test cannot tell such a text from one of ours, the function is in ``OUTSIDE`` with a
reason. It tells by form: ``str(...)``, f-strings, and the attributes and variables below.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_pallas

PACKAGE = Path(pytest_pallas.__file__).parent

#: Methods that take a text apart, or look for something in it.
READING = frozenset(
    ["startswith", "endswith", "partition", "rpartition", "split", "rsplit", "splitlines"]
    + ["removeprefix", "removesuffix", "find", "rfind", "index", "count"]
)

#: Functions of ``re``, and methods of its patterns, whose last or second argument is a text.
MATCHING = frozenset(["search", "match", "fullmatch", "findall", "finditer", "sub", "split"])

#: Attributes that hold sentences of ours, or names that are made for readers.
SENTENCES = frozenset(
    ["change", "details", "explanation", "first_line", "headline", "message", "note", "notes"]
    + ["line", "plain", "problem", "reason", "requirement", "subject", "summary", "text", "thread"]
    + ["unverified", "where", "why", "words"]
)

#: Variables that hold them, whatever was assigned.
NAMES = frozenset(
    ["access", "aspect", "explanation", "fill", "finding", "message", "note", "problem", "reason"]
    + ["requirement", "sentence", "subject", "summary", "where", "why"]
)

#: By file and function: why a text that is read there is from outside, or is not read for a fact.
OUTSIDE: dict[tuple[str, str], str] = {}


def is_ours(node: ast.expr, ours: set[str]) -> bool:
    """Whether an expression is a text of the package, as far as its form tells."""
    match node:
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[argument]):
            return not isinstance(argument, ast.Constant)
        case ast.JoinedStr():
            return True
        case ast.Name(id=name):
            return name in ours
        case ast.Attribute(attr=name):
            return name in SENTENCES
        case ast.Call(func=ast.Attribute(value=value, attr="strip" | "rstrip" | "lower")):
            return is_ours(value, ours)
        case ast.BoolOp(values=values):
            return any(is_ours(each, ours) for each in values)
        case _:
            return False


def texts_read(node: ast.AST) -> list[ast.expr]:
    """The texts that a node takes apart or looks into."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[_, *texts]):
            return texts if name in MATCHING else []
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args):
            pattern = args if name in MATCHING else []
            return [*([value] if name in READING else []), *pattern]
        case ast.Compare(ops=[ast.In() | ast.NotIn()], left=left, comparators=[text]):
            words = isinstance(left, ast.Constant) and isinstance(left.value, str)
            return [text] if words or isinstance(left, ast.JoinedStr) else []
        case _:
            return []


def nodes_of(function: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, or in a module, and in no function inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from nodes_of(child)


def readings(source: str) -> Iterator[tuple[str, str]]:
    """Where a module reads a text of ours: the function, and the code."""
    tree = ast.parse(source)
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in (tree, *inside):
        nodes, ours = list(nodes_of(function)), set(NAMES)
        for node in nodes:
            if isinstance(node, ast.Assign) and is_ours(node.value, ours):
                ours |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        for node in nodes:
            if any(is_ours(text, ours) for text in texts_read(node)):
                yield getattr(function, "name", ""), ast.unparse(node)


def all_readings() -> dict[tuple[str, str], list[str]]:
    """The code that reads texts of ours, by file and function."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for function, code in readings(path.read_text(encoding="utf-8")):
            found.setdefault((path.relative_to(PACKAGE).as_posix(), function), []).append(code)
    return found


def test_no_code_reads_a_message():
    new = {place: code for place, code in all_readings().items() if place not in OUTSIDE}
    assert not new, "carry this fact as data, or add the function to OUTSIDE with a reason"


def test_each_exception_is_needed_and_has_a_reason():
    assert set(OUTSIDE) <= set(all_readings())
    assert all(len(reason) > 10 for reason in OUTSIDE.values())


@pytest.mark.parametrize(
    "code",
    [
        'str(error).startswith("race")',
        '"RACE" in str(error)',
        "finding.message.partition(': ')",
        "re.search(r'\\d+', finding.message)",
        "_NUMBER.findall(error.explanation.summary)",
        'any(note.startswith("the reference") for note in record.notes)',
        'fill.partition(":")[0]',
        "f'{name}: {why}'.split(': ')",
        "text = str(error)\ntext.splitlines()[0]",
        'f"of {name}" in comparison.where',
        'if "deadlock" not in (record.reason or ""):\n    pass',
    ],
)
def test_readings_are_seen(code):
    assert list(readings(f"def f():\n    {code.replace(chr(10), chr(10) + '    ')}"))


@pytest.mark.parametrize(
    "code",
    [
        'finding.kind == "race"',
        'option.split(",")',
        '"forward" in names',
        "np.split(values, 2)",
        "str(path)",
        'f"{a}" in chosen',
        '", ".join(record.notes)',
    ],
)
def test_other_code_is_not_a_reading(code):
    assert not list(readings(code))
