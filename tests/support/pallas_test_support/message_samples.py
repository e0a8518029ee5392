"""One of every kind of finding, explanation, refusal, skip, verdict and error, without a kernel."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from pallas_sim import errors as sim_errors
from pallas_sim.errors import Explanation, Fact, explanation_of
from pallas_sim.findings import Access, Finding, Kind, Owner, Signal, SourceLine, Wait
from pallas_test_support.mutant_samples import mutated, verdict
from pallas_test_support.report_samples import RACE, WAITS
from pytest_pallas import errors
from pytest_pallas.compile.service import CompileReport, Status, to_json
from pytest_pallas.grid.findings import GridFinding
from pytest_pallas.grid.findings import Kind as GridKind
from pytest_pallas.judge.judgement import Expected, bitwise, compare, compare_trees
from pytest_pallas.judge.tolerance import Comparison, Precision
from pytest_pallas.record import Kind as NoteKind
from pytest_pallas.record import NotApplicable, Note, Record, VerdictStatus

LINE = "/home/me/kernel.py:24"

#: What each kind of finding has besides kind, kernel, line and message.
_PARTS: dict[str, dict[str, Any]] = {
    "bounds": {"ref": "x_ref", "index": (9, 0), "shape": (8, 128), "program": (1,)},
    "input-write": {"ref": "x_ref", "program": (0, 2)},
    "race": {
        "ref": "x_buffer",
        "accesses": RACE,
        "waits": (
            Wait(
                owner=Owner(device=1),
                on="arrived",
                needed=4096,
                had=4096,
                unit="bytes",
                signals=(Signal(owner=Owner(), amount=4096, line=LINE, copy=True),),
            ),
        ),
    },
    "leftover": {
        "ref": "sent",
        "owners": tuple(Owner(device=device) for device in range(6)),
        "signals": (Signal(owner=Owner(device=1), amount=4096, line=LINE, copy=True),),
        "waits": (Wait(owner=Owner(), on="sent", needed=1024, had=1024, unit="bytes", line=LINE),),
    },
    "deadlock": {
        "waits": (*WAITS, Wait(owner=Owner(thread="block 1"), on="", needed=2, unit="arrivals"))
    },
    "entry": {
        "accesses": (
            Access(kind="write", ref="o_ref", owner=Owner(core=1), home=3, by="the TMA copy"),
        )
    },
    "overwritten": {"ref": "x_ref", "accesses": RACE, "seed": 3},
}

FINDINGS = {
    kind: Finding(
        kind=kind,
        message=f"the sentence of {kind}",
        kernel="body",
        line=LINE,
        **_PARTS.get(kind, {}),
    )
    for kind in get_args(Kind)
}

GRID_FINDINGS = {
    kind: GridFinding(
        kind, "error", "body", LINE, "o_ref", ((0, 1), (2, 3)), f"what {kind} is", "what to do"
    )
    for kind in get_args(GridKind)
}

NOTES = [
    Note(f"the sentence of a note of kind {kind or '(none)'}", kind) for kind in get_args(NoteKind)
]


def comparisons() -> dict[str, Comparison]:
    """A failed comparison of each kind that has words of its own."""
    ones = np.ones((4, 8), np.float32)
    wrong, nan, tilted = ones.copy(), ones.copy(), ones * np.float32(1 + 2**-10)
    wrong[1:3, 4:] += 0.5
    nan[0, 0] = np.nan
    counted = np.arange(8, dtype=np.int32)
    narrow = Precision("float32", SourceLine("refs.py", 12))
    return {
        "close": compare(wrong, ones.astype(float), ones, where="output"),
        "close, of a narrow oracle": compare(wrong, ones.astype(float), ones, precision=narrow),
        "close, everywhere": compare(tilted, ones.astype(float), ones, where="gradient of x"),
        "class": compare(nan, ones.astype(float), ones),
        "exact": compare(counted[::-1], counted, counted),
        "bitwise": bitwise(tilted, ones, where="output without jit"),
        "shape": compare_trees([("", ones[:2])], Expected([("", ones)], [("", ones)]))[0],
        "dtype": compare_trees([("", counted)], Expected([("", counted + 0.5)], [("", ones[0])]))[
            0
        ],
        "tree": compare_trees([("['a']", ones)], Expected([("['b']", ones)], [("['b']", ones)]))[0],
    }


EXPLANATIONS = {
    "a sentence": explanation_of("the kernel raised"),
    "details and facts": Explanation(
        "memory is read", ("  by program 3",), (Fact("read", "x_ref"), Fact("error", "a\nb"))
    ),
    "under another": Explanation("the second run differs", (), (Fact("worst", "[0]"),)).under(
        "not deterministic"
    ),
}

#: Texts of compilers, and errors of JAX, as they are given to ``refusals.message.short``.
REFUSALS: dict[str, BaseException | str] = {
    "too much memory": (
        "RESOURCE_EXHAUSTED: Allocation (size=268435456) would exceed memory (size=134217728) :: "
        "#allocation1 [shape = 'u8[268435456]{0}', space=vmem, size = 0x10000000]"
    ),
    "a primitive that is not implemented": NotImplementedError(
        "Unimplemented primitive in Pallas TPU lowering for tc: sort. Please file an issue on "
        "https://github.com/jax-ml/jax/issues."
    ),
    "another text": "INTERNAL: Mosaic failed to compile TPU kernel: bad tile\n\nat /home/me/k.py:3",
    "an error without words": AssertionError(),
    "nothing": "",
}

REPORTS = {
    status: CompileReport(
        target="v6e",
        status=status,
        message="" if status == "compiled" else f"what is said of {status}",
        text="" if status == "compiled" else f"all that is said of {status}",
        vmem_bytes=2**20,
        vmem_capacity=2**24,
        compiler="libtpu 1",
        seconds=1.5,
    )
    for status in get_args(Status)
}


def error_samples() -> dict[str, sim_errors.PallasError]:
    """Every error of the package, as it is raised; with a finding where it can have one."""
    found = {
        name: kind("what, where and what to do")
        for name, kind in {**vars(sim_errors), **vars(errors)}.items()
        if isinstance(kind, type) and issubclass(kind, sim_errors.PallasError)
    }
    found["RaceError"] = errors.RaceError.of(FINDINGS["race"], FINDINGS["uninitialized"])
    found["DeadlockError"] = sim_errors.DeadlockError.of(FINDINGS["deadlock"])
    found["DmaError"] = errors.DmaError.of(*[FINDINGS["unwaited"]] * 6)
    found["CapacityError"] = errors.CapacityError.of(FINDINGS["capacity"])
    found["BoundsError"] = sim_errors.BoundsError.of(FINDINGS["bounds"])
    found["MismatchError"] = errors.MismatchError.explained(
        EXPLANATIONS["details and facts"], "softmax: memory on tpu-sim"
    )
    for name in ("SimulationError", "SimulationLimitError", "MissingRuleError"):
        error = found[name]
        assert isinstance(error, sim_errors.SimulationError)
        error.at(LINE, "program (1, 0) of body")
    return found


def _record(check: str, outcome: str, **rest: Any) -> Record:
    return Record(
        test=f"k.py::softmax-{check}[tpu-sim]", kernel="softmax", check=check, backend="tpu-sim",
        outcome=outcome, family="norms", examples=8, seconds=1.25, **rest,
    )  # fmt: skip


RECORDS = [
    _record("forward", "passed", multiple=1.2, notes=tuple(NOTES), unverified=("order of adds",)),
    _record("jit", "skipped", reason="jit: not applicable (nothing)", requirement="nothing"),
    _record("vmap", "skipped", reason="forward raised; see `a`", stopped_by="k.py::a"),
    _record("dtype", "skipped", reason="claims tpu-interpret only"),
    _record("export", "xfailed", reason="#13"),
    _record("memory", "xpassed", reason="#12"),
    _record(
        "gradient",
        "failed",
        message=f"softmax: gradient is wrong\n{EXPLANATIONS['details and facts']}",
        explanation=EXPLANATIONS["details and facts"].to_json(),
        error=12.5,
        baseline=0.5,
        multiple=25.0,
        replay="pytest 'k.py::softmax-gradient[tpu-sim]'",
    ),
    *(
        _record(
            f"finds {kind}",
            "failed",
            message=str(finding),
            explanation=explanation_of(str(finding)).to_json(),
            findings=(finding.to_json(),),
        )
        for kind, finding in FINDINGS.items()
    ),
]

COMPILED = [
    Record(
        test=f"k.py::{status}-forward[tpu-compile:v6e]", kernel=status.replace(" ", "_"),
        check="forward", backend="tpu-compile:v6e",
        outcome="passed" if status == "compiled" else "failed", compiled=(to_json(report),),
        message=report.message,
    )
    for status, report in REPORTS.items()
]  # fmt: skip

NOT_APPLICABLE = [
    NotApplicable(
        test="k.py::softmax-donation[tpu-sim]", kernel="softmax", family="norms",
        check="donation", backend="tpu-sim", requirement="no example aliases an input", found=found,
    )
    for found in ("collection", "run")
]  # fmt: skip

MUTANTS = [
    mutated(
        "softmax",
        *(verdict(10 + n, status) for n, status in enumerate(get_args(VerdictStatus))),
        verdict(20, "equivalent", reason="rows past the end are not written back", marked=True),
        verdict(21, "killed", by="races", on="tpu-interpret:v6e"),
        notes=(Note("a mark of a mutant that does not exist", "mutants"),),
    )
]
