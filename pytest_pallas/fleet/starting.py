"""Start the run loop of ``--pallas-fleet``, unless another option excludes it."""

from __future__ import annotations

from pallas_sim.errors import OptionError
from pytest_pallas.options.values import place_of
from pytest_pallas.session import PytestSession

#: Options of pytest and its plugins that exclude a fleet: name, spelling, reason.
_EXCLUDED = (
    ("usepdb", "--pdb", "a debugger needs the terminal, which workers do not have"),
    ("trace", "--trace", "a debugger needs the terminal, which workers do not have"),
    ("pallas_processes", "--pallas-processes", "all its processes run each test together"),
    ("pallas_distributed", "--pallas-distributed", "all its processes run each test together"),
)


def start_fleet(session: PytestSession) -> None:
    """Connect to the workers, and register the run loop.

    Raises:
      OptionError: there is no such scheduler, or another option excludes a fleet.
    """
    config = session.config
    where = place_of(config, "fleet")
    if getattr(config.option, "dist", "no") != "no":
        raise OptionError(
            f"{where}: the workers of pytest-xdist (-n, --dist) would run the same tests; leave "
            "out one of the two"
        )
    for name, flag, reason in _EXCLUDED:
        if getattr(config.option, name, None):
            raise OptionError(f"{where} and {flag} exclude each other: {reason}")
    if config.option.collectonly:
        return
    from pytest_pallas.fleet.runner import PLUGIN, FleetRunner

    config.pluginmanager.register(FleetRunner(session), PLUGIN)
