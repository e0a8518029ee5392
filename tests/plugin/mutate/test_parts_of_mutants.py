"""Mutants tried in parts, in any order, are reported like those of one process."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.plugin.mutate.test_own_tests import KERNELS as RELU
from tests.plugin.mutate.test_own_tests import LOOSE, STRICT
from tests.plugin.mutate.test_specs import KERNELS, RUN, SPECS

#: The plugin that runs the parts of a test.
IN_PARTS = ("-p", "pallas_test_support.parts_controller")

MARKS = """equivalent=(
            EquivalentMutant(
                operator="arithmetic", source="8 * pl.program_id(0)", reason="there is one block"
            ),
            EquivalentMutant(operator="store", source="o_ref", reason="?"),
        ),"""

#: One whose reference is wrong, so that its check fails without mutants, too.
BROKEN = ("reference=reference", "reference=lambda x: 3 * reference(x)")


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    plain = copy.deepcopy(records)
    for record in plain:
        del record["seconds"], record["kernel_seconds"]
        for mutant in record["mutants"]:
            del mutant["seconds"]
    return plain


def specs(*made: tuple[str, str, str]) -> str:
    """Specs of the same kernel: names, sizes and further fields."""
    first, *rest = [
        (SPECS % (sizes, more)).replace('"rows"', f'"{name}"') for name, sizes, more in made
    ]
    others = [f"    {name} = " for name in ("SECOND", "THIRD")]
    return "\n".join(
        [
            first,
            *(
                other + each.partition("    SPEC = ")[2]
                for other, each in zip(others, rest, strict=False)
            ),
        ]
    )


@pytest.mark.parametrize(
    ("division", "made", "options"),
    [
        # the second spec kills what survives the first, and the third what the others leave
        ("3:0", [("one", "8", ""), ("several", "12, 24", ""), ("two", "16", "")], ()),
        ("1:1", [("several", "12, 24", ""), ("one", "8", MARKS)], ()),
        ("1:4", [("one", "8", MARKS), ("several", "12, 24", MARKS)], ("--pallas-mutate=7",)),
        ("100:2", [("one", "8", MARKS)], ()),
        ("5:6:worker", [("one", "8", ""), ("several", "12, 24", "")], ()),
        ("2:5", [("off", "8", ""), ("one", "8", "")], ()),
    ],
)
def test_parts_have_the_record_of_the_whole(project, monkeypatch, division, made, options):
    text = specs(*made)
    if made[0][0] == "off":
        text = text.replace(*BROKEN, 1)
    project.write(kernels=KERNELS, specs=text)
    args = (*RUN, "--pallas-checks=forward,determinism", *options)
    whole = without_times(project.records(*args))
    monkeypatch.setenv("PARTS", division)
    parts = without_times(project.records(*args, *IN_PARTS))
    assert parts == whole
    verdicts = [mutant for record in whole for mutant in record["mutants"]]
    if len(made) > 1 and made[0][0] != "off" and not options:
        assert "by another" in {mutant["how"] for mutant in verdicts}


def test_kills_of_tests_count_in_their_order(project, monkeypatch):
    project.write(kernels=RELU, test_loose=LOOSE, test_strict=STRICT)
    whole = without_times(project.records("--pallas-mutate"))
    monkeypatch.setenv("PARTS", "1:0")
    assert without_times(project.records("--pallas-mutate", *IN_PARTS)) == whole
    hows = [mutant["how"] for record in whole for mutant in record["mutants"]]
    assert {"by another", "AssertionError", "MismatchError"} <= set(hows)


@pytest.mark.parametrize("sizes", [("8", "12, 24"), ("12, 24", "8")])
def test_isolated_mutants_have_the_record_of_others(project, sizes):
    """What one process killed is known to the other one."""
    first, second = sizes
    project.write(kernels=KERNELS, specs=specs(("one", first, MARKS), ("two", second, "")))
    args = (*RUN, "--pallas-checks=forward", "--pallas-mutate=6")
    here = project.records(*args, "--pallas-isolate=never")
    isolated = project.records(*args, "--pallas-isolate=always")
    assert without_times(isolated) == without_times(here)


def test_workers_of_xdist_have_the_record_of_one_process(project):
    """Each of them tries the mutants of its specs; the kills of the first one count."""
    project.write(kernels=KERNELS, specs=specs(("one", "8", MARKS), ("two", "12, 24", MARKS)))
    args = (*RUN, "--pallas-checks=forward")
    whole = project.records(*args)
    assert "by another" in {mutant["how"] for mutant in whole[1]["mutants"]}
    workers = project.records(*args, "-n", "2")
    assert without_times(workers) == without_times(whole)
