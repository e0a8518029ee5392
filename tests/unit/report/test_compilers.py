"""The tables of compiling backends, from records."""

import pytest

from pytest_pallas.backends.registry import FAMILIES, compiling
from pytest_pallas.compile import report as compilers
from pytest_pallas.compile.report import costs
from pytest_pallas.record import Record
from pytest_pallas.report import terminal

COST = {
    "vmem_bytes": 3 * 2**20,
    "vmem_capacity": 128 * 2**20,
    "smem_bytes": 52,
    "code_bytes": 186 * 2**10,
    "bundles": 2305,
    "empty_bundles": 16,
    "loop_bundles": 2285,
    "loop_slots": {"mxu": 0.19, "valu": 0.355, "scalar": 0.05},
    "spills": 517,
    "fills": 0,
}


def report(target="v6e", status="compiled", **fields):
    return {
        "target": target,
        "status": status,
        "compiler": "libtpu 1",
        "seconds": 0.5,
        "signature": "float32[8,128]",
        **(COST if status == "compiled" else {}),
        **fields,
    }


def record(kernel="matmul", *reports, backend="tpu-compile:v6e", outcome="passed", **fields):
    return Record(
        test=f"specs.py::{kernel}",
        kernel=kernel,
        check=fields.pop("check", "forward"),
        backend=backend,
        outcome=outcome,
        compiled=tuple(reports),
        **fields,
    )


def printed(*records, width=150):
    return "\n".join(compilers.sections(list(records), width=width, color=False)).splitlines()


def test_records_are_told_apart_by_the_kind_of_their_backend():
    families = (*FAMILIES, *compiling(lambda: None))
    ran = record("matmul", backend="interpret")
    left_out = record("tma", backend="tpu-compile:v6e", outcome="skipped")
    assert compilers.split([ran, left_out], families) == ([ran], [left_out])


def test_where_nothing_was_executed_there_is_no_legend_of_errors():
    assert terminal.footnote_lines([record("matmul", report())]) == []
    assert "1.2x" in terminal.footnote_lines([record(backend="interpret", multiple=1.1)])[0]


def test_kernels_that_no_chip_was_asked_about_have_no_row_but_one_line_for_all_chips():
    chips = ("v4", "v5e", "v6e")
    unclaimed = [
        record("tma", backend=f"tpu-compile:{chip}", outcome="skipped", reason="claims gpu only")
        for chip in chips
    ]
    text = printed(record("matmul", report()), *unclaimed)
    assert text[:2] == ["kernel  v6e", "matmul  compiled"]
    assert (
        "skipped (3) on tpu-compile:v4, tpu-compile:v5e, tpu-compile:v6e: tma: claims gpu only"
        in (text)
    )


def test_chips_of_tpus_and_of_gpus_have_tables_of_their_own():
    h100 = report("h100", registers=68, vmem_bytes=None, bundles=None)
    text = printed(
        record("tma", h100, backend="gpu-compile:h100"),
        record("matmul", report("v6e")),
        record("matmul", report("v4"), backend="tpu-compile:v4"),
    )
    assert text[0].split() == ["kernel", "v4", "v6e"]
    assert next(line.split() for line in text if "h100" in line) == ["kernel", "h100"]


@pytest.mark.parametrize(
    ("records", "cell"),
    [
        ([record("k", report(), report())], "compiled"),
        ([record("k", report(), report(status="refused"), outcome="failed")], "REFUSED 1/2"),
        (
            [record("k", report(status="refused"), report(status="crashed"), outcome="failed")],
            "CRASHED 1/2",
        ),
        ([record("k", report(status="refused"), outcome="xfailed")], "xfail"),
        (
            [
                record("k", report()),
                record("k", report(status="refused"), outcome="xfailed", check="gradient"),
            ],
            "compiled, 1 xfail",
        ),
        ([record("k", report(), outcome="failed")], "FAILED"),
        ([record("k", outcome="failed")], "FAILED"),
        ([record("k", report(), outcome="xpassed")], "XPASS"),
    ],
)
def test_a_cell_says_the_worst(records, cell):
    table = compilers.matrix(records, width=80, color=False).splitlines()
    assert table == ["kernel  v6e", f"k       {cell}"]


def test_a_reason_is_printed_once_with_its_chips():
    def refused(chip, columns):
        text = f"block (8, 48) of an array of {columns} columns\nin kernel k"
        return record(
            "k", report(chip, "refused", message=text),
            backend=f"tpu-compile:{chip}", outcome="failed",
        )  # fmt: skip

    assert list(compilers.reasons([refused("v5e", 480), refused("v6e", 960)])) == [
        "refused: k (v5e, v6e): block (8, 48) of an array of 480 columns"
    ]


def test_what_fails_without_a_refusal_says_why():
    dear = record(
        "k", report(), outcome="failed",
        message="k: forward on tpu-compile:v6e: its code for v6e costs more\ninputs",
        explanation={"summary": "its code for v6e costs more", "details": ["inputs"], "facts": []},
    )  # fmt: skip
    assert list(compilers.reasons([dear])) == ["failed: k (v6e): its code for v6e costs more"]


def test_an_expected_refusal_is_a_footnote_only():
    known = record("k", report(status="refused"), outcome="xfailed", reason="no sort (JAX 0.12)")
    text = printed(known)
    assert "expected failure (1) on tpu-compile:v6e: k: no sort (JAX 0.12)" in text
    assert not [line for line in text if line.startswith("refused")]


def test_programs_are_counted_with_those_of_the_cache():
    text = printed(record("k", report(), report(cached=True)))
    assert "2 programs, 1 of them compiled by an earlier run (libtpu 1)" in text


def test_nothing_is_cut_however_narrow_the_terminal():
    name = "a_kernel_with_quite_a_long_name_that_says_what_it_does"
    for width in (40, 80, 100, 140):
        text = printed(record(name, report()), width=width)
        assert "…" not in "\n".join(text)
        assert len([line for line in text if name in line]) == 2


def test_the_table_of_costs_leaves_out_what_has_no_room_and_says_what():
    def table(width):
        return "\n".join(costs([record("matmul", report())], width=width, color=False))

    wide = table(150).splitlines()
    assert wide[0].split() == [
        "kernel", "chip", "VMEM", "SMEM", "code", "bundles", "empty", "loop",
        "mxu", "xlu", "valu", "eup", "ld", "st", "sc", "spills", "fills",
    ]  # fmt: skip
    assert wide[1].split() == [
        "matmul", "v6e", "3.0", "MiB", "2%", "52", "B", "186", "KiB", "2,305", "16", "2,285",
        "19", "-", "36", "-", "-", "-", "5", "517", "0",
    ]  # fmt: skip
    assert "omitted columns" not in table(150)
    narrow = table(80).splitlines()
    assert len(narrow[0]) <= 80
    assert len(narrow[1]) <= 80
    assert {"VMEM", "bundles", "mxu", "spills"} <= set(narrow[0].split())
    left_out = narrow[-1].removeprefix("omitted columns: ").partition(";")[0].split(", ")
    assert set(left_out) == set(wide[0].split()) - set(narrow[0].split())


def test_meshes_and_shapes_of_one_kernel_are_rows_of_their_own():
    text = "\n".join(
        costs(
            [
                record("permute", report(), mesh={"x": 4}),
                record("permute", report(), mesh={"x": 8}),
                record("double", report(signature="float32[8,128]")),
                record("double", report(signature="float32[64,128]")),
            ],
            width=150,
            color=False,
        )
    )
    for name in ("permute x4", "permute x8", "double float32[8,128]", "double float32[64,128]"):
        assert f"\n{name} " in text


def test_spills_stand_out_where_there_are_colours():
    def colours(spills):
        text = costs([record("k", report(spills=spills))], width=150, color=True)
        return "\x1b[33m" in "\n".join(text)

    assert colours(517)
    assert not colours(0)


def test_warnings_of_the_assembler_are_printed_once():
    warned = report("h100", registers=68, warnings=["wgmma is serialised"])
    text = list(
        costs([record("k", warned, backend="gpu-compile:h100")] * 2, width=100, color=False)
    )
    assert text.count("warning: k: wgmma is serialised") == 1


def test_a_kernel_of_which_nothing_is_known_still_has_a_row():
    sparse = {"target": "v6e", "status": "compiled", "signature": "s"}
    table = next(costs([record("sparse", sparse)], width=150, color=False))
    assert set(table.splitlines()[1].split()[2:]) == {"-"}
