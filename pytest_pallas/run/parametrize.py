"""User-written tests: one run for each backend, marks, and Hypothesis' settings."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.backends.protocol import Backend, label
from pytest_pallas.backends.registry import parse
from pytest_pallas.compat.fuzzing import (
    draws_from,
    hypothesis_seed,
    hypothesis_settings,
    set_hypothesis_settings,
)
from pytest_pallas.compat.testing import fixture_is_overridden
from pytest_pallas.errors import EXPECTED
from pytest_pallas.pytest_session import PROBLEM, current


def over_backends(metafunc: pytest.Metafunc) -> None:
    """Parametrise a test over its backends, unless a conftest overrides the fixture."""
    if fixture_is_overridden(metafunc, "pallas_backend", "pytest_pallas.fixtures"):
        return
    session = current(metafunc.config)
    try:
        backends, reason = session.backends_for(list(metafunc.definition.iter_markers("pallas")))
    except OptionError:
        parameters = [pytest.param(None, id="error")]  # ``apply_marks`` raises the same error
    else:
        skip = pytest.mark.skip(reason=f"no backend for this test: {reason}")
        parameters = [pytest.param(backend, id=label(backend)) for backend in backends] or [
            pytest.param(None, id="none", marks=skip)
        ]
    metafunc.parametrize("pallas_backend", parameters, indirect=True, scope="module")


def apply_marks(item: pytest.Item) -> None:
    """Check the marks of an item, and add its expected failures."""
    try:
        _apply_marks(item)
    except OptionError as error:
        item.stash[PROBLEM] = str(error)


def _apply_marks(item: pytest.Item) -> None:
    session = current(item.config)
    session.options_for(item)  # a bad mark is an error even if it is not used
    marks = list(item.iter_markers("pallas"))
    callspec: Any = getattr(item, "callspec", None)
    if callspec is None:
        backend = getattr(item, "backend", None)  # of a spec's item
    else:
        backend = callspec.params.get("pallas_backend")
        allowed, _ = session.backends_for(marks)
        if isinstance(backend, Backend) and label(backend) not in map(label, allowed):
            raise OptionError(
                "a pallas mark on a parameter cannot choose backends; put the mark on the test"
            )
    for mark in item.iter_markers("pallas_xfail"):
        name, expected = _expected(mark, session.families)
        if isinstance(backend, Backend) and name in (backend.name, label(backend)):
            item.add_marker(expected)


def _expected(mark: pytest.Mark, families: Any) -> tuple[str, pytest.MarkDecorator]:
    """Return the backend and pytest's own mark of a ``pallas_xfail`` mark."""
    rest = dict(mark.kwargs)
    name = mark.args[0] if mark.args else rest.pop("backend", None)
    if len(mark.args) > 1 or not isinstance(name, str) or not rest.get("reason"):
        raise OptionError(
            "the pallas_xfail mark takes one backend and a reason, such as "
            'pallas_xfail("tpu-sim", reason="...")'
        )
    unknown = sorted(set(rest) - {"reason", "strict", "raises", "run"})
    if unknown:
        raise OptionError(f"the pallas_xfail mark has no argument {unknown[0]!r}")
    parse(name, families)  # an unknown name would never match
    strict: bool = rest.pop("strict", True)
    rest.setdefault("raises", EXPECTED)
    return name, pytest.mark.xfail(True, strict=strict, **rest)


def seed_given_test(item: pytest.Item) -> None:
    """Seed a ``@given`` test, and remove the deadline, which its first, compiling example exceeds.

    Settings of the test itself stay. ``--pallas-max-examples`` and ``--pallas-profile``, if given,
    apply to tests without max_examples, and ``--pallas-database`` to tests without a database.
    """
    test = _given_test(item)
    if test is None:
        return
    import hypothesis

    options = current(item.config).options_for(item)
    default = hypothesis.settings.default
    assert default is not None  # it is the current profile
    own = hypothesis_settings(test) or default
    forced = item.config.getoption("hypothesis_seed", None) is not None
    if not forced and hypothesis_seed(test) is None and own.derandomize == default.derandomize:
        hypothesis.seed(options.seed)(test)
    changes: dict[str, Any] = {}
    if own.deadline == default.deadline:
        changes["deadline"] = None
    changes |= _examples(item, own)
    if own.phases == default.phases:
        # The explain phase traces every line of this package, and lists them.
        changes["phases"] = [phase for phase in own.phases if phase.name != "explain"]
    # Hypothesis 6.131 makes the default anew each time, and compares by identity.
    if "database" in options.explicit and repr(own.database) == repr(default.database):
        changes["database"] = current(item.config).database
    # Also without changes: ``seed`` removes the database.
    set_hypothesis_settings(test, hypothesis.settings(own, **changes))


def limit_examples(item: pytest.Item) -> None:
    """Let a ``@given`` test without fixtures that draws from our strategies heed the profile.

    It need not have to do with a backend, so its seed, deadline and database stay.
    """
    test = _given_test(item) if "pytest_pallas.draw" in sys.modules else None
    if test is None or not draws_from(test, "pytest_pallas.draw"):
        return
    import hypothesis

    own = hypothesis_settings(test) or hypothesis.settings.default
    changes = _examples(item, own)
    if changes:
        set_hypothesis_settings(test, hypothesis.settings(own, **changes))


def _given_test(item: pytest.Item) -> Any:
    """Return the function of a ``@given`` test; None for other tests, and for one with wrong marks.

    It does not import hypothesis.
    """
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    is_given = "hypothesis" in sys.modules and getattr(test, "is_hypothesis_test", False)
    return test if is_given and PROBLEM not in item.stash else None


def _examples(item: pytest.Item, own: Any) -> dict[str, Any]:
    """Return the number of examples of a ``@given`` test, if only the options give one.

    A profile of Hypothesis that the command line names says more of it than one of ours.
    """
    import hypothesis

    default = hypothesis.settings.default
    assert default is not None  # it is the current profile
    session = current(item.config)
    options = session.options_for(item)
    if own.max_examples != default.max_examples:
        return {}
    if "max_examples" in options.explicit:
        return {"max_examples": options.max_examples}
    named = item.config.getoption("hypothesis_profile", None) is not None
    if "profile" not in options.explicit or named:
        return {}
    backend: Any = getattr(getattr(item, "callspec", None), "params", {}).get("pallas_backend")
    kind = getattr(backend, "kind", "simulating")
    return {"max_examples": options.examples_on(kind)}
