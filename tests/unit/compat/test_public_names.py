"""What of ``compat`` can go: nothing private that it uses has a public name."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import hypothesis
import jax
import jax.core
import jax.export
import pytest
from hypothesis import given, strategies

FOLDERS = [
    Path(__file__).parents[3] / package / "compat" for package in ("pallas_sim", "pytest_pallas")
]

#: Where JAX exports what is for others.
PUBLIC = [
    importlib.import_module(name)
    for name in (
        *("jax", "jax.core", "jax.dtypes", "jax.errors", "jax.export", "jax.random"),
        *("jax.sharding", "jax.tree_util", "jax.experimental", "jax.experimental.hijax"),
        *("jax.experimental.pallas", "jax.experimental.pallas.mosaic_gpu"),
        *("jax.experimental.pallas.tpu", "jax.experimental.pallas.tpu_sc"),
        *("jax.experimental.pallas.triton", "jax.extend", "jax.extend.backend"),
        *("jax.extend.core", "jax.extend.linear_util", "jax.extend.lowering"),
        *("jax.extend.pallas", "jax.extend.random", "jax.extend.sharding"),
        *("jax.extend.source_info_util", "jax.interpreters.ad", "jax.interpreters.batching"),
        *("jax.interpreters.mlir", "jax.interpreters.partial_eval"),
    )
]


def private_of(source):
    """The private modules of JAX that functions of a module use, each with names of it."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        modules = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                words = [w.value for w in ast.walk(node.value) if isinstance(w, ast.Constant)]
                imported = "import_module" in ast.unparse(node.value)
                if isinstance(target, ast.Name) and imported and len(words) == 1:
                    modules[target.id] = words[0]
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = str(modules.get(node.value.id, ""))
                if module.startswith("jax._src."):
                    yield module, node.attr


USED = sorted(
    {
        (path.stem, module, name)
        for folder in FOLDERS
        for path in folder.glob("*.py")
        for module, name in private_of(path.read_text())
    }
)


def public_names(value):
    return [
        f"{module.__name__}.{name}"
        for module in PUBLIC
        for name, each in vars(module).items()
        if each is value and not name.startswith("_")
    ]


@pytest.mark.parametrize(("home", "module", "name"), USED, ids=[".".join(u[1:]) for u in USED])
def test_what_is_private_has_no_public_name(home, module, name):
    value = getattr(importlib.import_module(module), name)
    if value is None or isinstance(value, bool | int | str | tuple):
        return  # the same for everybody
    assert not public_names(value), f"compat.{home} can use that"


def test_many_are_looked_at():
    assert len(USED) > 15
    assert len({home for home, _, _ in USED}) >= 6


def test_public_names_are_found():
    core = importlib.import_module("jax._src.core")
    assert "jax.extend.core.Var" in public_names(core.Var)
    assert "jax.core.eval_jaxpr" in public_names(core.eval_jaxpr)


def test_exports_have_no_such_options():
    parameters = inspect.signature(jax.export.export).parameters
    told = [name for name in parameters if "compatib" in name or "traceback" in name]
    assert not told, "compat.compilers.exact_exports can go"


def test_a_tracer_has_private_fields():
    assert "_line_info" in jax.core.Tracer.__slots__, "compat.tracers can go"


def test_hypothesis_has_no_public_settings_of_a_test():
    @hypothesis.settings(max_examples=1)
    @hypothesis.seed(1)
    @given(strategies.none())
    def test(value):
        del value

    offered = {name for name in vars(test.hypothesis) if not name.startswith("_")}
    assert not offered & {"settings", "seed", "database_key"}, "compat.fuzzing can go"


@pytest.mark.parametrize(
    "path",
    [path for folder in FOLDERS for path in sorted(folder.glob("[a-z]*.py"))],
    ids=lambda path: f"{path.parts[-3]}-{path.stem}",
)
def test_every_module_says_when_it_can_go(path):
    told = re.sub(r"\s+", " ", ast.get_docstring(ast.parse(path.read_text())) or "")
    found = re.search(
        r"Seen in .*\d\. It can go when .*\. Probe: ``(.+?)``(?: and ``(.+)``)?\.", told
    )
    assert found, told
    assert all((FOLDERS[0].parents[1] / probe).exists() for probe in found.groups() if probe)
