"""What TPU kernels cost, read off cut samples of what libtpu 0.0.51 wrote.

``nested_*`` is a kernel with a grid of 4 whose body has a loop in a loop (the inner one adds a tile
of the output to an exponential) and another loop next to it. ``spills_tpu7x`` keeps
90 vectors alive in a loop, in 64 registers. ``scopes_v6e`` has three ``run_scoped`` of 8, 1024 and
512 rows of 128 floats, one after the other. ``copy_loops_v6e`` is a matmul with unaligned windows,
which the compiler copies in loops of its own. Comments, operands and most instructions are cut out
of the samples; nothing is put in.
"""

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

from pytest_pallas.compile.machine_code import PASS_LABELS, Cost, tpu_costs

DATA = Path(__file__).parent / "data"
LABELS = {
    "final_bundles",
    "final_hlo-static-per-bundle-utilization",
    "post-delay-converter",
    "schedule-analysis_final_bundles",
}


def only(sample):
    [cost] = tpu_costs(DATA / sample)
    return cost


def test_vmem_is_windows_twice_where_double_buffered():
    # The input of 256 x 128 floats is read in advance; the output's block never changes.
    assert only("nested_v6e").vmem_bytes == 3 * 256 * 128 * 4


def test_vmem_leaves_out_operands_that_xla_put_there():
    assert only("nested_tpu7x").vmem_bytes == 256 * 128 * 4


def test_vmem_of_scopes_that_follow_each_other_is_that_of_the_largest():
    assert only("scopes_v6e").vmem_bytes == 1024 * 128 * 4


def test_spill_slots_count_as_vmem():
    sample = DATA / "spills_tpu7x"
    [code] = sample.glob("*post-delay-converter*")
    slots = len(re.findall("_spill .*space=vmem", code.read_text()))
    assert slots > 100
    assert only("spills_tpu7x").vmem_bytes == 720 * 128 * 4 + slots * 8 * 128 * 4


def test_bundles_and_empty_bundles():
    cost = only("nested_v6e")
    assert (cost.bundles, cost.empty_bundles) == (86, 13)


@pytest.mark.parametrize(("sample", "bundles"), [("v4", 10), ("v6e", 11), ("tpu7x", 12)])
def test_the_loop_is_the_one_that_computes_with_its_delay_slots(sample, bundles):
    # From the mark LB with the deepest nesting to the branch back, and 1, 4 or 6 bundles more.
    assert only(f"nested_{sample}").loop_bundles == bundles


def test_slots_of_the_main_loop():
    slots = only("nested_v6e").loop_slots
    assert slots["mxu"] == slots["xlu"] == slots["store"] == 0
    assert slots["eup"] == pytest.approx(1 / 11)  # one exp2 a turn
    assert slots["load"] == pytest.approx(2 / 33)
    assert slots["valu"] == pytest.approx(6 / 44)
    assert slots["scalar"] == pytest.approx(9 / 22)


def test_a_kernel_without_loops_has_the_slots_of_the_whole_kernel():
    cost = only("scopes_v6e")
    assert cost.loop_bundles is None
    assert cost.loop_slots["load"] == pytest.approx(0.1, abs=0.01)


def test_loops_that_only_copy_are_part_of_what_surrounds_them():
    cost = only("copy_loops_v6e")
    assert cost.loop_bundles == 228
    assert cost.loop_slots["mxu"] > 0.1


def test_spills_and_fills():
    cost = only("spills_tpu7x")
    assert (cost.spills, cost.fills) == (171, 217)
    assert (only("nested_v6e").spills, only("nested_v6e").fills) == (0, 0)


def test_finds_the_kernels_among_other_operations_in_the_order_of_the_program():
    # noloop_k is called twice; equal calls are compiled once.
    costs = tpu_costs(DATA / "program_v6e")
    assert [(cost.kernel, cost.bundles) for cost in costs] == [
        ("grid_k", 32),
        ("noloop_k", 5),
        ("mm_k", 173),
    ]


def test_a_kernel_that_xla_fused_with_its_inputs_is_one():
    [cost] = tpu_costs(DATA / "fused_v6e")
    assert (cost.kernel, cost.bundles) == ("fused_k", 197)


def test_of_a_sparsecore_kernel_only_the_name_is_known():
    assert tpu_costs(DATA / "sparsecore_v6e") == [Cost(kernel="sc_k")]


def test_kernels_are_found_without_the_program_too(tmp_path):
    for path in (DATA / "program_v6e").iterdir():
        if not path.name.endswith("-hlo.txt"):
            shutil.copy(path, tmp_path)
    assert {cost.kernel for cost in tpu_costs(tmp_path)} == {"grid_k", "noloop_k", "mm_k"}


@pytest.mark.parametrize("folder", ["", "none"])
def test_no_dumps_are_no_kernels(tmp_path, folder):
    assert tpu_costs(tmp_path / folder) == []


MISSING = {
    "final_bundles": {"loop_bundles", "loop_slots"},
    "final_hlo-static-per-bundle-utilization": {"loop_bundles", "loop_slots", "spills", "fills"},
    "post-delay-converter": {"vmem_bytes", "smem_bytes", "loop_bundles", "loop_slots"},
    "schedule-analysis_final_bundles": {
        "bundles",
        "empty_bundles",
        "loop_bundles",
        "loop_slots",
        "spills",
        "fills",
    },
}


@pytest.mark.parametrize("label", sorted(MISSING))
def test_what_a_missing_file_would_tell_is_none(tmp_path, label):
    for path in (DATA / "nested_v6e").iterdir():
        if not re.search(rf"-\d+-{label}\.txt$", path.name):
            shutil.copy(path, tmp_path)
    [cost] = tpu_costs(tmp_path)
    whole = dataclasses.asdict(only("nested_v6e"))
    left = {name for name, value in dataclasses.asdict(cost).items() if value != whole[name]}
    assert left == MISSING[label]


@pytest.mark.parametrize("label", sorted(LABELS))
def test_a_cut_file_gives_no_wrong_number(tmp_path, label):
    whole = dataclasses.asdict(only("nested_v6e"))
    shutil.copytree(DATA / "nested_v6e", tmp_path, dirs_exist_ok=True)
    [path] = (path for path in tmp_path.iterdir() if re.search(rf"-\d+-{label}\.txt$", path.name))
    data = path.read_bytes()
    for length in range(0, len(data) - 60, max(1, len(data) // 40)):
        path.write_bytes(data[:length])
        [cost] = tpu_costs(tmp_path)
        for name, value in dataclasses.asdict(cost).items():
            assert value in (None, {}, whole[name]), (length, name)


def test_the_expression_for_libtpu_selects_these_passes():
    passes = {"original", "post-ra", "packed-bundles-post-ra", "post-bundle-packing-post-ra"}
    assert {name for name in passes | LABELS if re.fullmatch(PASS_LABELS, name)} == LABELS
    assert {name for name in passes if re.search(PASS_LABELS, name)} == set()


def test_one_row_of_use_and_one_bundle_belong_together():
    for path in DATA.glob("*/*static-per-bundle-utilization.txt"):
        analysis = next(path.parent.glob("*schedule-analysis*")).read_text()
        rows = len(path.read_text().splitlines()) - 4
        assert f"total scheduled bundles:    {rows}\n" in analysis
