"""Find the files of a package that may have specs, and the specs of a file.

A spec is in the module of its kernel, ``matmul.py``, or beside it, in ``matmul_spec.py``, so that
the kernel can be imported and copied without the plugin. The name of the kernel's module selects
both. ``suite`` and a hook name specs that are somewhere else.

Importing this module does not import jax: the controller of pytest-xdist collects nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.errors import SpecError
from pytest_pallas.pytest_session import current
from pytest_pallas.run.commands import relative
from pytest_pallas.spec import KernelSpec


@dataclass(frozen=True)
class Location:
    """The location of a package or module of a suite.

    Attributes:
      module: its importable name.
      path: its folder if it is a package, else its file.
      spec_file: the file ``<name>_spec.py`` beside it, if there is one.
    """

    module: str
    path: Path
    spec_file: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths that pytest collects."""
        return (self.path,) if self.spec_file is None else (self.path, self.spec_file)

    def holds(self, module: str) -> bool:
        """Return whether a module is this one, a submodule, or the spec module beside it."""
        return f"{module}.".startswith(f"{self.module}.") or (
            self.spec_file is not None and module == spec_module_of(self.module)
        )

    def module_of(self, file: Path) -> str | None:
        """Return the importable name of a Python file at this location, or None."""
        if file == self.path:
            return self.module
        if file == self.spec_file:
            return spec_module_of(self.module)
        if file.suffix != ".py" or not self.path.is_dir() or self.path not in file.parents:
            return None
        parts = file.relative_to(self.path).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        return ".".join((self.module, *parts))


def spec_module_of(module: str) -> str:
    """Return the name of the spec module beside a module."""
    return f"{module}_spec"


def spec_file_of(path: Path) -> Path | None:
    """Return the spec file beside a module's file or a package's folder, if there is one."""
    file = path.with_name(f"{spec_module_of(path.stem)}.py")
    return file if file.is_file() else None


def locate(module: str, directory: Path) -> Location:
    """Find a package or module by its importable name.

    Args:
      module: the name.
      directory: the folder in which pytest started; it is searched last.

    Raises:
      pytest.UsageError: there is no such module, or it fails to import.
    """
    spec = _find(module)
    if spec is None and str(directory) not in sys.path:
        sys.path.append(str(directory))
        spec = _find(module)
    if spec is None:
        remedy = "install the package, or add its folder to the pythonpath ini value"
        if module.partition(".")[0] == "reference_kernels":
            remedy = "pip install pytest-pallas-kernels, or run pytest in a checkout"
        raise pytest.UsageError(
            f"--pallas-suite: no module named {module!r}. It must be importable: {remedy}."
        )
    if spec.submodule_search_locations:
        path = Path(next(iter(spec.submodule_search_locations))).resolve()
    elif spec.origin is None:
        raise pytest.UsageError(f"--pallas-suite: module {module!r} has no source file")
    else:
        path = Path(spec.origin).resolve()
    return Location(module, path, spec_file_of(path))


def _find(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    except Exception as error:
        raise pytest.UsageError(
            f"--pallas-suite: importing {module!r} raised {type(error).__name__}: {error}"
        ) from error


def modules_of(module: str) -> Iterator[str]:
    """Yield the names of a module, of its submodules, and of the spec module beside it.

    The module is imported when the second name is read.
    """
    yield module
    loaded = sys.modules.get(module)  # a module whose import failed has no submodules
    for submodule in pkgutil.walk_packages(getattr(loaded, "__path__", []), f"{module}."):
        yield submodule.name
    if _find(spec_module_of(module)) is not None:
        yield spec_module_of(module)


def specs_in(module: str) -> list[KernelSpec]:
    """Return the specs that a module defines, in their order, without those that it imports.

    Raises:
      SpecError: a spec is wrong, or two have one name.
    """
    loaded = importlib.import_module(module)
    file = str(getattr(loaded, "__file__", ""))
    specs: dict[int, KernelSpec] = {}
    for value in vars(loaded).values():
        for spec in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(spec, KernelSpec) and spec.file == file:
                specs[id(spec)] = spec
    names = [spec.name for spec in specs.values()]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{file} defines two specs with the name {name!r}")
    return list(specs.values())


# Specs as tests: found in packages, by a hook, or by one line in a test module.


@dataclass(frozen=True)
class Suite:
    """Specs to verify, in a test module; see ``suite``."""

    sources: tuple[KernelSpec | str, ...]

    def specs(self) -> Iterator[KernelSpec | SpecError]:
        """Yield the specs, or an error in place of one. It imports the named modules."""
        for source in self.sources:
            if isinstance(source, KernelSpec):
                yield source
                continue
            for name in modules_of(source):
                try:
                    yield from specs_in(name)
                except SpecError as error:
                    yield error
                except Exception as error:
                    yield SpecError(
                        f"suite({source!r}): importing {name!r} raised "
                        f"{type(error).__name__}: {error}"
                    )


def suite(*sources: KernelSpec | str) -> Suite:
    """Make every check of some specs a test of the module that this is assigned in.

    ::

        from pytest_pallas import suite
        from mykernels.matmul_spec import SPEC

        test_kernels = suite(SPEC)      # or suite("mykernels"), the whole package

    Args:
      *sources: specs, and names of packages or modules with specs, in the module or in
        ``<module>_spec.py`` beside it.

    Raises:
      SpecError: a source is neither a spec nor a name.
    """
    for source in sources:
        if not isinstance(source, (KernelSpec, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"suite() takes specs and names of modules, not {source!r}")
    return Suite(sources)


# The nodes of files and suites, whose items are made when they are collected.


#: The modules of a suite that were collected, and whether they define specs.
DEFINED = pytest.StashKey[dict[str, bool]]()


class SpecFile(pytest.File):
    """A Python file of a suite; collects the specs that it defines."""

    def __init__(self, *, module: str, **rest: Any) -> None:
        """Make the node for the file of ``module``."""
        super().__init__(**rest)
        self.module = module

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Yield the items of every spec in the file."""
        try:
            specs = specs_in(self.module)
        except SpecError as error:
            raise self.CollectError(str(error)) from None
        self.config.stash.setdefault(DEFINED, {})[self.module] = bool(specs)
        for spec in specs:
            yield from _nodes_of(self, spec)


class SpecSuite(pytest.Collector):
    """Specs that do not come from a file of a suite: from a hook, or from a test module."""

    def __init__(
        self, *, specs: Callable[[], Iterable[KernelSpec | SpecError]], **rest: Any
    ) -> None:
        """Make the node for the specs that ``specs()`` returns."""
        super().__init__(**rest)
        self.specs = specs

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Yield the items of every spec, and a node for every error."""
        names: set[str] = set()
        for spec in self.specs():
            if isinstance(spec, SpecError):
                yield WrongSpec.from_parent(self, name=self.name, problem=str(spec))
            elif spec.name in names:
                problem = f"{self.name} has two specs with the name {spec.name!r}; see {spec.file}"
                yield WrongSpec.from_parent(self, name=spec.name, problem=problem)
            else:
                names.add(spec.name)
                yield from _nodes_of(self, spec)


class WrongSpec(pytest.Collector):
    """A spec that cannot be verified: a collection error, which does not stop other specs."""

    def __init__(self, *, problem: str, **rest: Any) -> None:
        """Make the node that reports ``problem``."""
        super().__init__(**rest)
        self.problem = problem

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Report the problem."""
        raise self.CollectError(self.problem)


def _nodes_of(
    parent: pytest.Collector, spec: KernelSpec
) -> Iterator[pytest.Item | pytest.Collector]:
    """Yield the items of one spec, or one node that reports its problem."""
    from pytest_pallas.run.nodes import spec_items

    try:
        yield from spec_items(parent, spec)
    except SpecError as error:
        yield WrongSpec.from_parent(parent, name=spec.name, problem=str(error))


# Add suites to pytest's collection.


#: The locations that were added whole to the session's arguments, so that all files are collected.
_WHOLE = pytest.StashKey[list[Location]]()
#: Files of suites that could not be imported, with the class of the collector that reported it.
_FAILED = pytest.StashKey[dict[Path, type[pytest.Collector]]]()
_LOCATIONS = pytest.StashKey[list[Location]]()


def add_suite(config: pytest.Config) -> None:
    """Add the folders of ``--pallas-suite`` to the session's arguments.

    Without file arguments, ``--pallas-suite`` replaces testpaths; an ini value comes in addition.
    """
    directory = config.invocation_params.dir
    names = current(config).options.suite
    config.stash[_LOCATIONS] = locations = [locate(name, directory) for name in names]
    # A wrong spec must not stop the others; pytest still exits with 1.
    config.option.continue_on_collection_errors = True
    on_command_line = config.getoption("pallas_suite") is not None
    if on_command_line and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = []
    _add_spec_files(config, locations)
    paths = [Path(directory, arg.partition("::")[0]).resolve() for arg in config.args]
    config.stash[_WHOLE] = []
    for location in locations:
        if not any(at == path or at in path.parents for at in location.paths for path in paths):
            config.args.extend(str(path) for path in location.paths)
            config.stash[_WHOLE].append(location)


def _add_spec_files(config: pytest.Config, locations: Sequence[Location]) -> None:
    """Add the files with the specs of the kernels whose files are given."""
    directory = config.invocation_params.dir
    paths = [Path(directory, arg).resolve() for arg in config.args if "::" not in arg]
    for path in paths:
        file = spec_file_of(path) if path.suffix == ".py" else None
        inside = any(location.module_of(path) is not None for location in locations)
        if inside and file is not None and file not in paths:
            config.args.append(str(file))


def require_specs(config: pytest.Config) -> None:
    """Reject a suite without a spec, because its run would look like a success.

    The items cannot show this: there are none if no check or backend is left, and --lf leaves out
    files.

    Raises:
      pytest.UsageError: a package of ``--pallas-suite`` has none.
    """
    if current(config).in_worker:
        return  # xdist collects one file at a time
    defined = config.stash.get(DEFINED, {})
    for location in config.stash.get(_WHOLE, []):
        inside = [defined[name] for name in defined if location.holds(name)]
        if inside and not any(inside):
            raise pytest.UsageError(
                f"--pallas-suite={location.module}: no KernelSpec is defined in {location.path}. "
                "Assign the spec to a module-level variable of the kernel's module, such as "
                "matmul, or of matmul_spec beside it."
            )


def require_checks(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Reject named checks if none applies, because the reason would not be visible.

    Raises:
      pytest.UsageError: no test is left; the message has the reasons.
    """
    entries = current(config).not_applicable.values()
    named = {"checks", "sanitize"} & current(config).options.explicit
    if items or not entries or not named:
        return
    reasons = {f"{entry.check}: not applicable ({entry.requirement})" for entry in entries}
    lines = "".join(f"\n  {reason}" for reason in sorted(reasons))
    raise pytest.UsageError(f"none of the selected checks applies to these kernels:{lines}")


def collect_file(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return the node for a file of a suite, or None for another file."""
    for location in parent.config.stash.get(_LOCATIONS, []):
        module = location.module_of(path.resolve())
        if module is not None:
            return SpecFile.from_parent(
                parent, path=path, module=module, nodeid=_node_id(path, parent.config.rootpath)
            )
    return None


def _node_id(path: Path, root: Path) -> str | None:
    """Return the node id of a file outside of the root, which is empty for pytest; None inside."""
    return None if path.is_relative_to(root) else Path(relative(path, root)).as_posix()


def reported_once(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Take the error off a report of a file of a suite, if another collector has reported it.

    pytest imports a file of a suite, too, if it is named like a test module or on the command line.
    """
    if not isinstance(collector, SpecFile | pytest.Module):
        return
    seen = collector.config.stash.setdefault(_FAILED, {})
    if seen.setdefault(collector.path, collector.__class__) is not collector.__class__:
        report.outcome, report.longrepr, report.result = "passed", None, []


def collect_suite(
    collector: pytest.Module | pytest.Class, name: str, value: object
) -> pytest.Collector | None:
    """Return the node for a ``suite(...)`` in a test module, or None for another object."""
    if not isinstance(value, Suite):
        return None

    return SpecSuite.from_parent(collector, name=name, specs=value.specs)


def collect_hooked(
    session: pytest.Session, items: list[pytest.Item], specs: Sequence[KernelSpec]
) -> None:
    """Add the items of specs that a hook returned."""
    node = SpecSuite.from_parent(
        session, name="pytest_pallas_specs", nodeid="pytest_pallas_specs", specs=lambda: specs
    )
    items.extend(session.genitems(node))
