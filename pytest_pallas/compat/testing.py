"""Private names of pytest.

Seen in pytest 8.4 to 9.2. It can go when pytest makes sessions inside of a process, and says which
fixture a test sees. Probe: ``tests/plugin/isolate`` and ``tests/plugin/fixtures``.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import io
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

#: Plugins that belong to the process that reports: they print, write pytest's cache, or decide by
#: the report of a test that it runs again.
_REPORTING = ("terminalreporter", "stepwiseplugin", "_cov", "rerunfailures")

#: Plugins that choose and order tests by pytest's cache, and write it.
_CHOOSING = ("lfplugin", "nfplugin")


def keywords_match(expression: str, names: Iterable[str]) -> bool:
    """Return whether ``-k EXPRESSION`` chooses a test that has these words, as pytest decides."""
    module: Any = importlib.import_module("_pytest.mark.expression")
    lower = [word.lower() for word in names]

    def matches(name: str, /, **_: Any) -> bool:
        return any(name.lower() in word for word in lower)

    try:
        return bool(module.Expression.compile(expression).evaluate(matches))
    except Exception:  # pytest itself reports a wrong expression
        return True


def can_be_shown(plain: Mapping[str, Any]) -> bool:
    """Return whether pytest can make a report of plain values, which it does not check."""
    reports: Any = importlib.import_module("_pytest.reports")
    writer: Any = importlib.import_module("_pytest._io").TerminalWriter
    try:
        made = reports.pytest_report_from_serializable(copy.deepcopy(dict(plain)))
        made.toterminal(writer(io.StringIO()))
        str(made.longrepr)
    except Exception:  # of any type: a wrong value is somewhere used as a right one
        return False
    return True


def without_block(report: pytest.TestReport) -> None:
    """Let the terminal print no block for a failed test, which it counts and lists all the same."""
    report._pdbshown = True  # pyright: ignore[reportAttributeAccessIssue]


def say(config: Any, text: str, *, verbosity: int = 0, **markup: bool) -> None:
    """Print a line at this verbosity, although pytest may capture what is printed."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if terminal is None or config.get_verbosity() < verbosity:
        return
    with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
        terminal.ensure_newline()
        terminal.write_line(f"pallas: {text}", **markup)


def count_report(config: Any, report: pytest.TestReport) -> None:
    """Let the terminal count and list a report, without a letter for it."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        category = config.hook.pytest_report_teststatus(report=report, config=config)[0]
        terminal._add_stats(category, [report])


def fixture_is_overridden(metafunc: Any, name: str, module: str) -> bool:
    """Return whether a test sees another fixture ``name`` than the one that ``module`` defines."""
    definitions = metafunc._arg2fixturedefs.get(name, ())
    return bool(definitions) and definitions[-1].func.__module__ != module


def configured(
    args: Sequence[str],
    options: Mapping[str, Any],
    attributes: Mapping[str, Any],
    plugin: Any,
    *,
    chooses: bool = False,
) -> pytest.Config:
    """Return the configuration that a command line gives, of a session that reports to nobody.

    pytest-xdist makes the sessions of its workers in the same way. ``attributes``, such as
    ``workerinput``, tell other plugins that this process is a worker.

    Args:
      args: the command line.
      options: what to change of the options that it gives.
      attributes: set on the configuration before any plugin is configured.
      plugin: registered before everything else.
      chooses: whether ``--lf`` and the like choose tests. Nothing writes the cache, because the
        session never finishes.
    """
    pytests: Any = importlib.import_module("_pytest.config")

    end = args.index("--") if "--" in args else len(args)
    # This process has imported the plugin before pytest could rewrite its assertions.
    quiet = ["-W", "ignore:Module already imported so cannot be rewritten:pytest.PytestWarning"]
    config: Any = pytests._prepareconfig([*args[:end], *quiet, *args[end:]], [plugin])
    for name, value in options.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    for name, value in attributes.items():
        setattr(config, name, value)
    config.pluginmanager.set_blocked("_cov")
    if config.pluginmanager.has_plugin("_cov"):
        config.pluginmanager.unregister(name="_cov")
    config._do_configure()  # pyright: ignore[reportPrivateUsage]
    for name in (*_REPORTING, *(() if chooses else _CHOOSING)):
        if config.pluginmanager.has_plugin(name):
            config.pluginmanager.unregister(name=name)
    return config


def configured_paths(args: Sequence[str]) -> tuple[Path, list[Path]]:
    """Return what pytest's ini value ``pythonpath`` is relative to, and its folders.

    pytest 8 has no ``override_ini`` here.

    Args:
      args: files and folders of the command line.
    """
    finding: Any = importlib.import_module("_pytest.config.findpaths")
    folder = Path.cwd()
    options = {"inifile": None, "override_ini": None, "rootdir_cmd_arg": None}
    known = inspect.signature(finding.determine_setup).parameters
    given = {name: value for name, value in options.items() if name in known}
    _, inipath, values, *_ = finding.determine_setup(args=args, invocation_dir=folder, **given)
    base = folder if inipath is None else inipath.parent
    value = values.get("pythonpath", [])
    value = getattr(value, "value", value)
    paths = shlex.split(value) if isinstance(value, str) else value
    return base, [base / path for path in paths]


#: Titles of the groups of options of pytest and of plugins that test runs have everywhere.
_USUAL_GROUPS = frozenset(
    {
        *("general", "Reporting", "pytest-warnings", "collection", "logging", "Hypothesis"),
        *("test session debugging and configuration", "distributed and subprocess testing"),
        *(
            "verification of JAX Pallas kernels",
            "coverage reporting with distributed testing support",
        ),
    }
)


@dataclass(frozen=True)
class GivenOption:
    """An option of the command line.

    Attributes:
      dest: its destination in ``config.option``.
      arguments: the option and its values, as they were given.
      from_project: whether a ``conftest.py``, or a plugin that few projects have, adds it.
    """

    dest: str
    arguments: tuple[str, ...]
    from_project: bool


def given_options(config: pytest.Config) -> Iterator[GivenOption]:
    """Yield the options of the command line, without those of the ini file, in their order."""
    parser: Any = config._parser.optparser  # pyright: ignore[reportPrivateUsage]
    titles = {
        action.dest: group.title
        for group in parser._action_groups
        for action in group._group_actions
    }
    rest = [str(word) for word in config.invocation_params.args]
    while rest and rest[0] != "--":
        word = rest.pop(0)
        action, has_value = _option_of(parser, word)
        if action is None:
            continue
        arguments = [word]
        if action.nargs != 0 and not has_value:
            arguments += _values_of(action, rest)
            del rest[: len(arguments) - 1]
        title = titles.get(action.dest, "")
        yield GivenOption(action.dest, tuple(arguments), title not in _USUAL_GROUPS)


def _option_of(parser: Any, word: str) -> tuple[Any, bool]:
    """Return the action of ``argparse`` for a word, or None, and whether the word has its value."""
    actions = parser._option_string_actions
    if word.startswith("--"):
        flag, has_value, _ = word.partition("=")
        names = [flag] if flag in actions else [name for name in actions if name.startswith(flag)]
        return actions[names[0]] if names else None, bool(has_value)
    # Short options may be joined, and the last one may have its value, as in -qpname.
    while (
        word.startswith("-") and len(word) > 2 and getattr(actions.get(word[:2]), "nargs", 1) == 0
    ):
        word = f"-{word[2:]}"
    return (actions.get(word[:2]), len(word) > 2) if word.startswith("-") else (None, False)


def _values_of(action: Any, rest: Sequence[str]) -> list[str]:
    """Return the words after an option that are its values."""
    if action.nargs is None:
        return list(rest[:1])
    most = (
        action.nargs if isinstance(action.nargs, int) else 1 if action.nargs == "?" else len(rest)
    )
    values: list[str] = []
    for word in rest[:most]:
        if word.startswith("-"):
            break
        values.append(word)
    return values


def capture_is_closed(config: pytest.Config) -> bool:
    """Return whether a test has closed the files that pytest captures output in."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if capture is None or not capture.is_globally_capturing():
        return False
    try:
        capture.read_global_capture()
    except ValueError:
        return True
    return False


def tear_down(session: pytest.Session, item: pytest.Item | None = None) -> None:
    """End the fixtures of earlier tests that a test does not use; all of them without a test.

    Raises:
      Exception: as the fixtures.
    """
    state: Any = session
    state._setupstate.teardown_exact(item)


def run_protocol(item: pytest.Item) -> None:
    """Set up, run and tear down a test, and report each, without its start and its end."""
    importlib.import_module("_pytest.runner").runtestprotocol(item, nextitem=None)


def worker_count(config: Any) -> int:
    """Return the number of workers that pytest-xdist starts here; 0 without it, or in one.

    Its option ``tx`` has a specification of each, ``popen`` or ``3*popen``.
    """
    if hasattr(config, "workerinput") or getattr(config.option, "dist", "no") == "no":
        return 0
    specifications = getattr(config.option, "tx", None) or ()
    counts = [str(specification).partition("*") for specification in specifications]
    return sum(int(first) if star and first.isdigit() else 1 for first, star, _ in counts)


# Private names of pytest-benchmark: what was measured, so that another process reports it.
#
# Seen in pytest-benchmark 5.3. It can go when its results are reports. Probe:
# ``tests/plugin/fixtures/test_pallas_benchmark.py``.

_OF_BENCHMARK = ("name", "fullname", "group", "param", "params", "extra_info", "has_error")


def take_benchmarks(config: pytest.Config) -> list[dict[str, Any]]:
    """Take what pytest-benchmark has measured in a session, as plain values."""
    session: Any = getattr(config, "_benchmarksession", None)
    if session is None:
        return []
    taken = [
        {
            **{name: getattr(benchmark, name) for name in _OF_BENCHMARK},
            "iterations": benchmark.iterations,
            "options": benchmark.as_dict(stats=False)["options"],
            "data": list(benchmark.stats.data),
        }
        for benchmark in session.benchmarks
    ]
    session.benchmarks.clear()
    return taken


def add_benchmarks(config: pytest.Config, benchmarks: Iterable[Mapping[str, Any]]) -> None:
    """Add ``take_benchmarks`` of another session to what this one reports."""
    for plain in benchmarks:
        fixture = SimpleNamespace(cprofile_stats=None, **{n: plain[n] for n in _OF_BENCHMARK})
        module: Any = importlib.import_module("pytest_benchmark.stats")
        benchmark = module.Metadata(fixture, plain["iterations"], plain["options"])
        benchmark.stats.data.extend(plain["data"])
        session: Any = config
        session._benchmarksession.benchmarks.append(benchmark)
