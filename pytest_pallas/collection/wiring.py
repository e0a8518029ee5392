"""Add suites to pytest's collection.

Importing this module does not import jax: the controller of pytest-xdist collects nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_pallas.collection.discovery import Location, locate, spec_file_of
from pytest_pallas.collection.suite import Suite
from pytest_pallas.session import current
from pytest_pallas.spec import KernelSpec

#: The locations that were added whole to the session's arguments, so that all files are collected.
_WHOLE = pytest.StashKey[list[Location]]()
#: Files of suites that could not be imported, with the class of the collector that reported it.
_FAILED = pytest.StashKey[dict[Path, type[pytest.Collector]]]()
_LOCATIONS = pytest.StashKey[list[Location]]()


def add_suite(config: pytest.Config) -> None:
    """Add the folders of ``--pallas-suite`` to the session's arguments.

    Without file arguments, ``--pallas-suite`` replaces testpaths.
    """
    directory = config.invocation_params.dir
    names = current(config).options.suite
    config.stash[_LOCATIONS] = locations = [locate(name, directory) for name in names]
    # A wrong spec must not stop the others; pytest still exits with 1.
    config.option.continue_on_collection_errors = True
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = []
    _add_spec_files(config, locations)
    given = [Path(directory, arg.partition("::")[0]).resolve() for arg in config.args]
    config.stash[_WHOLE] = []
    for location in locations:
        if not any(at == path or at in path.parents for at in location.paths for path in given):
            config.args.extend(str(path) for path in location.paths)
            config.stash[_WHOLE].append(location)


def _add_spec_files(config: pytest.Config, locations: Sequence[Location]) -> None:
    """The file of a kernel stands for its specs, which may be in the file beside it."""
    directory = config.invocation_params.dir
    given = [Path(directory, arg).resolve() for arg in config.args if "::" not in arg]
    for path in given:
        file = spec_file_of(path) if path.suffix == ".py" else None
        inside = any(location.module_of(path) is not None for location in locations)
        if inside and file is not None and file not in given:
            config.args.append(str(file))


def require_specs(config: pytest.Config) -> None:
    """Reject a suite without a spec, because its run would look like a success.

    The items cannot show this: there are none if no check or backend is left, and --lf leaves out
    files.

    Raises:
      pytest.UsageError: a package of ``--pallas-suite`` has none.
    """
    from pytest_pallas.collection.items import DEFINED

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
    """The node for a file of a suite, or None for another file."""
    for location in parent.config.stash.get(_LOCATIONS, []):
        module = location.module_of(path.resolve())
        if module is not None:
            from pytest_pallas.collection.items import SpecFile

            return SpecFile.from_parent(parent, path=path, module=module)
    return None


def reported_once(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Take the error off a report of a file of a suite, if another collector has reported it.

    pytest imports a file of a suite, too, if it is named like a test module or on the command line.
    """
    from pytest_pallas.collection.items import SpecFile

    if not isinstance(collector, SpecFile | pytest.Module):
        return
    seen = collector.config.stash.setdefault(_FAILED, {})
    if seen.setdefault(collector.path, collector.__class__) is not collector.__class__:
        report.outcome, report.longrepr, report.result = "passed", None, []


def collect_suite(
    collector: pytest.Module | pytest.Class, name: str, value: object
) -> pytest.Collector | None:
    """The node for a ``suite(...)`` in a test module, or None for another object."""
    if not isinstance(value, Suite):
        return None
    from pytest_pallas.collection.items import SpecSuite

    return SpecSuite.from_parent(collector, name=name, specs=value.specs)


def collect_hooked(
    session: pytest.Session, items: list[pytest.Item], specs: Sequence[KernelSpec]
) -> None:
    """Add the items of specs that a hook returned."""
    from pytest_pallas.collection.items import SpecSuite

    node = SpecSuite.from_parent(
        session, name="pytest_pallas_specs", nodeid="pytest_pallas_specs", specs=lambda: specs
    )
    items.extend(session.genitems(node))
