"""Which tests are run in a worker process, and which can be."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytest_pallas.backends import label
from pytest_pallas.errors import OptionError
from pytest_pallas.isolation.remembered import Remembered
from pytest_pallas.session import current

#: The fixtures of a test that asks for several devices.
_DEVICES = frozenset({"pallas_mesh", "pallas_devices"})


def separable(item: Any) -> bool:
    """Whether a test can be run in another process.

    One on hardware cannot: this process has opened the device. Those of compilers have workers of
    their own.
    """
    kind = _kind(item)
    return kind is None or kind in ("simulating", "interpreting")


def simulates(item: Any) -> bool:
    """Whether everything that a test runs is simulated, as far as the simulator can."""
    parts = getattr(item, "parts", None) or (item,)  # of mutants
    return all(_kind(part) == "simulating" for part in parts)


def uses_plugin(item: Any) -> bool:
    """Whether a test is a check of a spec, or uses the fixtures that run kernels."""
    return hasattr(item, "spec") or "pallas_backend" in getattr(item, "fixturenames", ())


def mode(item: pytest.Item) -> str:
    """``--pallas-isolate`` as it holds for a test, and ``"never"`` where that makes no sense.

    That is in a debugger, and with ``-s``: a worker has no terminal.
    """
    try:
        asked = current(item.config).options_for(item).isolate
    except OptionError:
        return "never"  # of a mark, which the test's set-up says
    option = item.config.option
    watched = option.usepdb or option.trace or option.capture == "no"
    return "never" if asked == "auto" and watched else asked


def reason(item: Any, remembered: Remembered) -> str:
    """Why a test is run in a worker from the start; "" if it is not."""
    asked = mode(item)
    if asked == "never" or not uses_plugin(item) or not separable(item):
        return ""
    if asked == "always":
        return "--pallas-isolate=always"
    known = remembered.reason(item.nodeid) or (
        remembered.reason(key_of(item)) if hasattr(item, "spec") else ""
    )
    return known or ("" if simulates(item) else _risk(item, remembered))


def reason_of_others(item: Any, remembered: Remembered) -> str:
    """Why a simulated test is run in a worker if a call turns out not to be simulated yet."""
    if mode(item) != "auto" or not uses_plugin(item) or not simulates(item):
        return ""
    return _risk(item, remembered)


def _risk(item: Any, remembered: Remembered) -> str:
    """Why a test may end this process, if an interpreter runs its kernels; "" if nobody knows."""
    if current(item.config).options.mutate is not None:
        return "mutants may crash or hang"
    if _devices(item):
        return "it runs on several devices"
    if remembered.failed(item.nodeid):
        return "it failed before"
    return ""


def key_of(item: Any) -> str:
    """What the calls of a spec on a backend are remembered by, whatever the check."""
    return f"{item.spec.file}::{item.spec.name}[{label(item.backend)}]"


def _kind(item: Any) -> str | None:
    """The kind of a test's backend; None where nobody knows."""
    own = getattr(item, "backend", None)
    if own is None:
        callspec = getattr(item, "callspec", None)
        own = None if callspec is None else callspec.params.get("pallas_backend")
    return getattr(own, "kind", None)  # an override may give a name


def _devices(item: Any) -> bool:
    if hasattr(item, "spec"):
        return math.prod(item.mesh.values()) > 1 if hasattr(item, "mesh") else False
    if _DEVICES & {*getattr(item, "fixturenames", ())}:
        return True
    mark = item.get_closest_marker("pallas_mesh")
    return mark is not None
