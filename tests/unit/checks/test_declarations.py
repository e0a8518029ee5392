"""Each check and sanitizer is one declaration on the function that implements it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_pallas import checks
from pytest_pallas.checks import Check, declare_check, declare_sanitizer

LISTS = [
    pytest.param(checks.MODULES, checks.NAMES, checks.declared_checks, "check", id="checks"),
    pytest.param(
        checks.SANITIZER_MODULES,
        checks.SANITIZERS,
        checks.declared_sanitizers,
        "sanitizer",
        id="sanitizers",
    ),
]
ALL = {check.name: check for check in (*checks.declared_checks(), *checks.declared_sanitizers())}


def declaring(folder: Path) -> Iterator[tuple[str, str]]:
    """The functions of a folder that are declared as checks, and their modules, not imported."""
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            calls = [d for d in getattr(node, "decorator_list", ()) if isinstance(d, ast.Call)]
            if {ast.unparse(call.func) for call in calls} & {"declare_check", "declare_sanitizer"}:
                yield node.name, path.stem


def answering(folder: Path) -> Iterator[tuple[str, str]]:
    """The functions of a folder that answer a context, as ``Check.run`` does, and their modules."""
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            given = [arg.annotation and ast.unparse(arg.annotation) for arg in node.args.args]
            if (
                given == ["CheckContext"]
                and node.returns
                and ast.unparse(node.returns) == "CheckResult"
            ):
                yield node.name, path.stem


def test_the_lists_are_what_the_modules_declare():
    folder = Path(checks.__file__).parent
    modules = {**checks.MODULES, **checks.SANITIZER_MODULES}
    listed = sorted((name.replace("-", "_"), module) for name, module in modules.items())
    assert sorted(declaring(folder)) == listed == sorted(answering(folder))


@pytest.mark.parametrize(("modules", "names", "declared", "kind"), LISTS)
def test_each_module_declares_a_check_of_its_name(modules, names, declared, kind):
    assert tuple(check.name for check in declared()) == names
    for module, check in zip(modules.values(), declared(), strict=True):
        assert isinstance(check, Check)
        assert check.kind == kind
        assert check.run.__module__ == f"{checks.__name__}.{module}"
        assert check.run.__name__ == check.name.replace("-", "_")


def test_a_module_that_answers_without_a_declaration_is_found(tmp_path):
    (tmp_path / "late.py").write_text("def late(context: CheckContext) -> CheckResult:\n    ...\n")
    (tmp_path / "helping.py").write_text("def helping(context: CheckContext) -> bool:\n    ...\n")
    assert list(answering(tmp_path)) == [("late", "late")]
    assert list(declaring(tmp_path)) == []


def test_a_declaration_makes_a_check_of_a_function():
    def late(context):
        """Whether it came late."""
        return context, "late"

    found = declare_check("late", asks="did it come late?", executes=False)(late)
    assert (found.name, found.kind, found.executes, found.run) == ("late", "check", False, late)
    assert found("a context") == ("a context", "late")
    assert found.__doc__ == "Whether it came late."
    assert declare_sanitizer("late", asks="?", opt_in=True)(late).kind == "sanitizer"
    with pytest.raises(TypeError, match="nope"):
        declare_check("late", asks="?", nope=True)(late)


def test_one_check_is_the_base():
    assert [name for name, check in ALL.items() if check.base] == ["forward"]


def test_a_gradient_can_be_traced_for_mutants():
    for each in ALL.values():
        assert each.differentiates != "only" or each.program is not None
