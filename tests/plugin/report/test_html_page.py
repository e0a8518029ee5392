"""The page itself, from records that were made by hand."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'pytest-pallas[report]'")

from pallas_test_support.report_samples import ENVIRONMENT, HOSTILE, OPTIONS, samples

from pytest_pallas.compile.costs import RecordedCost
from pytest_pallas.record import Record
from pytest_pallas.report import html as html_page
from pytest_pallas.report import html as kernels
from pytest_pallas.report.cards import failure
from pytest_pallas.report.html import page

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Outline(HTMLParser):
    """Elements with attributes, text, and whether every one is closed."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


def text_of(records, **rest):
    return "".join(page(records, environment=ENVIRONMENT, options=OPTIONS, **rest))


def outline(records, **rest):
    found = Outline()
    found.feed(text_of(records, **rest))
    assert found.open == []
    return found


def test_is_well_formed_and_names_are_unique():
    found = outline(samples())
    names = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert len(names) == len(set(names))
    targets = {attrs["href"] for attrs in found.all("a")}
    assert {target[1:] for target in targets} <= set(names)


def test_hostile_names_are_text():
    found = outline(samples())
    assert "img" not in {tag for tag, _ in found.elements}
    assert len(found.all("script")) == 1
    assert not [k for _, attrs in found.elements for k in attrs if k.startswith("on")]
    assert HOSTILE in "".join(found.text)
    assert "\x00" not in "".join(found.text)
    assert "\x1b" not in "".join(found.text)


def test_for_screen_readers():
    found = outline(samples())
    assert {"header", "main", "nav", "footer"} <= {tag for tag, _ in found.elements}
    assert all(attrs.get("scope") in ("row", "col") for attrs in found.all("th"))
    pictures = found.all("svg")
    assert all(attrs.get("aria-label") for attrs in pictures if attrs.get("role") == "img")
    named = {attrs.get("id") for attrs in found.all("input") + found.all("select")}
    assert named == {"theme", "search", "family", "backend", "only-failed"}
    assert found.all("html")[0]["lang"] == "en"


def test_kernels_are_sorted_worst_first():
    text = text_of(samples())
    places = [text.index(f">{name}</a>") for name in ("ring", "softmax", "known", "exact")]
    assert places == sorted(places)


def test_what_is_said_of_a_failure():
    record = samples()[0]
    found = failure(record)
    assert found.headline == "output, float32[256, 384]: wrong in 8192 of 98304 elements (8.33 %)"
    drawn, compared = dict(found.drawn), dict(found.compared)
    assert drawn["tuning"] == ["block=64"]
    assert compared["error"][1] == "(a narrow accumulator, or one rounding too many?)"
    assert compared["block"][0].startswith("written by program (3, 1) of body")
    assert [figure.kind for figure in found.figures] == ["heat", "histogram", "scatter", "scatter"]


def test_source_code_stands_around_a_finding():
    [race] = [r for r in samples() if r.check == "races"]
    [source] = failure(race).sources
    assert source.title == "/home/me/copies.py:26, 27"
    assert [number for number, _, _ in source.rows] == [24, 25, 26, 27, 28]
    assert [text for _, text, marked in source.rows if marked] == [
        "    copy.start()",
        "    o_ref[...] = x_buffer[...] < 0",
    ]
    assert "o_ref[...] = x_buffer[...] &lt; 0" in text_of([race])


def test_table_and_details_count_alike_in_the_words_of_the_terminal():
    first = samples()[0]
    rows = [
        *(dataclasses.replace(first, check=check) for check in ("forward", "jit")),  # of one cause
        dataclasses.replace(first, check="vmap", outcome="passed"),
        dataclasses.replace(first, check="dtype", outcome="xpassed"),
        dataclasses.replace(first, check="cross", outcome="skipped", stopped_by="softmax-forward"),
        dataclasses.replace(first, check="races", outcome="skipped", requirement="no copy"),
        dataclasses.replace(first, check="dma", outcome="skipped"),
    ]
    [kernel] = kernels.kernels(rows, [first.backend])
    assert kernel.cells[0].text == "1 ok 3 FAILED"
    counts = "3 failed, 1 passed, 1 skipped, 1 not run, 1 not applicable"
    assert (kernel.counts, kernel.cells[0].title) == (counts, counts)
    assert len(kernel.failures) == 2
    assert f" · {counts} · " in text_of(rows)
    outcomes = [row.outcome for row in kernel.checks]
    assert outcomes == [
        *("failed", "failed", "xpassed", "passed", "skipped", "not run", "not applicable"),
    ]
    [stopped] = kernels.kernels(rows[4:5] * 2, [first.backend])
    assert stopped.cells[0].text == "2 not run"


def test_costs_against_recorded_ones():
    key = ("softmax", "forward", "v6e", "float32[256, 384]")
    cost = {"vmem_bytes": 2 * 2**20, "bundles": 2157, "spills": 0}
    names = ("kernel", "check", "target", "signature")
    old = RecordedCost(**dict(zip(names, key, strict=True)), compiler="c", cost=cost)
    found = html_page.cost_table(samples(), {key: old})
    assert found is not None
    [row] = found.rows
    assert (row.memory.text, row.memory.change) == ("3.0 MiB, 19 %", "+50 %")
    numbers = dict(zip(found.titles, row.numbers, strict=True))
    assert numbers["bundles"].change == ""
    assert (numbers["spills"].text, numbers["spills"].change) == ("7", "was 0")
    assert row.slots is not None
    assert "mxu 40 %" in row.slots
    assert "recorded: 2.0 MiB" in row.bar
    plain = html_page.cost_table(samples(), {})
    assert plain is not None
    assert plain.rows[0].memory.change == ""
    assert html_page.cost_table(samples()[:3], {}) is None


@pytest.mark.parametrize(
    ("outcome", "reason", "headline"),
    [
        ("xpassed", "#12", "passed, but is expected to fail: #12"),
        ("xpassed", "", "passed, but is expected to fail"),
        ("failed", "", "failed without a message"),
        ("failed", "#12", "failed without a message: #12"),
    ],
)
def test_the_headline_of_a_record_without_a_message_is_its_outcome(outcome, reason, headline):
    record = dataclasses.replace(samples()[0], outcome=outcome, reason=reason)
    assert failure(dataclasses.replace(record, message="", explanation={})).headline == headline


def test_of_very_many_failures_the_first_have_pictures(monkeypatch):
    monkeypatch.setattr(kernels, "MOST_DRAWN", 1)
    monkeypatch.setattr(html_page, "MOST_DRAWN", 1)
    text = text_of(samples())
    assert "5 of 6 failures have no pictures here" in text
    assert text.count('class="picture-') == 4


def test_two_files_may_have_kernels_of_one_name():
    import dataclasses

    first = samples()[0]
    second = dataclasses.replace(first, test="other.py::softmax-forward[x]")
    found = outline([first, second])
    assert len([a for a in found.all("details") if a.get("class", "").startswith("kernel")]) == 2


def words(word):
    """The words of a dim."""
    return [{"role": "dim", "name": "m", "words": [word]}]


def passed(count, backends=("interpret", "tpu-sim")):
    """Records of so many kernels, each on these backends."""
    return [
        Record(
            test=f"many.py::k{n}-forward[{backend}]", kernel=f"k{n}", check="forward",
            backend=backend, outcome="passed", multiple=n + place / 2, examples=8, seconds=0.5,
            inputs={"shapes": ["8x128"], "signatures": 1, "dtypes": [], "tried": words("one"),
                    "never": words("tile")},
        )
        for n in range(count) for place, backend in enumerate(backends)
    ]  # fmt: skip


def test_checks_that_differ_in_their_backend_only_are_one_row():
    one, other = passed(1)
    rows = kernels.check_rows([one, other])
    assert [(row.backends, row.multiple, row.examples, row.seconds) for row in rows] == [
        (["interpret", "tpu-sim"], 0.5, 16, 1.0)
    ]
    told = dataclasses.replace(other, reason="slow")
    assert len(kernels.check_rows([one, told])) == 2
    failed = [dataclasses.replace(each, outcome="failed") for each in (one, other)]
    assert len(kernels.check_rows(failed)) == 2
    assert "<td>interpret, tpu-sim</td>" in text_of([one, other])


def test_of_very_many_kernels_the_failed_and_the_worst_have_details(monkeypatch):
    for module in (kernels, html_page):
        monkeypatch.setattr(module, "MOST_DETAILED", 3)
    records = passed(50)
    records[0] = dataclasses.replace(records[0], outcome="failed", message="wrong")
    found = outline(records)
    detailed = [each["id"] for each in found.all("details") if "data-state" in each]
    assert detailed == ["kernel-0", "kernel-49", "kernel-48", "kernel-47"]
    links = [each["href"] for each in found.all("a") if each["href"].startswith("#kernel-")]
    assert sorted(links) == sorted(f"#{name}" for name in detailed)
    text = " ".join(found.text)
    assert "46 kernels without failures have no details here: the 3 with the largest" in text
    assert "Here are 3 of 50 kernels." in text
    assert len([each for each in found.all("tr") if "data-kernel" in each]) == 50


def test_a_page_is_made_in_parts():
    parts = list(page(passed(200), environment=ENVIRONMENT, options=OPTIONS))
    assert len(parts) > 200
    assert max(map(len, parts)) < 40_000  # the style and the script
