"""Recorded costs: what may grow, what may not, and what a wrong file says."""

import json

import pytest

from pytest_pallas import OptionError
from pytest_pallas.compile import costs
from pytest_pallas.compile.service import CompileReport

REPORT = CompileReport(
    target="v6e",
    status="compiled",
    compiler="libtpu 1",
    signature="float32[8,128]",
    vmem_bytes=1000,
    bundles=200,
    loop_bundles=50,
    spills=0,
    fills=0,
)


def changed(**fields):
    import dataclasses

    return dataclasses.replace(REPORT, **fields)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "costs.json"
    costs.save(path, [costs.entry("matmul", "forward", REPORT)])
    return path


def grown(path, report, limit=5.0, kernel="matmul"):
    return costs.load(path, limit).grown(kernel, "forward", report)


def test_the_same_costs_and_smaller_ones_pass(path):
    assert grown(path, REPORT) is None
    assert grown(path, changed(bundles=100, vmem_bytes=1)) is None


def test_growth_up_to_the_limit_passes_and_beyond_it_fails_with_both_numbers(path):
    assert grown(path, changed(bundles=210)) is None
    text = grown(path, changed(bundles=211))
    assert text is not None
    assert "211 bundles, recorded 200 (+6 %)" in text
    assert "--pallas-cost=record" in text
    assert grown(path, changed(bundles=211), limit=10.0) is None


def test_one_spill_more_fails_whatever_the_limit(path):
    assert "1 spills, recorded 0" in (grown(path, changed(spills=1), limit=1000.0) or "")


def test_every_number_that_grew_is_named(path):
    text = grown(path, changed(bundles=400, vmem_bytes=4000)) or ""
    assert "4,000 bytes of VMEM, recorded 1,000" in text
    assert "400 bundles" in text


def test_another_compiler_is_named(path):
    assert "Recorded with libtpu 1, compiled with libtpu 2" in (
        grown(path, changed(bundles=400, compiler="libtpu 2")) or ""
    )


@pytest.mark.parametrize(
    "report",
    [
        changed(target="v5e", bundles=900),
        changed(signature="bfloat16[8]", bundles=900),
        changed(status="refused", bundles=900),
        None,
    ],
)
def test_what_was_not_recorded_is_not_compared(path, report):
    assert grown(path, report) is None


def test_recording_again_replaces_its_own_entries_and_keeps_the_others(path):
    other = costs.entry("softmax", "forward", REPORT)
    assert costs.save(path, [other]) == 1
    costs.save(path, [costs.entry("matmul", "forward", changed(bundles=500))])
    loaded = costs.load(path, 5.0).entries
    assert {key[0] for key in loaded} == {"matmul", "softmax"}
    assert grown(path, changed(bundles=500)) is None


def test_the_file_is_the_same_whatever_the_order(path, tmp_path):
    one, two = costs.entry("a", "forward", REPORT), costs.entry("b", "forward", REPORT)
    costs.save(tmp_path / "1", [one, two])
    costs.save(tmp_path / "2", [two, one])
    assert (tmp_path / "1").read_text() == (tmp_path / "2").read_text()


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(OptionError, match=r"there is no file .*--pallas-cost=record"):
        costs.load(tmp_path / "none.json", 5.0)


@pytest.mark.parametrize("text", ["", "[]", '{"costs": []}', '{"schema": 1, "costs": [{"a": 1}]}'])
def test_a_foreign_file_is_neither_read_nor_overwritten(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(OptionError, match="not a file of --pallas-cost=record"):
        costs.load(path, 5.0)
    with pytest.raises(OptionError, match="not a file of --pallas-cost=record"):
        costs.save(path, [costs.entry("matmul", "forward", REPORT)])
    assert path.read_text() == text


def test_another_schema_is_named(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"schema": 99, "costs": []}))
    with pytest.raises(OptionError, match="has schema 99, and this version reads 1"):
        costs.load(path, 5.0)
