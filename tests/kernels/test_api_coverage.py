"""Every public name of Pallas is used by a reference kernel, or it is said why not."""

from __future__ import annotations

import importlib

import jax
import pytest
from pallas_test_support import api_coverage


@pytest.fixture(scope="module")
def page() -> str:
    text = api_coverage.PAGE.read_text()
    if f"JAX {jax.__version__} " not in text.replace("\n", " "):
        pytest.skip(f"docs/kernels/api.md is not of JAX {jax.__version__}")
    return text


@pytest.mark.parametrize("short", list(api_coverage.MODULES))
class TestNames:
    def test_every_name_is_used_or_explained(self, page: str, short: str) -> None:
        names = api_coverage.public_names(importlib.import_module(api_coverage.MODULES[short]))
        assert len(names) > 20
        used = set(api_coverage.users(short))
        explained = {*api_coverage.UNUSED[short], *api_coverage.OUTSIDE[short]}
        assert set(names) - used - explained == set()
        assert explained & used == set(), "used, and yet explained"
        assert explained - set(names) == set(), "gone"

    def test_the_page_shows_it(self, page: str, short: str) -> None:
        module = importlib.import_module(api_coverage.MODULES[short])
        assert api_coverage.table(short, module) in page


def test_nearly_all_names_for_kernels_are_used(page: str) -> None:
    names, inside, used = api_coverage.share()
    assert used >= 0.95 * inside
    assert f"{names} names" in page
    assert f"Of the other {inside}, {used} are used" in page


def test_names_in_comments_and_texts_do_not_count() -> None:
    source = (
        "from jax.experimental.pallas import tpu as chip\n"
        '"""chip.roll"""  # chip.touch\n'
        "chip.VMEM\n"
        "other.SMEM\n"
    )
    read = api_coverage._parsed(source)
    assert [*api_coverage._attributes(read, "jax.experimental.pallas.tpu")] == ["VMEM"]
