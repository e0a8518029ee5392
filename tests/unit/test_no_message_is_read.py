"""Facts are data: no code of the package reads a text that the package wrote.

What comes from outside (compilers, JAX, pytest, command lines, source files) is text, and is read.
Where this test cannot tell such a text from one of ours, the function is in ``OUTSIDE`` with a
reason. It tells by form: ``str(...)``, f-strings, and the attributes and variables below.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pallas_sim
import pytest_pallas

PACKAGES = [Path(package.__file__).parent for package in (pallas_sim, pytest_pallas)]

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
OUTSIDE: dict[tuple[str, str], str] = {
    (
        "distribute/fleet/worker.py",
        "compared",
    ): "the last line that pytest printed in another process",
    # From outside.
    ("compat/testing.py", "_option_of"): "a word of the command line, as users write it",
    ("compile/refusals.py", "_is_only"): "a line of a compiler's message",
    ("compile/refusals.py", "full_text"): "an exception of JAX may have no message",
    ("compile/service.py", "remarks"): "the log of a compiler",
    ("compile/backends.py", "_described"): "what a compiler said, cut to its first line",
    ("backends/execution.py", "readable"): "the traceback of a callback, which JAX has as text",
    ("backends/statuses.py", "status_of"): "a status of XLA, which JAX has as text",
    ("compile/backends.py", "lower"): "JAX names another platform in its message",
    ("decoding.py", "__init__"): "the path of a part of the data, which begins with a dot",
    ("checks/dtype.py", "_differences"): "the repr of JAX's PyTreeDef",
    ("checks/export.py", "_exported"): "JAX names another platform in its message",
    ("compat/testing.py", "worker_count"): "what pytest-xdist takes as --tx",
    ("pallas_sim/compat/jaxprs.py", "name_of_space"): "the repr of a memory space of JAX",
    ("pallas_sim/exploration/witness.py", "digest_of"): "JAX has the equations of a jaxpr as text",
    ("pallas_sim/compat/source.py", "home_of"): "JAX has the place of a function as text",
    ("pallas_sim/chips.py", "itemsize"): "the name of a dtype",
    ("doctor.py", "_trial"): "the lines of an error, each indented",
    ("scaffold.py", "_value"): "the repr of an option's value",
    ("scaffold_read.py", "_leaf"): "jaxtyping has the dims of an annotation as text",
    ("spec.py", "matches"): "the message of a kernel, which a spec gives a pattern for",
    ("report/collect.py", "_outcome"): "pytest has the reason of a skip, and of xfail, as text",
    ("distribute/merge.py", "_cause"): "what pytest says of a failure, cut to its first line",
    ("distribute/resume.py", "finished"): "the name of a property of a report",
    ("run/fuzzing.py", "blob_of"): "hypothesis says how to reproduce a failure in a note",
    ("replay/script.py", "_attribute"): "the qualified name of a function",
    ("run/collection.py", "holds"): "the name of a module",
    ("pallas_sim/gpu/inline/code.py", "_type"): "a type of MLIR",
    ("pallas_sim/gpu/inline/ptx.py", "_assembly"): "a type of MLIR",
    ("pallas_sim/rules/mosaic_copies.py", "_load_of"): "the name of a mode of JAX",
    ("pallas_sim/rules/kernels.py", "_scratch"): "the repr of a memory space of JAX, with its mesh",
    ("pallas_sim/rules/triton.py", "_inline_assembly"): "PTX that the kernel has",
    ("spec.py", "__post_init__"): "the name of a package",
    ("draw/signatures.py", "_array"): "an annotation of jaxtyping",
    # Layout: no fact is taken from the text.
    ("compile/backends.py", "_dump"): "the name of a file",
    ("checks/grid.py", "_text"): "lines are indented",
    ("pallas_sim/errors.py", "one_line"): "the message of another package's error, on one line",
    (
        "pallas_sim/errors.py",
        "first_line",
    ): "the one function that cuts a message, for lists of errors",
    ("pallas_sim/errors.py", "__str__"): "lines are indented",
    ("replay/values.py", "_name_of"): "an address is left out of a repr",
    ("report/drawings.py", "_text"): "a number without its zero",
    ("report/cards.py", "failure"): "lines are shown one by one",
    ("replay/script.py", "_header"): "lines become comments",
    ("replay/script.py", "_bracketed"): "a literal of several lines gets brackets",
    ("pallas_sim/timeline.py", "_order"): "threads in natural order: 10 after 9",
}


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


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def texts_read(node: ast.AST) -> list[ast.expr]:
    """The texts that a node takes apart or looks into."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[_, *texts]):
            return texts if name in MATCHING else []
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=args):
            pattern = args if name in MATCHING else []
            return [*([value] if name in READING else []), *pattern]
        case ast.Compare(ops=[ast.In() | ast.NotIn()], left=left, comparators=[text]):
            made = isinstance(text, ast.Call | ast.JoinedStr)  # else a list may be what it is in
            return [text] if made or isinstance(left, ast.JoinedStr) or _is_text(left) else []
        case _:
            return []


def functions_of(source: str) -> list[tuple[str, list[ast.AST]]]:
    """The functions of a module by name, "" for itself, with the calls and the like in each."""
    found: list[tuple[str, list[ast.AST]]] = [("", [])]
    stack = [(ast.parse(source), found[0][1])]
    while stack:
        node, nodes = stack.pop()
        if isinstance(node, ast.FunctionDef):
            nodes = []
            found.append((node.name, nodes))
        elif isinstance(node, ast.Call | ast.Compare | ast.Assign):
            nodes.append(node)
        stack += [(child, nodes) for child in ast.iter_child_nodes(node)]
    return found


def readings(source: str) -> Iterator[tuple[str, str]]:
    """Where a module reads a text of ours: the function, and the code."""
    for function, nodes in functions_of(source):
        ours = set(NAMES)
        for node in nodes:
            if isinstance(node, ast.Assign) and is_ours(node.value, ours):
                ours |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        for node in nodes:
            if any(is_ours(text, ours) for text in texts_read(node)):
                yield function, ast.unparse(node)


def colons(source: str) -> Iterator[tuple[str, str]]:
    """Where a module divides a text at a colon: the function, and the code."""
    if '(":")' not in source:
        return
    for function, nodes in functions_of(source):
        for node in nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="partition" | "rpartition" | "split" | "rsplit"),
                    args=[ast.Constant(value=":")],
                ):
                    yield function, ast.unparse(node)
                case _:
                    pass


@functools.cache
def everywhere(
    find: Callable[[str], Iterator[tuple[str, str]]],
) -> dict[tuple[str, str], list[str]]:
    """What ``find`` finds in all modules: the code, by file and function."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in sorted(path for package in PACKAGES for path in package.rglob("*.py")):
        simulator = PACKAGES[0] in path.parents
        folder = PACKAGES[0].parent if simulator else PACKAGES[1]
        name = path.relative_to(folder).as_posix()
        for function, code in find(path.read_text(encoding="utf-8")):
            found.setdefault((name, function), []).append(code)
    return found


def test_no_code_reads_a_message():
    new = {place: code for place, code in everywhere(readings).items() if place not in OUTSIDE}
    assert not new, "carry this fact as data, or add the function to OUTSIDE with a reason"


#: By file and function: what is divided at a colon there, which may not be ``file:line``.
COLONS = {
    ("candidates/source.py", "divided"): "FILE.py:FUNCTION, as users write it",
    ("pallas_sim/compat/compilers.py", "_kernel_primitives"): "module:name of a table of JAX",
    ("compat/distributed.py", "host"): "host:port, as JAX has the address of a coordinator",
    ("compat/distributed.py", "port"): "host:port, as JAX has the address of a coordinator",
    ("barriers.py", "load_spec"): "module:name, as users write it",
    ("options.py", "fleet"): "HOST:PORT, as users write it",
    ("options.py", "distributed"): "I/N@HOST:PORT, as users write it",
    ("pallas_sim/chips.py", "of"): "backend:target, as users write it",
    ("loading.py", "_divided"): "module:function, as users write it",
    ("pallas_sim/inspector.py", "_places"): "the stop_at that a user gave",
    ("workers/child.py", "_load"): "module:function, the syntax of entry points",
}


def test_one_function_reads_a_line_of_source():
    found = set(everywhere(colons))
    assert found == {("pallas_sim/findings.py", "read"), *COLONS}


def test_each_exception_is_needed_and_has_a_reason():
    assert set(OUTSIDE) <= set(everywhere(readings))
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
