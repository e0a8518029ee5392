"""The text of ``--pallas-doctor``, made to be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_pallas._version import __version__
from pytest_pallas.doctor.facts import Machine, Package
from pytest_pallas.doctor.trials import MISSING, OK, Trial

_WIDTH = 18


def lines(machine: Machine, devices: Sequence[str], trials: Iterable[Trial]) -> Iterator[str]:
    """The report, line by line: a line of a backend comes when it was tried."""
    yield f"pytest-pallas {__version__}"
    yield ""
    yield "versions"
    yield from _package(machine.python)
    yield _row("system", machine.system)
    for package in machine.packages:
        yield from _package(package)
    yield _row("pytest plugins", ", ".join(machine.plugins) or "none")
    for name, value in machine.environment.items():
        yield _row("environment", f"{name}={value}")
    yield ""
    yield "devices"
    for device in devices:
        yield f"  {device}"
    yield ""
    yield "backends, with one kernel on float32[8, 128], and the seconds of its first call"
    counts = dict.fromkeys((OK, MISSING), 0)
    failed = list[str]()
    for trial in trials:
        yield from _trial(trial)
        if trial.status in counts:
            counts[trial.status] += 1
        else:
            failed.append(trial.backend)
    yield ""
    yield "extras"
    for extra in machine.extras:
        found = f"{extra.package} {extra.version}" if extra.version else f"missing; {extra.install}"
        yield _row(extra.name, found)
    yield ""
    words = f"backends: {counts[OK]} work, {counts[MISSING]} missing"
    yield f"{words}, {len(failed)} failed: {', '.join(failed)}" if failed else words


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}} {text}"


def _package(package: Package) -> Iterator[str]:
    """A line; a package without a version is listed only if its absence matters."""
    if not package.version:
        yield _row(package.name, "not installed")
        return
    tested = ""
    if package.newer:
        tested = f" (newer than what was tested: {package.tested})"
    elif package.tested:
        tested = f" (tested: {package.tested})"
    yield _row(package.name, f"{package.version}{tested}")


def _trial(trial: Trial) -> Iterator[str]:
    seconds = "" if trial.status == MISSING else f"{trial.seconds:6.2f} s"
    first, *rest = trial.words.splitlines() or [""]
    yield f"  {trial.backend:<{_WIDTH}} {trial.status:<8}{seconds:<10}{first}"
    for line in rest:
        yield f"  {'':<{_WIDTH}} {'':<18}{line}"
