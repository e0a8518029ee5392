"""The key of the failing examples of a spec's check."""

from pathlib import Path

import hypothesis.strategies as st
import pytest

from pytest_pallas.run.drawn import example_key
from pytest_pallas.spec import KernelSpec


def spec_in(file: str) -> KernelSpec:
    return KernelSpec(
        name="add", kernel=lambda x: x, reference=lambda x: x, inputs=st.tuples(), file=file
    )


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("/home/me/project/one/specs.py", "one/specs.py::add/jit"),
        ("/home/me/project/two/specs.py", "two/specs.py::add/jit"),
        ("/home/me/project/.venv/lib/python3.13/site-packages/k/specs.py", "k/specs.py::add/jit"),
        ("/usr/lib/python3/dist-packages/k/specs.py", "k/specs.py::add/jit"),
        ("/opt/elsewhere/k/specs.py", "k/specs.py::add/jit"),
        ("/nowhere/specs.py", "specs.py::add/jit"),
    ],
)
def test_the_key_has_the_file_as_all_machines_have_it(file, key, monkeypatch):
    monkeypatch.syspath_prepend("/opt/elsewhere")
    monkeypatch.syspath_prepend("/home/me/project/one")
    assert example_key(spec_in(file), "jit", Path("/home/me/project")) == key
