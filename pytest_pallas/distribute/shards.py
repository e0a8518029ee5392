"""Which tests a run keeps, and how they are divided: over machines, and over xdist's workers.

Tests of one kernel stay together (``scope_of``), because they share draws, traces and runs.
``keep_shard`` keeps the part of ``--pallas-shard=I/N``, ``keep_replayed`` the tests of
``--pallas-replay``. The digests at the end are what runs on several machines are compared by.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.draw.meshes import sizes_of
from pytest_pallas.options import place_of
from pytest_pallas.pytest_session import PytestSession, current, variant_of
from pytest_pallas.results import read_results
from pytest_pallas.run.collection import locate

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

    from pytest_pallas.replay.goldens import Example


def scope_of(nodeid: str, checks: Collection[str]) -> str:
    """Return the group of a test: the checks of one kernel, on all backends and meshes.

    Args:
      nodeid: of the test.
      checks: the names of all checks.

    Returns:
      ``file::kernel`` for ``file::kernel-check[backend-mesh]``, and other node ids as they are.
    """
    name = nodeid.partition("[")[0]
    for check in sorted(checks, key=len, reverse=True):
        if name.endswith(f"-{check}"):
            return name.removesuffix(f"-{check}")
    return nodeid


def scheduler_for(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Return the scheduler of a session that runs suites, unless ``--dist`` selects another one.

    It gives all checks of a kernel to one worker, because they share draws, traces and runs, and
    distributes everything else test by test.
    """
    if not current(config).options.suite or config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class SpecScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid, current(self.config).check_names)

    return SpecScheduling(config, log)


@dataclass(frozen=True)
class Group:
    """Tests that share draws and traces, and run on one machine: all checks of a kernel.

    Attributes:
      name: see ``scope_of``.
      seconds: how long they are expected to take.
    """

    name: str
    seconds: float


def assign(groups: Collection[Group], count: int) -> dict[str, int]:
    """Assign a shard, from 1 to ``count``, to each group: the same for the same groups.

    The longest group goes to the shard that has least to do so far (Graham, "Bounds on
    Multiprocessing Timing Anomalies", 1969: at most 4/3 of the best time).
    """
    loads = [0.0] * count
    shards: dict[str, int] = {}
    for group in sorted(groups, key=lambda group: (-group.seconds, group.name)):
        shard = loads.index(min(loads))
        loads[shard] += group.seconds
        shards[group.name] = shard + 1
    return shards


def expected_groups(
    names: Sequence[str], scopes: Sequence[str], seconds: Mapping[str, float]
) -> list[Group]:
    """Return the groups of tests.

    Args:
      names: node ids of the tests.
      scopes: the group of each.
      seconds: of an earlier run, by node id. A test that is not there takes the median; without an
        earlier run all take the same.
    """
    usual = median(seconds.values()) if seconds else 1.0
    total: dict[str, float] = {}
    for name, scope in zip(names, scopes, strict=True):
        total[scope] = total.get(scope, 0.0) + seconds.get(name, usual)
    return [Group(scope, spent) for scope, spent in total.items()]


def keep_shard(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of other shards.

    Raises:
      pytest.UsageError: the file with the seconds of an earlier run cannot be read.
    """
    state = current(config)
    shard = state.options.shard
    assert shard is not None
    names = [item.nodeid for item in items]
    checks = state.check_names
    scopes = [scope_of(name, checks) for name in names]
    groups = expected_groups(names, scopes, _seconds(config))
    shards = assign(groups, shard.count)
    kept = [item for item, scope in zip(items, scopes, strict=True) if shards[scope] == shard.index]
    every = sum(group.seconds for group in groups)
    mine = sum(group.seconds for group in groups if shards[group.name] == shard.index)
    state.shard_line = (
        f"shard {shard}: {len(kept)} of {len(items)} tests, "
        f"{mine / every if every else 0:.0%} of the expected time"
    )
    state.empty_shard = bool(items) and not kept
    _select(config, items, kept)
    # The first shard reports a kernel without a test.
    for test in list(state.not_applicable):
        if shards.get(scope_of(test, checks), 1) != shard.index:
            del state.not_applicable[test]


def _seconds(config: pytest.Config) -> Mapping[str, float]:
    """Return the seconds of each test in the file of ``--pallas-shard-by``; empty without it."""
    path = current(config).options.shard_by
    if path is None:
        return {}
    try:
        return recorded_seconds(config.invocation_params.dir / path)
    except OptionError as error:
        raise pytest.UsageError(f"{place_of(config, 'shard_by')}: {error}") from None


def recorded_seconds(path: Path) -> Mapping[str, float]:
    """Return the seconds of each test in a results file.

    Raises:
      OptionError: as ``read_results``.
    """
    results = read_results(path)
    of_records = {record.test: record.seconds for record in results.records}
    return {**of_records, **{test.test: test.seconds for test in results.tests}}


def keep_replayed(config: pytest.Config, items: list[pytest.Item], example: Example) -> None:
    """Deselect all items except those of the example's check.

    Raises:
      pytest.UsageError: no item matches.
    """
    kept = [item for item in items if _matches(item, example)]
    same = [item for item in kept if hasattr(item, "spec") or variant_of(item) == example.variant]
    kept = same or kept[:1]  # parameters may have been renamed; the call is that of the file
    if not kept:
        raise _unmatched(example)
    _select(config, items, kept)


def keep_named(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect items whose names only contain that of ``-k``, if there is an item of that name."""
    named = [item for item in items if item.name == config.getoption("keyword")]
    if named:
        _select(config, items, named)


def require_replayed(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Refuse a ``--pallas-replay`` that no selected test can run.

    Raises:
      pytest.UsageError: none is left, or none of them draws examples.
    """
    replayed = current(config).replayed
    if replayed is not None:
        if not items:
            raise _unmatched(replayed.example)
        return
    fixtures = {name for item in items for name in getattr(item, "fixturenames", ())}
    if any(hasattr(item, "spec") for item in items) or any(map(_CALLS.__contains__, fixtures)):
        return
    raise pytest.UsageError(
        f"{place_of(config, 'replay')}: no selected test runs it. Paste the whole command that "
        "the failure printed, in the same folder: it also selects the test"
    )


def _unmatched(example: Example) -> pytest.UsageError:
    """Make the error for an example that no selected test runs."""
    suite = ",".join(example.suite)
    where = example.test or f"the specs of {suite or 'its run'}"
    how = f"--pallas-suite={suite}" if suite and not example.test else "--pallas-suite or a path"
    return pytest.UsageError(
        f"--pallas-replay: no collected test runs {example.check} of {example.kernel} on a "
        f"backend of this run; the example failed in {where} on {example.backend}. Nothing "
        f"that a file names is imported: give its location with {how}, and its backend with "
        "--pallas-backend"
    )


#: Fixtures that run checks, also those that draw.
_CALLS = frozenset({"pallas_check", "pallas_run"})


def _matches(item: Any, example: Example) -> bool:
    spec = getattr(item, "spec", None)
    if spec is None:
        return bool(example.test) and item.nodeid.partition("[")[0] == example.test
    if example.test or not hasattr(item, "check"):
        return False
    selected = (spec.name, item.check.name) == (example.kernel, example.check)
    return selected and dict(example.mesh) in sizes_of(item.axes)


def _select(config: pytest.Config, items: list[pytest.Item], kept: Sequence[pytest.Item]) -> None:
    """Deselect the items that are not kept."""
    left = {id(item) for item in kept}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in left])
    items[:] = kept


# Digests of the files of a run.


def set_digests(state: PytestSession, tests: Sequence[str] = ()) -> None:
    """Set the digests of a session with these tests, once: files may change while tests run."""
    if state.suite_digests or state.file_digests:
        return
    modules, directory = state.options.suite, state.config.invocation_params.dir
    state.suite_digests = suite_digests(modules, directory)
    state.file_digests = file_digests(modules, directory, tests, state.config.rootpath)


def suite_digests(modules: Sequence[str], directory: Path) -> dict[str, str]:
    """Return a digest of the files of each module of ``--pallas-suite``; "" if it is missing.

    Args:
      modules: importable names of packages or modules.
      directory: the folder in which pytest started.
    """
    return {module: _digest(module, directory) for module in modules}


def file_digests(
    modules: Sequence[str], directory: Path, tests: Sequence[str], root: Path
) -> dict[str, str]:
    """Return a digest of each Python file that a run is about, by its path.

    These are the files of suites, the files of tests, and the ``conftest.py`` of their folders.
    Other modules that tests import are not known here.

    Args:
      modules: as in ``suite_digests``.
      directory: likewise.
      tests: node ids of the tests.
      root: pytest's root folder, to which node ids are relative.
    """
    files = {name: file for module in modules for name, file in _files(module, directory)}
    for name in dict.fromkeys(test.partition("::")[0] for test in tests):
        file = root / name
        files.setdefault(name, file)
        for folder in file.relative_to(root).parents if file.is_relative_to(root) else ():
            conftest = folder / "conftest.py"
            files.setdefault(conftest.as_posix(), root / conftest)
    return {
        name: hashlib.sha256(files[name].read_bytes()).hexdigest()[:16]
        for name in sorted(files)
        if files[name].is_file()
    }


def _digest(module: str, directory: Path) -> str:
    digest = hashlib.sha256()
    files = list(_files(module, directory))
    for name, file in files:
        digest.update(f"{name}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16] if files else ""


def _files(module: str, directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a module, each with its path as it is on every machine."""
    try:
        paths = locate(module, directory).paths
    except pytest.UsageError:
        return  # the run has reported that
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.relative_to(path.parent).as_posix(), file
