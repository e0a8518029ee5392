"""Settle the gang of a session at its start: its processes, and the other hosts."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from pytest_pallas.devices.pinning import accelerators
from pytest_pallas.errors import GangError
from pytest_pallas.gang.hosts import HostStore, RemoteStore, ServedStore
from pytest_pallas.gang.layout import Layout, of_cluster, on_this_host
from pytest_pallas.gang.plugin import PLUGIN, GangPlugin
from pytest_pallas.session import PytestSession

if TYPE_CHECKING:
    from pytest_pallas.compat.distributed import Place

#: Options that a gang cannot use, by their name in messages, and the reasons.
_UNUSABLE = {
    "trace": "a timeline would run the kernel again in one process; run it without",
    "mutate": "a mutant that hangs or dies would take all processes with it; run it without",
}


def settle_gang(state: PytestSession) -> None:
    """Register the plugin of this host.

    Raises:
      GangError: another option contradicts, there are too few devices, or the first host cannot
        be reached.
    """
    config, options = state.config, state.options
    flag = "--pallas-processes" if options.processes else "--pallas-distributed"
    _check_options(state, flag)
    state.delegates = True
    store: HostStore | None = None
    if options.processes:
        found = accelerators(os.environ)
        layout = on_this_host(options.processes, options.devices, found, options.backend)
    else:
        place = _place(state)
        layout = of_cluster(place, options.devices, os.environ)
        if layout.host:
            store = RemoteStore(place, options.join_timeout)
            _be_silent(state, layout)
        else:
            store = ServedStore(place, options.join_timeout)
    config.pluginmanager.register(GangPlugin(state, layout, store), PLUGIN)


def _check_options(state: PytestSession, flag: str) -> None:
    """Reject options that a gang cannot use."""
    config, options = state.config, state.options
    if options.processes and options.distributed:
        raise GangError("give either --pallas-processes or --pallas-distributed")
    if getattr(config.option, "dist", "no") != "no" or hasattr(config, "workerinput"):
        raise GangError(
            f"{flag} runs each test in all processes at once: leave out -n of pytest-xdist"
        )
    if config.option.usepdb or config.option.trace:
        raise GangError(f"{flag}: a debugger needs a terminal, which several processes do not have")
    if options.isolate == "always":
        raise GangError(
            f"{flag}: its tests run in processes of their own; leave out --pallas-isolate=always"
        )
    for name, why in _UNUSABLE.items():
        if getattr(options, name) is not None:
            raise GangError(f"--pallas-{name.replace('_', '-')} with {flag}: {why}")


def _place(state: PytestSession) -> Place:
    """The place of this host among the hosts."""
    from pytest_pallas.compat.distributed import Place, detect

    given = state.options.distributed
    assert given is not None
    if given.address:
        return Place(given.address, given.count, given.index)
    place = detect(state.options.join_timeout)
    if place is None:
        raise GangError(
            "--pallas-distributed=auto: JAX finds no TPU pod, Slurm, Open MPI or Kubernetes job "
            "here; give --pallas-distributed=I/N@HOST:PORT"
        )
    return place


def _be_silent(state: PytestSession, layout: Layout) -> None:
    """Let the first host report: print no tests, and write no files."""
    state.reports = False
    state.options = dataclasses.replace(state.options, results=None, html=None, trace=None)
    state.config.pluginmanager.unregister(name="terminalreporter")
    print(f"pallas: {layout.words}; process 0 reports", flush=True)  # noqa: T201
