"""The HTML report in a browser: filters, sorting, details, themes, narrow screens, no network."""

from __future__ import annotations

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'pytest-pallas[report]'")

from pallas_test_support.report_samples import ENVIRONMENT, HOSTILE, OPTIONS, samples

from pytest_pallas.report.html import page

FAILED = ["ring", "softmax", HOSTILE, "holes", "mended"]
EVERY = [*FAILED, "known", "exact"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text("".join(page(samples(), environment=ENVIRONMENT, options=OPTIONS)), "utf-8")
    return path


@pytest.fixture
def opened(browser, report):
    """The report, just opened; and at the end, nothing went wrong and nothing was fetched."""
    browser.open(report)
    yield browser
    assert browser.console() == []
    urls = [url for url in browser.requests() if not url.startswith(("data:", "about:"))]
    assert {url.partition("#")[0] for url in urls} <= {report.as_uri()}


def choose(browser, name, text):
    from selenium.webdriver.support.select import Select

    Select(browser.one(f"#{name}")).select_by_visible_text(text)


def test_worst_first(opened):
    assert opened.rows() == EVERY
    assert opened.one("#shown").text == "7 of 7 kernels"
    assert opened.one("h1").text == "6 checks failed, in 5 of 7 kernels"


def test_hostile_names_do_nothing(opened):
    assert HOSTILE in opened.rows()
    assert opened.all("img") == []
    assert opened.js("return document.title").startswith("6 checks failed")
    opened.one("#open-failed").click()
    assert HOSTILE in opened.one("main").text


def test_only_failures(opened):
    opened.one("#only-failed").click()
    assert opened.rows() == FAILED
    assert opened.one("#shown").text == "5 of 7 kernels"
    assert [e.text for e in opened.all("details.kernel .name") if e.is_displayed()] == FAILED
    opened.one("#filters button[type=reset]").click()
    # The form resets what it says of itself at once; the filter runs after it.
    opened.until(
        "return [...document.querySelectorAll('#matrix tbody tr')].some(r => r.hidden)", False
    )
    assert opened.rows() == EVERY
    assert opened.one("#shown").text == "7 of 7 kernels"


def test_by_family(opened):
    choose(opened, "family", "copies")
    assert opened.rows() == ["holes", "mended", "known", "exact"]


def test_by_backend(opened):
    """Others' columns go, and so do kernels that were not asked there."""
    choose(opened, "backend", "tpu-interpret:v6e")
    assert opened.rows() == ["ring", "softmax", "exact"]
    heads = [e.text for e in opened.all("#matrix thead th[data-backend]") if e.is_displayed()]
    assert heads == ["tpu-interpret:v6e"]
    opened.one("#only-failed").click()
    assert opened.rows() == ["ring", "softmax"]
    choose(opened, "backend", "interpret")
    assert set(opened.rows()) == {"holes", "mended", HOSTILE}


def test_by_name(opened):
    opened.one("#search").send_keys("COPIES ho")
    opened.until("return document.getElementById('shown').value", "1 of 7 kernels")
    assert opened.rows() == ["holes"]
    opened.one("#search").clear()
    opened.one("#search").send_keys("nothing like it")
    opened.until("return document.getElementById('shown').value", "0 of 7 kernels")


def heading(browser, text):
    [found] = [e for e in browser.all("#matrix thead button") if e.text == text]
    return found


def test_sorting(opened):
    heading(opened, "Kernel").click()
    assert opened.rows() == sorted(EVERY, key=str.lower)
    head = opened.one("#matrix thead th")
    assert head.get_attribute("aria-sort") == "ascending"
    heading(opened, "Kernel").click()
    assert opened.rows() == sorted(EVERY, key=str.lower, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"


def test_sorting_by_error_and_backend(opened):
    heading(opened, "Error").click()
    assert opened.rows()[0] == "softmax"
    assert len(opened.all('#matrix th[aria-sort="descending"]')) == 1
    heading(opened, "tpu-interpret:v6e").click()
    assert opened.rows()[:3] == ["ring", "softmax", "exact"]
    opened.one("#only-failed").click()
    assert opened.rows()[:2] == ["ring", "softmax"], "sorted as before"


def test_a_badge_has_the_colour_of_its_own_check(opened):
    """Also in the card of a kernel that failed."""
    opened.one("#open-failed").click()
    colours = opened.js(
        "return [...document.querySelectorAll('table.checks tbody .pill')].map("
        "e => [e.textContent, getComputedStyle(e).color, e.closest('details').dataset.state])"
    )
    red = {colour for text, colour, _ in colours if text == "failed"}
    green = {colour for text, colour, _ in colours if text == "passed"}
    assert len(red) == len(green) == 1
    assert red != green
    assert "failed" in {state for text, _, state in colours if text == "passed"}


def test_the_lines_of_a_finding_are_marked(opened):
    opened.one("#open-failed").click()
    marked = [e.text for e in opened.all(".excerpt .marked") if "copy.start" in e.text]
    assert marked == ["26    copy.start()"]


def test_a_click_opens_the_kernel(opened):
    opened.one("#close-all").click()
    [link] = [e for e in opened.all("#matrix tbody a") if e.text == "softmax"]
    opened.js("scrollTo(0, 0)")  # or it may be below the bar, which stays
    link.click()
    name = link.get_attribute("href").partition("#")[2]
    opened.until(f"return document.getElementById('{name}').open", True)
    shown = opened.one(f"#{name}")
    assert opened.js("return document.activeElement.parentElement.id") == name
    assert "m=256 n=384 dtype=float32" in shown.text
    assert "8390 ulps of the output scale" in shown.text
    pictures = shown.find_elements("css selector", "figure svg[role=img]")
    assert len(pictures) == 4
    assert all(picture.size["width"] > 200 for picture in pictures)
    # Closed by hand, the same link opens it again.
    shown.find_element("css selector", "summary").click()
    opened.until(f"return document.getElementById('{name}').open", False)
    opened.js("scrollTo(0, 0)")
    link.click()
    opened.until(f"return document.getElementById('{name}').open", True)


def test_an_address_opens_the_kernel(opened, report):
    name = opened.all("#matrix tbody tr")[-1].get_attribute("data-kernel")
    opened.open(report, fragment=f"#{name}")
    assert opened.js("return document.getElementById(arguments[0]).open", name)


def test_every_picture_is_drawn(opened):
    opened.one("#open-failed").click()
    kinds = {e.get_attribute("class") for e in opened.all("figure")}
    assert kinds == {
        f"picture-{kind}" for kind in ("heat", "histogram", "scatter", "race", "waits", "grid")
    }
    for image in opened.all("svg image"):
        box = opened.js("const b = arguments[0].getBBox(); return [b.width, b.height]", image)
        assert min(box) > 10


def test_keyboard(opened):
    """The first stop is the way past the navigation; rows, headings and details are stops."""
    from selenium.webdriver.common.keys import Keys

    opened.one("body").send_keys(Keys.TAB)
    assert opened.js("return document.activeElement.className") == "skip"
    heading(opened, "Kernel").send_keys(Keys.ENTER)
    assert opened.rows()[0] == sorted(EVERY, key=str.lower)[0]
    link = opened.one("#matrix tbody a")
    link.send_keys(Keys.ENTER)
    opened.until("return document.activeElement.tagName", "SUMMARY")
    outline = opened.js(
        "const b = document.querySelector('#only-failed'); b.focus({focusVisible: true});"
        "return getComputedStyle(b).outlineStyle"
    )
    assert outline == "solid"


def test_copy(opened):
    opened.js(
        "Object.defineProperty(navigator, 'clipboard', {value: {"
        "writeText: async t => { window.copied = t }}, configurable: true})"
    )
    opened.one("#open-failed").click()
    button = opened.one(".copy")
    opened.js("arguments[0].click()", button)
    opened.until("return window.copied", opened.one(".copyable code").text)
    opened.until("return document.querySelector('.copy').textContent", "Copied")


CONTRAST = """
const luminance = c => {
  const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const behind = e => {
  for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0.99) return c.slice(0, 3);
  }
  return [255, 255, 255];
};
const found = new Map();
for (const e of document.querySelectorAll('main *, header *, footer')) {
  const svg = e.closest('svg');
  if (svg ? e.tagName !== 'text' : ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  if (!e.checkVisibility()) continue;
  const style = getComputedStyle(e);
  const ink = rgb(svg ? style.fill : style.color);
  if (svg && e.previousElementSibling && /access|node/.test(e.previousElementSibling.className.baseVal)) continue;
  const [a, b] = [luminance(ink.slice(0, 3)), luminance(behind(e.parentElement.closest('svg') ? svg.parentElement : e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.set(e.tagName + '.' + (e.className.baseVal ?? e.className) + ' ' + e.textContent.slice(0, 30), ratio);
}
return [...found];
"""  # noqa: E501


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_contrast(opened, report, dark):
    """WCAG AA: 4.5 to 1 for all text."""
    opened.open(report, dark=dark)
    opened.one("#open-failed").click()
    assert opened.js(CONTRAST) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_lines_of_code_have_the_colour_of_what_ran(opened, report, dark):
    """Each state has its own, and a sign for those who do not see colours."""
    opened.open(report, dark=dark)
    opened.js("for (const each of document.querySelectorAll('details')) each.open = true")
    lines = opened.js(
        "return [...document.querySelectorAll('.ran .code')].map("
        "e => [e.className, e.innerText, getComputedStyle(e).backgroundColor, e.checkVisibility()])"
    )
    shown = {name.removeprefix("code").strip(): (text, colour) for name, text, colour, _ in lines}
    assert all(visible for *_, visible in lines)
    signs = {state: opened.one(f".code.{state} .sign").text for state in shown if state}
    assert signs == {"reached": "✓", "partly": "◐", "never": "✗", "excused": "-"}
    assert len({colour for _, colour in shown.values()}) >= 4, "with that of other lines"
    assert "true 3 times, false 4 times" in shown["reached"][0]
    assert "0 rounds never, several 2 times" in shown["partly"][0]
    assert "ring buf first never, again never" in shown["never"][0]
    assert "ring small need not run" in shown["excused"][0]
    assert any("def compiled(target: str" in text for _, text, *_ in lines)


def background(browser):
    return browser.js("return getComputedStyle(document.body).backgroundColor")


def test_themes(opened, report):
    light = background(opened)
    choose(opened, "theme", "dark")
    dark = background(opened)
    assert dark != light
    opened.open(report)
    assert background(opened) == dark, "the choice is kept"
    choose(opened, "theme", "light")
    opened.open(report, dark=True)
    assert background(opened) == light, "whatever the system says"
    choose(opened, "theme", "as the system")
    assert background(opened) == dark


@pytest.mark.parametrize("width", [375, 768, 1280])
def test_no_page_wide_scrolling(opened, report, width):
    opened.open(report, width=width)
    opened.js("for (const each of document.querySelectorAll('details')) each.open = true")
    wide, room = opened.js(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= room <= width
    cell = opened.one("#matrix tbody td.cell")
    assert opened.js("return arguments[0].getBoundingClientRect().left", cell) < width


def test_printed(opened):
    """Filters go, failures open, and dark paper does not cost ink."""
    choose(opened, "theme", "dark")
    opened.one("#close-all").click()
    opened.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    opened.js("dispatchEvent(new Event('beforeprint'))")
    assert not opened.one("#filters").is_displayed()
    assert background(opened) == "rgb(255, 255, 255)"
    assert len(opened.all('details.kernel[data-state="failed"][open]')) == 5
    opened.js("dispatchEvent(new Event('afterprint'))")
    assert opened.all("details.kernel[open]") == []
    opened.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    choose(opened, "theme", "as the system")


def test_without_scripts(browser, report):
    """Everything is there but filters, and a kernel can be opened."""
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(report)
        assert not browser.one("#filters").is_displayed()
        assert len(browser.all("#matrix tbody tr")) == len(EVERY)
        browser.all("details.kernel > summary")[-1].click()
        assert browser.all("details.kernel")[-1].get_attribute("open") is not None
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
