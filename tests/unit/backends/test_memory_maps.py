"""Compiled programs are forgotten before they take all memory maps of the process."""

import jax
import numpy as np
import pytest

from pytest_pallas.backends import execution, interpreters
from pytest_pallas.backends.protocol import Call


def files(folder, maps, limit):
    (folder / "maps").write_text("a map\n" * maps)
    (folder / "limit").write_text(limit)
    return folder / "maps", folder / "limit"


@pytest.mark.parametrize(("maps", "near"), [(50, False), (51, True)])
def test_half_of_the_maps_is_too_many(tmp_path, maps, near):
    assert execution.near_limit(*files(tmp_path, maps, "100\n")) is near


def test_no_limit_is_no_problem(tmp_path):
    maps, limit = files(tmp_path, 10, "")
    assert not execution.near_limit(maps, limit)
    assert not execution.near_limit(maps, tmp_path / "missing")


def test_programs_are_forgotten_while_kernels_run(tmp_path, monkeypatch):
    maps, limit = files(tmp_path, 51, "100")
    monkeypatch.setattr(execution, "_MAPS", maps)
    monkeypatch.setattr(execution, "_LIMIT", limit)
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    backend = interpreters.interpret()
    call = Call(function=lambda x: x, args=(np.ones(3),), needs_kernel=False)
    for _ in range(2 * execution.EVERY):
        assert backend.run(call).error is None
    assert len(cleared) == 2


def test_programs_give_their_maps_back():
    """What it is all about: else nothing but another process would help."""
    maps = execution._MAPS
    if not maps.exists():
        pytest.skip("no memory maps to count on this system")

    def count():
        return len(maps.read_bytes().splitlines())

    jax.clear_caches()
    before = count()
    double = jax.jit(lambda x: x * 2)
    for size in range(100, 150):
        double(np.ones(size, np.float32))
    grown = count() - before
    jax.clear_caches()
    assert grown > 100
    assert count() - before < grown / 2
