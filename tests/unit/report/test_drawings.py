"""Pictures: well-formed, escaped, and what is in them is where it should be."""

from __future__ import annotations

import base64
import itertools
import re
import struct
import zlib
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from pallas_test_support.report_samples import GRID, HOSTILE, RACE, WAITS, error_pictures

from pallas_sim.findings import Owner, Wait
from pytest_pallas.record import Record
from pytest_pallas.report.cards import failure
from pytest_pallas.report.charts import (
    against_dims,
    histogram,
    share,
    slots,
    stacked,
    without_overlap,
)
from pytest_pallas.report.drawings import (
    LEVELS,
    Matrix,
    graph,
    grid,
    heat,
    lower,
    short_number,
    timeline,
)
from pytest_pallas.report.pictures import level

ERRORS = error_pictures()

PICTURES = {
    "heat": heat(ERRORS["errors"], ERRORS["programs"]),
    "histogram": histogram(ERRORS["histogram"]),
    **{f"dim {name}": chart for name, chart in against_dims(ERRORS["examples"])},
    "race": timeline(RACE),
    "waits": graph(WAITS),
    "grid": grid(GRID),
    "share": share(3, 4, "3 of 4", before=2),
    "slots": slots({"mxu": 0.5}, "slots"),
    "stacked": stacked([("failed", 1), ("passed", 9)], "outcomes"),
}


def parsed(svg):
    return ElementTree.fromstring(svg)


@pytest.mark.parametrize("name", PICTURES)
def test_is_well_formed_and_has_a_title(name):
    root = parsed(PICTURES[name])
    assert root.get("role") == "img"
    title = root.find("title")
    assert title is not None
    assert title.text == root.get("aria-label") != ""
    assert "nan" not in PICTURES[name]


def test_of_everything_hostile():
    """Names come from kernels, and messages from anywhere."""
    hostile = Owner(thread=HOSTILE)
    race = [replace(RACE[0], ref=HOSTILE, line=HOSTILE), replace(RACE[1], owner=hostile)]
    waits = [replace(WAITS[0], on=HOSTILE, line=HOSTILE, owner=hostile)]
    operand = {**GRID, "operand": HOSTILE, "kernel": HOSTILE}
    errors = {**ERRORS["errors"], "output": HOSTILE, "dtype": HOSTILE}
    examples = [{**e, "dims": {HOSTILE: e["dims"]["m"]}} for e in ERRORS["examples"]]
    for svg in (timeline(race), graph(waits), grid(operand), heat(errors),
                against_dims(examples)[0][1]):  # fmt: skip
        names = {element.tag for element in parsed(svg).iter()}
        assert not names & {"img", "script"}, names
        assert "<script" not in svg


def pixels(svg):
    """The rows of the PNG in an error map, and its colours."""
    [source] = re.findall(r'href="data:image/png;base64,([^"]+)"', svg)
    data = base64.b64decode(source)
    found, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 8 : at + 8 + size]
        assert (
            zlib.crc32(data[at + 4 : at + 8 + size])
            == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        )
        found[data[at + 4 : at + 8]] = body
        at += 12 + size
    width, height = struct.unpack(">II", found[b"IHDR"][:8])
    raw = zlib.decompress(found[b"IDAT"])
    rows = [raw[1 + y * (width + 1) : (y + 1) * (width + 1)] for y in range(height)]
    return rows, found[b"PLTE"]


def test_pixels_of_a_map():
    errors = {**ERRORS["errors"], "rows": ["a.", "Z!"], "shape": [2, 2], "cell": [1, 1]}
    rows, colors = pixels(heat(errors))
    assert len(rows) == 2
    assert len({*rows[0], *rows[1]}) == 4
    assert len(colors) == 3 * 4
    red, green, blue = colors[3 * rows[1][0] : 3 * rows[1][0] + 3]
    assert red > 2 * max(green, blue), "what is wrong is red"


def test_the_wrong_program_is_framed_at_its_block():
    svg = parsed(PICTURES["heat"])
    matrix = Matrix((256, 384))
    [frame] = [e for e in svg.iter("rect") if e.get("class") == "wrong-block"]
    x, y = matrix.position(192, 128)
    assert float(frame.get("x")) == pytest.approx(x, abs=0.1)
    assert float(frame.get("y")) == pytest.approx(y, abs=0.1)
    assert "program (3, 1): 8,192 wrong elements" in frame.find("title").text


def test_blocks_of_higher_ranks():
    """A block of a batch is a band of rows in each of its members."""
    parts = list(Matrix((4, 8, 16)).parts((2, 0, 8), (2, 8, 8)))
    assert len(parts) == 2
    matrix = Matrix((4, 8, 16))
    assert parts[0][:2] == matrix.position(16, 8)
    assert parts[1][:2] == matrix.position(24, 8)
    assert list(matrix.parts((4, 0, 0), (1, 8, 8))) == [], "beyond the array"
    assert len(list(Matrix((7,)).parts((0,), (4,)))) == 1
    assert len(list(Matrix(()).parts((), ()))) == 1


def test_levels_mean_the_same_on_both_sides():
    import numpy as np

    for number in range(2, LEVELS + 1):
        assert level(np.array([lower(number)]))[0] == number


def test_histogram_names_what_is_not_finite():
    kernel = [0] * 27 + [5]
    assert "NaN, inf: " not in histogram({"kernel": [4] + [0] * 27, "baseline": [0] * 28})
    assert "kernel: 5 elements at NaN, inf" in histogram({"kernel": kernel, "baseline": [0] * 28})


def test_no_chart_of_a_dim_with_one_size():
    examples = [{"dims": {"m": 8, "n": n}, "error": "inf", "baseline": 0.0, "failed": True}
                for n in (1, 2)]  # fmt: skip
    [(name, chart)] = against_dims(examples)
    assert name == "n"
    assert chart.count('class="point-failed"') == 2 + 1  # and the key


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0"), (0.25, "0.25"), (8.0, "8"), (2048.0, "2,048"), (2.0**21, "2e6"), (1e-5, "1e-5"),
     (float("inf"), "∞")],
)  # fmt: skip
def test_numbers_are_shown_in_a_few_characters(value, words):
    assert short_number(value) == words


def test_threads_of_a_gpu_and_barriers_without_names():
    """Such a barrier is told by its line; a thread by its block on the first device."""
    waits = [
        Wait(owner=Owner(thread="block 1, warpgroup 0"), on="", needed=2, had=1, unit="arrivals",
             line="/home/k.py:24"),
        Wait(owner=Owner(device=1, thread="block 1, warpgroup 1"), on="", needed=1,
             unit="arrivals"),
    ]  # fmt: skip
    drawn = graph(waits)
    assert ">block 1, warpgroup 0<" in drawn
    assert "needs 2 arrivals, has 1" in drawn
    assert "the barrier at k.py:24<" in drawn
    assert "the barrier at an unknown line" in drawn


def test_a_copy_to_another_device():
    access = replace(RACE[0], owner=Owner(device=1), home=2)
    drawn = timeline([access, RACE[1]])
    assert "device 1, copy" in drawn
    assert "to device 2" in drawn


@pytest.mark.parametrize(
    ("role", "rows", "caption"),
    [
        ("mask", ["10", "11"], "causal. Filled cells are True."),
        ("ids", ["ab", "cz"], "causal. Equal ids have one colour."),
        ("mask", ["1"], "causal. Filled cells are True; the first 1 rows and 1 columns."),
    ],
)
def test_masks_and_ids(role, rows, caption):
    argument = {
        "where": "argument 1", "role": role, "words": "causal", "shape": [2, 2], "rows": rows
    }  # fmt: skip
    [figure] = failure(wrong_record(arguments=[argument])).figures
    assert figure.kind == "argument"
    assert "<title>argument 1: causal</title>" in figure.picture
    assert "data:image/png;base64," in figure.picture
    assert figure.caption == f"argument 1, {caption}"


def wrong_record(**pictures):
    return Record(
        test="a", kernel="k", check="forward", backend="tpu-sim", outcome="failed", message="wrong",
        pictures=pictures,
    )  # fmt: skip


def test_labels_do_not_overlap():
    labels = ["none", "> 0", "1,024", "2,048", "4,096", "8,192", "16,384", "NaN, inf"]
    for step in (10.0, 25.0, 60.0):
        shown = sorted(without_overlap(labels, step))
        assert shown[-1] == len(labels) - 1
        ends = [(step * (p + 0.5), 3.0 * len(labels[p])) for p in shown]
        for (one, half), (two, other) in itertools.pairwise(ends):
            assert one + half < two - other
    assert len(without_overlap(labels, 60.0)) == len(labels)


def test_sizes_of_a_file_that_no_array_has_take_no_time():
    """Such as those of a damaged record: nothing is listed that is not drawn."""
    many = 2**53
    pictures = error_pictures()
    errors = {**pictures["errors"], "shape": [many, many, many]}
    block = {"block": [0, 0, 0], "programs": [[0]], "wrong": 1}
    programs = {**pictures["programs"], "block": [many, 1, 1], "wrong": [block]}
    assert heat(errors, programs).startswith("<svg")
    assert len(list(Matrix((many, 4, 4)).parts([0, 0, 0], [many, 4, 4]))) == 64
