"""Private names of other libraries stand in the two packages ``compat`` only."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPAT = [ROOT / "pallas_sim" / "compat", ROOT / "pytest_pallas" / "compat"]
FILES = [
    path
    for folder in ("pallas_sim", "pytest_pallas", "reference_kernels")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.parent not in COMPAT
]

#: Modules that their libraries do not document, as in ``importlib.import_module("jax._src.core")``.
#: (Dialects of MLIR are what kernels inline: ``jax.extend.mlir`` has not all of them.)
MODULES = re.compile(
    r"^(jax\._src|jaxlib\.(?!mlir\.dialects)|_pytest\.|hypothesis\.internal)(\.|\b)"
)

#: Modules of this project, and the one that is none.
OURS = ("pallas_sim", "pytest_pallas", "reference_kernels", "__future__")

#: What every private name is written with; ``self._x`` and ``cls._x`` are not private here.
HINTS = re.compile(
    r"jax\._src|jaxlib|_pytest\.|hypothesis\.internal|import _|"
    r"(?<!\bself)(?<!\bcls)\._[a-z]|[\"']_[a-z]\w*[\"']|\)\.__(qual)?name__"
)

#: What the standard library documents although it begins with ``_``.
DOCUMENTED = frozenset(
    {"_replace", "_asdict", "_fields", "_field_defaults", "_make", "_exit", "_getframe"}
)


def private_names(source: str, classes: frozenset[str] = frozenset()) -> list[str]:
    """What a module uses of other libraries although it is private, as ``line: name``.

    Args:
      source: of the module.
      classes: names of classes that are not of other libraries.
    """
    if not HINTS.search(source):
        return []  # ten times as quick
    tree = ast.parse(source)
    own = classes | {name for node in ast.walk(tree) for name in _defined(node)}
    docs = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return sorted(
        {
            f"{node.lineno}: {name}"
            for node in ast.walk(tree)
            if id(node) not in docs
            for name in _used(node, own)
        }
    )


def _defined(node: ast.AST) -> Iterator[str]:
    """Names that a node gives a meaning of this package's own."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ):
        yield node.attr


def _used(node: ast.AST, own: frozenset[str]) -> Iterator[str]:
    """Private names in a node."""
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names if _is_hidden(each.name))
    elif isinstance(node, ast.ImportFrom) and not node.level:
        if not (node.module or "").startswith(OURS):
            paths = [f"{node.module}.{each.name}" for each in node.names]
            yield from (path for path in paths if _is_hidden(path))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if MODULES.match(node.value):
            yield node.value
    elif isinstance(node, ast.Attribute) and _is_private(node.attr, own):
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
            yield node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("getattr", "hasattr", "setattr", "delattr") and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(str(name.value), own):
                yield str(name.value)
    elif isinstance(node, ast.Compare) or (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("startswith", "endswith", "get")
    ):
        yield from _class_names(node, own)


def _class_names(node: ast.Compare | ast.Call, own: frozenset[str]) -> Iterator[str]:
    """Names that ``type(x).__name__`` is compared with: of classes that are not exported."""
    inside = list(ast.walk(node))
    asked = any(
        isinstance(each, ast.Attribute)
        and each.attr in ("__name__", "__qualname__")
        and isinstance(each.value, ast.Call)
        and isinstance(each.value.func, ast.Name)
        and each.value.func.id == "type"
        for each in inside
    )
    if asked:
        words = [each.value for each in inside if isinstance(each, ast.Constant)]
        yield from (word for word in words if isinstance(word, str) and word not in own)


def _is_private(name: str, own: frozenset[str]) -> bool:
    dunder = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not dunder and name not in DOCUMENTED and name not in own


def _is_hidden(path: str) -> bool:
    return bool(MODULES.match(path)) or any(part.startswith("_") for part in path.split("."))


@pytest.fixture(scope="module")
def classes():
    """The classes of this package."""
    found = (re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE) for path in FILES)
    return frozenset(name for names in found for name in names)


def test_they_stand_in_compat_only(classes):
    found = {
        str(path.relative_to(ROOT)): names
        for path in FILES
        if (names := private_names(path.read_text(), classes))
    }
    assert not found


def test_compat_itself_has_some():
    without = [
        path.name
        for folder in COMPAT
        for path in sorted(folder.glob("*.py"))
        if path.name != "__init__.py" and not private_names(path.read_text())
    ]
    assert not without


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import jax._src.core", ["1: jax._src.core"]),
        ("from jax._src import core", ["1: jax._src.core"]),
        ("from jax import _src", ["1: jax._src"]),
        ("from jaxlib.mlir import ir", ["1: jaxlib.mlir.ir"]),
        ("import _pytest.config as c", ["1: _pytest.config"]),
        ("from hypothesis.internal.conjecture import providers", None),
        ("importlib.import_module('jax._src.core')", ["1: jax._src.core"]),
        ("f('jax._src.pallas', 1)", ["1: jax._src.pallas"]),
        ("x = dtype._impl.name", ["1: _impl"]),
        ("mesh._shape = 1", ["1: _shape"]),
        ("getattr(dtype, '_impl', None)", ["1: _impl"]),
        ("hasattr(dtype, '_impl')", ["1: _impl"]),
        ("type(x).__name__ == 'NDIndexer'", ["1: NDIndexer"]),
        ("type(x).__name__ in ('A', 'B')", ["1: A", "1: B"]),
        ("type(x.aval).__name__.endswith('Ref')", ["1: Ref"]),
    ],
)
def test_what_is_private(source, expected):
    found = private_names(source)
    assert found == expected if expected is not None else len(found) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from jax.extend.core import Var",
        "import jax.numpy as jnp",
        "from jaxlib.mlir.dialects import llvm",
        "from __future__ import annotations",
        "from pytest_pallas._version import __version__",
        '"""As ``jax._src.core`` does."""',
        "'/jax/_src/' in file",
        "class A:\n    _x = 1\n\n    def f(self):\n        return self._x + A._x",
        "class A:\n    def __init__(self):\n        self._x = 1\n\n    def f(self, other: 'A'):\n"
        "        return other._x",
        "key._replace(core=1)",
        "os._exit(1)",
        "type(x).__name__",
        "f'{type(x).__name__}: {x}'",
        "class Suite: pass\nassert type(x).__name__ != 'Suite'",
    ],
)
def test_what_is_not(source):
    assert private_names(source) == []
