"""A check of a spec reports failures of different causes, not only the first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

KERNELS = """
import jax.numpy as jnp
from hypothesis import strategies as st

def two(x, y, *, mode):
    out = add(x, y)
    if mode == "nan":
        return out.at[0, 0].set(jnp.nan)
    if mode == "raises":
        raise ValueError("no block for this mode")
    return out + 5 if mode == "off" else out

def two_reference(x, y, *, mode):
    return reference(x, y)
"""

RUN = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward",
       "--pallas-max-examples=16")  # fmt: skip

ANOTHER = "another failure, of another cause:"


@pytest.fixture
def modes(project):
    """A spec of the kernel with some modes."""

    def write(*words: str) -> None:
        project.specs(
            'name="two", kernel=two, reference=two_reference, inputs=pst.arguments('
            f"INPUTS, options={{'mode': st.sampled_from({list(words)!r})}})"
        )
        module = project.path / "specs.py"
        head, spec, tail = module.read_text().partition("SPEC_0")
        module.write_text(f"{head}{KERNELS}\n{spec}{tail}")

    return project, write


def causes(text):
    found = {
        "nan": "NaN where the oracle is finite" in text,
        "off": "must be exactly equal" in text or "times the baseline's" in text,
        "raises": "no block for this mode" in text,
    }
    return {name for name, there in found.items() if there}


def test_one_cause_in_many_shapes_is_one_failure(modes):
    project, write = modes
    write("fine", "off")
    text = project.run(*RUN).stdout.str()
    assert causes(text) == {"off"}
    assert ANOTHER not in text


def test_each_cause_is_shown_with_its_script(modes):
    project, write = modes
    write("nan", "off", "raises")
    text = project.run(*RUN).stdout.str()
    assert causes(text) == {"nan", "off", "raises"}
    assert text.count(ANOTHER) == 2
    scripts = re.findall(r"^  script    (.+)$", text, re.MULTILINE)
    assert len(set(scripts)) == 3
    for script in scripts:
        assert "forward" in Path(script).read_text()


def test_records_and_the_page_have_them(modes):
    pytest.importorskip("jinja2")
    project, write = modes
    write("nan", "off")
    [record] = project.records(*RUN, "--pallas-html=page.html")
    [other] = record["others"]
    assert causes(record["message"]) | causes(other["message"]) == {"nan", "off"}
    assert other["explanation"]["facts"]
    page = (project.path / "page.html").read_text()
    assert page.count("Another failure, of another cause") == 1


def test_the_next_run_has_them_again(modes):
    """It begins with the saved example of one, which hides no other."""
    project, write = modes
    write("nan", "off")
    for _ in range(2):
        text = project.run(*RUN).stdout.str()
        assert causes(text) == {"nan", "off"}


def test_the_figures_are_those_of_the_first(modes):
    project, write = modes
    write("nan", "off")
    [record] = project.records(*RUN)
    infinite = "class" if record["error"] == "inf" else "finite"
    assert (infinite == "class") == ("nan" in causes(record["message"]))


def test_the_fixture_shows_them_too(modes):
    project, write = modes
    write("nan", "off")
    project.write(
        test_it="""
        from specs import SPEC_0

        def test_it(pallas_check):
            pallas_check(SPEC_0, checks="forward")
        """
    )
    text = project.run("test_it.py", "--pallas-max-examples=16").stdout.str()
    assert causes(text) == {"nan", "off"}
    assert text.count(ANOTHER) == 1
