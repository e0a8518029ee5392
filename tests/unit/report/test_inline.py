"""What a notebook shows of errors, simulations and analyses."""

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl

import pytest_pallas
from pallas_sim import simulate
from pytest_pallas.report import html as inline

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'pytest-pallas[report]'")

X = np.ones((8, 128), np.float32)


def copied(x, *, factor=1):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * factor

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def test_a_right_simulation_is_its_outputs():
    html = simulate(copied, X)._repr_html_()
    assert html is not None
    assert "output: float32[8, 128]" in html
    assert "no finding" in html
    assert "<article" not in html


def test_a_right_grid_is_its_report():
    html = pytest_pallas.analyze(copied, X)._repr_html_()
    assert html is not None
    assert "<pre>body" in html
    assert "<article" not in html


def test_an_error_without_arrays_is_its_message():
    with pytest.raises(pytest_pallas.OptionError) as caught:
        pytest_pallas.check(copied, X, reference=lambda x: x, checks="forwards")
    html = caught.value._repr_html_()
    assert html is not None
    assert "OptionError" in html
    assert "unknown &#39;forwards&#39;" in html


def test_the_style_stays_inside():
    html = simulate(copied, X)._repr_html_()
    assert html is not None
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert style.startswith(".pallas-inline {")
    assert ":root" not in style


def test_without_jinja_there_is_only_text(monkeypatch):
    monkeypatch.setattr(inline, "find_spec", lambda name: None)
    assert simulate(copied, X)._repr_html_() is None


def test_another_object_has_no_picture():
    with pytest.raises(TypeError, match="int has no picture"):
        inline.html_of(3)
