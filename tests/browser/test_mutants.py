"""The section of mutants in a browser: links, folding, contrast, narrow screens, print."""

from __future__ import annotations

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'pytest-pallas[report]'")

from pallas_test_support.mutant_samples import SOURCE, mutant_samples
from pallas_test_support.report_samples import ENVIRONMENT, OPTIONS, samples

from pytest_pallas.report.html import page

from .test_page import CONTRAST


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("mutants") / "report.html"
    records = [*samples(), *mutant_samples()]
    path.write_text("".join(page(records, environment=ENVIRONMENT, options=OPTIONS)), "utf-8")
    return path


@pytest.fixture
def opened(browser, report):
    """The report, just opened; and at the end, nothing went wrong."""
    browser.open(report)
    yield browser
    assert browser.console() == []


def row_of(browser, kernel):
    [link] = [e for e in browser.all("#mutants .scores tbody a") if e.text == kernel]
    return link


def test_the_keyboard_opens_a_kernel_and_its_equivalent_mutants(opened):
    from selenium.webdriver.common.keys import Keys

    link = row_of(opened, "perfect")
    name = link.get_attribute("href").partition("#")[2]
    assert opened.one(f"#{name}").get_attribute("open") is None
    link.send_keys(Keys.ENTER)
    opened.until(f"return document.getElementById('{name}').open", True)
    assert opened.js("return document.activeElement.parentElement.id") == name
    folded = opened.one(f"#{name} details.data")
    assert "the same program after simplification" not in folded.text
    folded.find_element("css selector", "summary").send_keys(Keys.ENTER)
    opened.until(f"return document.querySelector('#{name} details.data').open", True)
    assert "the same program after simplification" in folded.text


def test_source_code_is_shown_as_it_is(opened):
    sources = "[...document.querySelectorAll('#mutants pre.source')]"
    opened.until(f"return {sources}.filter(each => each.checkVisibility()).length >= 2", True)
    shown = [e.text for e in opened.all("#mutants pre.source") if e.is_displayed()]
    assert shown.count(SOURCE) == 2


def test_closing_all_checks_leaves_survivors_open(opened):
    opened.one("#close-all").click()
    assert opened.all("#details details.kernel[open]") == []
    assert len(opened.all("#mutants details.kernel[open]")) == 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast(opened, report, dark):
    """WCAG AA: 4.5 to 1 for all text."""
    opened.open(report, dark=dark)
    opened.js("for (const each of document.querySelectorAll('#mutants details')) each.open = true")
    assert opened.js(CONTRAST) == []


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_no_page_wide_scrolling(opened, report, width):
    """On a telephone, the score is seen beside the name without scrolling the table."""
    opened.open(report, width=width)
    opened.js("for (const each of document.querySelectorAll('details')) each.open = true")
    wide, room = opened.js(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= room <= width
    score = opened.one("#mutants .scores tbody .pill")
    assert opened.js("return arguments[0].getBoundingClientRect().right", score) < width


def test_survivors_are_printed(opened):
    opened.js("for (const each of document.querySelectorAll('#mutants details')) each.open = false")
    opened.js("dispatchEvent(new Event('beforeprint'))")
    assert len(opened.all("#mutants details.kernel[open]")) == 2
    opened.js("dispatchEvent(new Event('afterprint'))")
    assert opened.all("#mutants details[open]") == []
