"""Make the command line that runs one test again, in the folder where pytest was started.

It names the file relative to that folder. It repeats the options that decide what pytest imports
and collects: those of pytest's own configuration, those that a ``conftest.py`` adds, and those of
the plugin without which the test would be another one.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_pallas.compat.testing import GivenOption, given_options
from pytest_pallas.pytest_session import current

#: pytest's options that decide which files it reads, by destination.
_CONFIGURING = frozenset(
    {
        *("inifilename", "rootdir", "plugins", "override_ini", "disable_plugin_autoload"),
        *("confcutdir", "noconftest", "importmode"),
    }
)

#: Options of the plugin that are repeated as they were given; callers add those of the example.
_REPEATED = frozenset(
    f"pallas_{name}"
    for name in ("golden", "golden_dir", "cost", "cost_file", "cost_limit", "timeout", "schedules")
)

#: Values of ``-p`` that change what a run writes, and not what it runs.
_REPORTING = frozenset({"no:cacheprovider", "no:terminal", "no:terminalreporter"})

#: Names of files in which pytest looks for its configuration, or that end its search.
_CONFIGURATIONS = (
    *("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"),
    *("pyproject.toml", "tox.ini", "setup.cfg", "setup.py"),
)


def command_of(item: pytest.Item, own: Sequence[str]) -> str:
    """Return the command line that runs a test again.

    Args:
      item: the test.
      own: options of the plugin that select its example.
    """
    by_name = _is_selected_by_name(item)
    options = _configuration(item, by_name=by_name)
    return shlex.join(["pytest", *options, *own, *_selection(item, by_name)])


def _is_selected_by_name(item: pytest.Item) -> bool:
    """Return whether a path to its file would not select a test as it was collected.

    Tests of a hook are in no file. The file of a suite may be outside of the project, or outside
    of the folders with the ``conftest.py`` files that pytest has read: pytest would not read these
    if its only argument were this file.
    """
    if not hasattr(item, "spec"):
        return False
    root = item.config.rootpath
    if not (root / item.nodeid.partition("::")[0]).is_file():
        return True
    if getattr(item.parent, "module", None) is None:  # it is in a test module
        return False
    return not item.path.is_relative_to(root) or any(
        folder not in item.path.parents for folder in _conftest_folders(item.config)
    )


def _conftest_folders(config: pytest.Config) -> Iterator[Path]:
    """Yield the folder of each ``conftest.py`` that pytest has read."""
    for plugin in config.pluginmanager.get_plugins():
        file = getattr(plugin, "__file__", None)
        if file is not None and Path(file).name == "conftest.py":
            yield Path(file).parent


def _selection(item: pytest.Item, by_name: bool) -> Iterator[str]:
    """Yield the arguments that select a test."""
    folder = item.config.invocation_params.dir
    if by_name:
        yield from map(str, getattr(item.config.option, "file_or_dir", None) or ())
        yield from ("-k", item.name)
        return
    names = item.nodeid.partition("::")[2]
    yield f"{relative(item.path, folder)}::{names}"


def relative(path: Path, folder: Path) -> str:
    """Return a path relative to a folder; as it is if there is none, as between two drives."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:
        return str(path)


def _configuration(item: pytest.Item, *, by_name: bool) -> Iterator[str]:
    """Yield the options that configure pytest as it is configured now."""
    config = item.config
    options = [
        option
        for option in given_options(config)
        if option.dest in _CONFIGURING or option.dest in _REPEATED or option.from_project
        if not _is_setting_of_plugin(option)
    ]
    for arguments in dict.fromkeys(option.arguments for option in options):
        if arguments[-1].removeprefix("-p") not in _REPORTING:
            yield from arguments
    repeated = {option.dest for option in options}
    if not by_name and "inifilename" not in repeated and _is_configured_elsewhere(item):
        if config.inipath is not None:
            yield f"--config-file={relative(config.inipath, config.invocation_params.dir)}"
        if "rootdir" not in repeated:
            yield f"--rootdir={relative(config.rootpath, config.invocation_params.dir)}"
    folder = config.invocation_params.dir
    if _is_imported_from_start(item, by_name=by_name):
        base = folder if config.inipath is None else config.inipath.parent
        paths = [relative(Path(path), base) for path in config.getini("pythonpath")]
        yield from ("-o", f"pythonpath={shlex.join([*paths, relative(folder, base)])}")


def _is_setting_of_plugin(option: GivenOption) -> bool:
    """Return whether ``-o`` sets an option of the plugin that a command does not repeat.

    Those of the example are among its own options, and an address may hold a password.
    """
    name = option.arguments[-1].removeprefix("-o").partition("=")[0]
    return option.dest == "override_ini" and name.startswith("pallas_") and name not in _REPEATED


def _is_configured_elsewhere(item: pytest.Item) -> bool:
    """Return whether pytest may find another configuration if only this file is given."""
    root = item.config.rootpath
    if not item.path.is_relative_to(root):
        return True
    inner = [folder for folder in item.path.parents if folder != root and root in folder.parents]
    return any((folder / name).is_file() for folder in inner for name in _CONFIGURATIONS)


def _is_imported_from_start(item: pytest.Item, *, by_name: bool) -> bool:
    """Return whether ``python -m pytest`` imports modules from its folder, and ``pytest`` not."""
    config = item.config
    folder = config.invocation_params.dir
    paths = [Path(folder, entry) for entry in sys.path]
    standard = Path(sysconfig.get_path("stdlib"))
    if folder not in (paths[: paths.index(standard)] if standard in paths else paths):
        return False
    variable = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    elsewhere = {
        *(Path(path) for path in config.getini("pythonpath")),
        *(Path(folder, entry) for entry in variable if entry),
        *_import_folders(item, by_name=by_name),
    }
    suites = {name.partition(".")[0] for name in current(config).options.suite}
    tests = {test.path for test in item.session.items}
    modules = set(_modules_in(folder, tests))
    return folder not in elsewhere and bool(modules) and not suites & modules


def _import_folders(item: pytest.Item, *, by_name: bool) -> Iterator[Path]:
    """Yield the folders from which pytest imports a test module and its ``conftest.py`` files."""
    if getattr(item.config.option, "importmode", "prepend") == "importlib":
        return
    folders = _conftest_folders(item.config) if by_name else item.path.parents
    for path in (item.path, *(folder / "conftest.py" for folder in folders)):
        if path == item.path or path.is_file():
            yield next(at for at in path.parents if not (at / "__init__.py").exists())


def _modules_in(folder: Path, tests: Collection[Path]) -> Iterator[str]:
    """Yield the modules that were imported from a folder, without test modules."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or name in ("__main__", "conftest") or (file and Path(file) in tests):
            continue
        paths = [Path(file)] if file else [Path(path) for path in getattr(module, "__path__", ())]
        for path in paths:
            inner = path.parent if path.name.startswith("__init__.") else path
            if inner.parent == folder:
                yield name
