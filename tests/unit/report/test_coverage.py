"""What of the kernels ran, from records: what is missing, notes, lines of code, LCOV."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pallas_sim.coverage import Point, Reached
from pytest_pallas.coverage import reached_from_json, reached_to_json
from pytest_pallas.decoding import DataError
from pytest_pallas.record import Record, from_json, to_json
from pytest_pallas.report import coverage
from pytest_pallas.report.html import page


def reached(kind, line, counts, *missing, name="", **fields):
    point = Point(kind, line, "body", name)
    return Reached(point=point, counts=counts, missing=missing, **fields)


LATE = reached("branch", "/a/k.py:46", {"false": 12}, "true", condition="step >= stages")
EARLY = reached("branch", "/a/k.py:46", {"true": 3}, "false", condition="step >= stages")
RING = reached("ring", "/a/k.py:9", {"first": 12}, "again", name="buf", slots=4, used=4)


def record(*points, kernel="deep", check="forward", outcome="passed", test="a.py::t", **fields):
    return Record(
        test=test,
        kernel=kernel,
        check=check,
        backend="tpu-sim",
        outcome=outcome,
        coverage=tuple(map(reached_to_json, points)),
        **fields,
    )


def notes(*records, every=False):
    return coverage.notes(coverage.covered(records), every=every)


def test_a_record_has_it_as_json_without_empty_fields():
    whole = record(LATE, RING)
    plain = json.loads(json.dumps(to_json(whole)))
    assert plain["coverage"][1] == {
        "kind": "ring",
        "line": "/a/k.py:9",
        "kernel": "body",
        "name": "buf",
        "counts": {"first": 12},
        "missing": ["again"],
        "slots": 4,
        "used": 4,
    }
    assert from_json(plain) == whole
    assert [reached_from_json(one) for one in plain["coverage"]] == [LATE, RING]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"counts": {"true": -1}}, "counts"),
        ({"counts": {"true": "many"}}, "counts"),
        ({"kind": "line"}, "kind"),
        ({"missing": "true"}, "missing"),
        ({"depends": [["scalar"]]}, "depends"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_other_data_is_refused(change, problem):
    plain = to_json(record(LATE))
    plain["coverage"][0] |= change
    with pytest.raises(DataError, match=rf"coverage\[0\].*{problem}"):
        from_json(plain)


def test_checks_of_a_kernel_count_together():
    """Each side ran in one of the checks; in two files, they are two kernels."""
    assert notes(record(LATE), record(EARLY, check="races")) == []
    assert len(notes(record(LATE), record(EARLY, test="b.py::t"))) == 2


def test_what_never_ran():
    assert notes(record(LATE, RING)) == [
        "never ran: deep: buf of 4 slots was never used again (k.py:9); "
        "`step >= stages` was never true (k.py:46) "
        "(-v lists all, --pallas-coverage=FILE writes them)"
    ]


@pytest.mark.parametrize(
    ("point", "text"),
    [
        (reached("branch", "", {"0": 2}, "1", "2"), "the condition never took branch 1 or 2"),
        (reached("loop", "", {"several": 2}, "none", "one"), "never had 0 or 1 rounds"),
        (reached("loop", "", {}, "none", "one", "several"), "the loop never ran"),
        (reached("mask", "", {"full": 1}, "empty", "partial"), "was never partial or empty"),
        (reached("block", "", {"whole": 1}, "overhang", name="x"), "x never hung over its array"),
        (reached("revisit", "", {"first": 1}, "again", name="o"), "o was never visited again"),
        (reached("wait", "", {"at once": 1}, "blocked", name="sem"), "sem never blocked"),
        (reached("ring", "", {}, "first", "again", slots=2), "ring of 2 slots was never used"),
    ],
    ids=lambda value: value.point.kind if isinstance(value, Reached) else "",
)
def test_words(point, text):
    """What has no line, because ``exec`` made the code, names the kernel."""
    [gap] = notes(record(point), every=True)
    assert gap.endswith(f"{text} (in body)")


def test_only_some_are_listed():
    many = [
        record(
            *(reached("branch", f"/a/k.py:{line}", {"true": 1}, "false") for line in range(1, 8)),
            kernel=f"kernel{number}",
        )
        for number in range(7)
    ]
    lines = notes(*many)
    assert len(lines) == 6
    assert lines[0].endswith("(k.py:3); 4 more")
    assert lines[-1].startswith("never ran: parts of 2 more kernels (-v lists all")
    assert len(notes(*many, every=True)) == 7


INNER = reached("loop", "/a/k.py:50", {}, "one", "several", within=((LATE.point, "true"),))
INMOST = reached("branch", "/a/k.py:51", {}, "true", within=((INNER.point, "several"),))


def test_what_is_inside_of_what_never_ran_counts_and_is_said_with_that():
    kernels = coverage.covered([record(LATE, INNER, INMOST)])
    assert coverage.summary(kernels) == "coverage: 1 of 5 ways at 3 points of 1 kernel"
    assert coverage.notes(kernels, every=True) == [
        "never ran: deep: `step >= stages` was never true (k.py:46)"
    ]


def test_what_is_inside_of_what_need_not_run_need_not_either():
    reasons = {"k.py:46 true": "one tile"}
    kernels = coverage.covered([record(LATE, INNER, INMOST, unreached=reasons)])
    assert coverage.summary(kernels) == "coverage: 1 of 1 ways at 3 points of 1 kernel"
    assert coverage.notes(kernels) == []
    entered = replace(INNER, counts={"one": 2}, missing=("several",), within=())
    kernels = coverage.covered([record(EARLY, entered, INMOST, unreached=reasons)])
    assert coverage.summary(kernels) == "coverage: 2 of 5 ways at 3 points of 1 kernel"


def test_a_point_in_itself_has_no_reason():
    """A function that calls itself while JAX traces it has one line for all of its conditions."""
    own = replace(LATE, counts={}, missing=("true", "false"), within=((LATE.point, "true"),))
    kernels = coverage.covered([record(own, unreached={"other": "no"})])
    assert coverage.summary(kernels) == "coverage: 0 of 2 ways at 1 point of 1 kernel"


def test_no_note_where_every_check_failed():
    """What failed went no further."""
    assert notes(record(LATE, outcome="failed")) == []
    assert notes(record(LATE, outcome="failed"), record(LATE, check="jit")) != []


@pytest.mark.parametrize(
    "key", ["k.py:46", "/a/k.py:46", "a/k.py:46 true", "body true", "step >= stages true"]
)
def test_what_need_not_run(key):
    kernels = coverage.covered([record(LATE, unreached={key: "one tile"})])
    assert coverage.notes(kernels) == []
    assert coverage.notes(kernels, every=True) == ["unreached= of deep: true at k.py:46: one tile"]
    assert coverage.summary(kernels) == "coverage: 1 of 1 ways at 1 point of 1 kernel"
    assert "BRF:1\n" in "".join(coverage.lcov(kernels, "/b"))


def test_lines_that_need_not_run_are_no_lines_of_a_tracefile():
    inner = reached("loop", "/a/k.py:50", {}, "one", "several")
    kernels = coverage.covered([record(LATE, inner, unreached={"k.py:50": "never on a TPU"})])
    text = "".join(coverage.lcov(kernels, "/a"))
    assert "DA:46,12\nLF:1\nLH:1\n" in text
    assert "BRF:2\n" in text


def test_a_reason_for_what_ran_is_stale():
    """One for nothing that is there is misspelt, or of a kernel of another backend."""
    both = {"buf": "never that many", "k.py:46 true": "no", "k.py:4": "gone", "a.py:46": "gone"}
    lines = notes(record(LATE, unreached=both), record(EARLY, unreached=both))
    stale = "unreached= of deep: 'k.py:46 true' was reached: remove it"
    assert stale in lines
    idle = [line for line in lines if "is about nothing that ran here" in line]
    assert [line.split("'")[1] for line in idle] == ["buf", "k.py:4", "a.py:46"]
    assert notes(record(EARLY, unreached={"k.py:46 true": "no", "k.py:46 false": "no"})) == [stale]


def test_a_key_that_is_about_nothing_fails_a_run_of_all_simulators():
    [kernel] = coverage.covered([record(LATE, unreached={"stages": "no"}, simulators=["tpu-sim"])])
    assert coverage.notes([kernel]) != []
    assert list(coverage.wrong_keys([kernel])) == [
        "unreached= of deep: 'stages' is no condition, line or name of its kernels: correct it, "
        "or remove it"
    ]
    part = record(LATE, unreached={"stages": "no"}, simulators=["tpu-sim", "gpu-sim"])
    failed = replace(part, simulators=("tpu-sim",), outcome="failed")
    assert list(coverage.wrong_keys(coverage.covered([part]))) == []
    assert list(coverage.wrong_keys(coverage.covered([failed]))) == []


def test_the_summary():
    kernels = coverage.covered([record(LATE, RING), record(EARLY, kernel="other")])
    assert coverage.summary(kernels) == "coverage: 3 of 6 ways at 3 points of 2 kernels"


# Lines of code.

KERNEL = """\
def body(x, o, *, steps):
    k = pl.program_id(0)

    @pl.when(
        k >= 9)
    def _late():
        # a comment

        @pl.when(k > 11)
        def _():
            o[...] = x[...]
        o[...] += 1

def wrapper(x):
    return x
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL)
    return path


def of_file(file):
    return record(
        reached("branch", f"{file}:4", {"false": 14}, "true"),
        reached("branch", f"{file}:9", {}, "true", "false"),
        reached("ring", f"{file}:2", {"first": 2, "again": 5}),
    )


def test_lcov(file, tmp_path):
    """A branch that was not evaluated is ``-``; the lines below it are lines that never ran."""
    text = "".join(coverage.lcov(coverage.covered([of_file(file)]), tmp_path))
    assert text.splitlines() == [
        *("TN:", "SF:kernel.py"),
        *("BRDA:2,0,0,2", "BRDA:2,0,1,5", "BRDA:4,0,0,0", "BRDA:4,0,1,14"),
        *("BRDA:9,0,0,-", "BRDA:9,0,1,-", "BRF:6", "BRH:3"),
        *("DA:2,7", "DA:4,14", "DA:9,0", "DA:10,0", "DA:11,0", "DA:12,0", "LF:6", "LH:2"),
        "end_of_record",
    ]


def test_lcov_outside_of_the_root(file, tmp_path):
    text = "".join(coverage.lcov(coverage.covered([of_file(file)]), tmp_path / "other"))
    assert f"SF:{file}\n" in text


def test_kernels_share_a_function(file, tmp_path):
    """What one of them reached, is reached."""
    other = record(reached("branch", f"{file}:4", {"true": 1}, "false"), kernel="other")
    text = "".join(coverage.lcov(coverage.covered([of_file(file), other]), tmp_path))
    assert "BRDA:4,0,0,1\nBRDA:4,0,1,14\n" in text
    assert "DA:12" not in text


def test_points_without_a_file_are_counted():
    point = reached("branch", "line 3 of body, which has no file", {"true": 1}, "false")
    kernels = coverage.covered([record(point)])
    assert list(coverage.lcov(kernels, "/")) == []
    assert coverage.described(kernels) == (
        "coverage of 1 kernel (1 of 2 ways; 1 point left out, in code without a file)"
    )


def test_the_page_shows_the_function_with_what_ran(file):
    text = "".join(page([of_file(file)], environment={}, options={}))
    spans = text.partition('<div class="excerpt">')[2].split('<span class="code')[1:]
    lines = {span.partition('line-number">')[2].partition("<")[0]: span for span in spans}
    assert list(lines) == list(map(str, range(1, 13))), "the function, and not the next one"
    states = {number: span.partition('"')[0] for number, span in lines.items()}
    assert {n: state.strip() for n, state in states.items() if state} == {
        "2": "reached",
        "4": "partly",
        **dict.fromkeys(("9", "10", "11", "12"), "never"),
    }
    assert "ring first 2 times, again 5 times" in lines["2"]
    assert "true never, false 14 times" in lines["4"]
    assert "What ran: 3 of 6 ways" in text


def test_the_page_reads_no_other_files(tmp_path):
    """The paths of joined results come from elsewhere."""
    secret = tmp_path / "secret.txt"
    secret.write_text("password\n")
    text = "".join(page([of_file(secret)], environment={}, options={}))
    assert "secret.txt" in text
    assert "password" not in text


@pytest.mark.parametrize("code", ["def (", "\0", ""])
def test_code_that_changed_meanwhile(tmp_path, code):
    path = tmp_path / "kernel.py"
    path.write_text(code)
    kernels = coverage.covered([of_file(path)])
    assert "DA:4,14\n" in list(coverage.lcov(kernels, tmp_path))
    assert coverage.covered_sources(kernels[0])


@pytest.mark.parametrize(
    ("least", "lines"),
    [
        (71, []),
        (72, ["coverage is to be 72 %, and 71.4 % of the ways were gone"]),
        (100, ["coverage is to be 100 %, and 71.4 % of the ways were gone"]),
    ],
)
def test_less_than_a_minimum_is_a_failure(least, lines):
    """Five ways of seven were gone; the eighth has a reason."""
    other = reached("branch", "/a/k.py:50", {"true": 1}, "false")
    kernels = coverage.covered([record(LATE, EARLY, RING, unreached={"buf again": "four"})])
    kernels += coverage.covered([record(LATE, other, kernel="two")])
    assert list(coverage.shortfall(kernels, least)) == lines


def test_a_minimum_of_no_kernel_is_a_failure():
    [line] = coverage.shortfall([], 1)
    assert line == "coverage is to be 1 %, and no kernel ran on a simulator"


def test_a_branch_that_no_drawn_size_allows_never_ran():
    """A loop that has one round by its code is no such thing."""
    why = "the condition is constant in this program"
    branch = reached("branch", "/a/k.py:3", {"false": 1}, unreachable={"true": why})
    loop = reached("loop", "/a/k.py:5", {"one": 1}, unreachable={"several": "it has 1 round"})
    assert notes(record(branch, loop), every=True) == [
        f"never ran: deep: the condition was never true (k.py:3): {why}",
        "cannot run: deep: several at k.py:5: it has 1 round",
    ]


def test_points_of_runs_without_jit_have_no_line():
    block = reached("block", "/a/k.py:3", {"whole": 1}, name="x")
    eager = reached("block", "", {"overhang": 1}, name="x")
    [kernel] = coverage.covered([record(block), record(eager, check="jit")])
    [both] = kernel.reached
    assert (both.point.line, both.counts) == ("/a/k.py:3", {"whole": 1, "overhang": 1})
