"""Records of everything that the HTML report can show, without running a kernel."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from pallas_sim.coverage import Point, Reached
from pallas_sim.errors import Explanation, Fact, explanation_of
from pallas_sim.findings import Access, Finding, Owner, Wait
from pytest_pallas.coverage import reached_to_json
from pytest_pallas.record import Note, Record

HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>{{ 7 * 7 }}'

EXPLANATION = Explanation(
    "output, float32[256, 384]: wrong in 8192 of 98304 elements (8.33 %)",
    facts=(
        Fact("worst", "[245, 187]"),
        Fact("kernel", "17.6837864"),
        Fact("oracle", "17.6661177"),
        Fact("baseline", "17.6661186"),
        Fact(
            "error",
            "8390 ulps of the output scale, 8.39e+03 times the baseline's (0.622); allowed 21.24\n"
            "(a narrow accumulator, or one rounding too many?)",
        ),
        Fact("wrong at", "[192, 128] [192, 129] ..."),
        Fact("pattern", "exactly the box [192:256, 128:256]"),
        Fact("block", "written by program (3, 1) of body (grid (4, 3)), output block (3, 1)"),
        Fact("inputs", "float32[256, 384]"),
        Fact("drawn", "m=256 n=384 dtype=float32 values=normal seed=0"),
        Fact("tuning", "block=64"),
    ),
)

MESSAGE = f"softmax: forward on tpu-interpret:v6e is wrong\n{EXPLANATION}"


def error_pictures() -> dict[str, Any]:
    """A wrong block of a matrix, and examples of several sizes."""
    rows = [
        "".join("R" if r >= 48 and 32 <= c < 64 else "bcd"[(r + c) % 3] for c in range(96))
        for r in range(64)
    ]
    counts = [900, *([0] * 26), 0]
    return {
        "errors": {
            "output": "output", "dtype": "float32", "shape": [256, 384], "cell": [4, 4],
            "rows": rows, "unit": "ulps", "measured": True, "wrong": 8192, "worst": [245, 187],
        },
        "histogram": {
            "kernel": [*counts[:3], 4000, 900, *counts[5:18], 8192, *counts[19:]],
            "baseline": [*counts[:3], 5000, 1900, *counts[5:]],
        },
        "programs": {
            "kernel": "body", "source": "softmax.py:12", "grid": [4, 3], "block": [64, 128],
            "wrong": [{"block": [3, 1], "programs": [[3, 1]], "wrong": 8192}], "count": 1,
        },
        "examples": [
            {"dims": {"m": m, "n": n}, "error": 8390.0 if m > 192 else 0.5, "baseline": 0.5,
             "failed": m > 192}
            for m in (64, 128, 192, 256)
            for n in (128, 384)
        ],
    }  # fmt: skip


RACE = (
    Access(kind="write", ref="x_buffer", owner=Owner(), index=((0, 8),), program=(0,), copy=True,
           line="/home/me/copies.py:26"),
    Access(kind="read", ref="x_buffer", owner=Owner(), index=((0, 8),), program=(0,),
           line="/home/me/copies.py:27"),
)  # fmt: skip

WAITS = (
    Wait(owner=Owner(device=0), on="arrived", needed=4096, unit="bytes", program=(0,),
         line="/home/me/copies.py:28"),
    Wait(owner=Owner(device=1, core=1), on="arrived", needed=2, had=1, line="ring.py:20"),
    Wait(owner=Owner(device=2), on="the other devices", line="the start of the kernel"),
    Wait(owner=Owner(device=3), on="", line="the end of the kernel"),
)  # fmt: skip


def _found(kind: Any, message: str, **parts: Any) -> dict[str, Any]:
    """What an error says of a finding, by the fields of its record."""
    finding = Finding(kind=kind, message=message, **parts)
    return {
        "findings": (finding.to_json(),),
        "explanation": explanation_of(str(finding)).to_json(),
    }


SOURCE = {
    "file": "/home/me/copies.py", "first": 24, "marked": [26, 27],
    "lines": ["def body(x_ref, o_ref, x_buffer, sem):", "    copy = fetch(x_ref, x_buffer, sem)",
              "    copy.start()", "    o_ref[...] = x_buffer[...] < 0", "    copy.wait()"],
}  # fmt: skip

GRID = {
    "kernel": "body", "source": "holes.py:21", "operand": "o_ref", "output": True,
    "shape": [128, 256], "grid": [2, 2], "count": 4, "shown": [],
    "programs": [[[i, j], [64 * i, 0], [64, 128]] for i in (0, 1) for j in (0, 1)],
    "findings": [{"kind": "never-written", "severity": "error",
                  "message": "no program writes [0:64, 128:256]"}],
}  # fmt: skip


def compiled(target: str, vmem: int, spills: int) -> dict[str, Any]:
    """What a compiler said."""
    return {
        "target": target, "status": "compiled", "compiler": "libtpu 0.0.50.1",
        "signature": "float32[256, 384]", "vmem_bytes": vmem, "vmem_capacity": 16 * 2**20,
        "bundles": 2157, "loop_bundles": 2000, "spills": spills, "fills": spills,
        "loop_slots": {"mxu": 0.4, "xlu": 0.12, "valu": 0.56, "load": 0.22},
    }  # fmt: skip


INPUTS = {
    "shapes": ["256x384", "64x128"],
    "signatures": 2,
    "dtypes": ["float32"],
    "tried": [{"role": "dim", "name": "m", "words": ["one", "tile"]},
              {"role": "dtype", "name": "", "words": ["float32"]}],
    "never": [{"role": "dim", "name": "m", "words": ["tile+1"]}],
}  # fmt: skip


def reached() -> tuple[dict[str, Any], ...]:
    """What ran of a function that stands for a kernel: ``compiled`` above."""
    first = inspect.getsourcelines(compiled)[1]

    def point(kind: Any, line: int, counts: dict[str, int], *missing: str, name: str = "") -> Any:
        at = Point(kind, f"{inspect.getsourcefile(compiled)}:{first + line}", "body", name)
        return Reached(point=at, counts=counts, missing=missing, condition=f"line {line} > 1")

    points = (
        point("branch", 2, {"true": 3, "false": 4}),
        point("loop", 3, {"several": 2}, "none"),
        point("ring", 4, {}, "first", "again", name="buf"),
        point("ring", 5, {}, "first", "again", name="small"),
    )
    return tuple(map(reached_to_json, points))


def _record(kernel: str, check: str, backend: str, outcome: str, **rest: Any) -> Record:
    family = str(rest.pop("family", "norms"))
    file = str(rest.pop("file", "kernels/softmax.py"))
    return Record(
        test=f"{file}::{kernel}-{check}[{backend}]", kernel=kernel, check=check, backend=backend,
        outcome=outcome, family=family, examples=8, seconds=1.25, **rest,
    )  # fmt: skip


def samples() -> list[Record]:
    """Every outcome, every picture, and names that would do harm if they were not escaped."""
    v6e = "tpu-interpret:v6e"
    failed: dict[str, Any] = {"seed": 0, "replay": "pytest --pallas-seed=0 'a.py::b[c]'"}
    return [
        _record("softmax", "forward", v6e, "failed", message=MESSAGE,
                explanation=EXPLANATION.to_json(), error=8390.0, baseline=0.6,
                multiple=8390.0, pictures=error_pictures(), script="/tmp/softmax.py",
                inputs=INPUTS, **failed),
        _record("softmax", "forward", "interpret", "passed", multiple=1.2, inputs=INPUTS),
        _record("softmax", "jit", "interpret", "skipped",
                reason="jit: not applicable (nothing)", requirement="nothing"),
        _record("softmax", "forward", "tpu-compile:v6e", "passed",
                compiled=(compiled("v6e", 3 * 2**20, 7),)),
        _record("ring", "races", v6e, "failed", family="collectives", mesh={"x": 4},
                message=f"ring: races on {v6e}: race on x_buffer",
                **_found("race", "race on x_buffer", accesses=RACE),
                pictures={"sources": [SOURCE]}, **failed),
        _record("ring", "deadlock", v6e, "failed", family="collectives", mesh={"x": 4},
                message=f"ring: deadlock on {v6e}: deadlock: every core is blocked",
                **_found("deadlock", "deadlock: every core is blocked", waits=WAITS), **failed),
        _record("ring", "forward", "interpret", "skipped", family="collectives",
                reason="claims tpu-interpret"),
        _record("holes", "grid", "interpret", "failed", family="copies",
                message="holes: grid on interpret: the blocks of the grid are wrong in 1 place",
                explanation=explanation_of(
                    "the blocks of the grid are wrong in 1 place").to_json(),
                pictures={"grids": [GRID], "unavailable": "ValueError: too odd"}, **failed),
        _record("mended", "forward", "interpret", "xpassed", reason="#12", family="copies"),
        _record("known", "forward", "interpret", "xfailed", reason="#13", family="copies"),
        _record("exact", "forward", "interpret", "passed", multiple=0.0, family="copies",
                coverage=reached(), unreached={"small": "one tile", HOSTILE: HOSTILE}),
        _record("exact", "forward", v6e, "passed", multiple=0.0, family="copies"),
        _record(HOSTILE, "forward", "interpret", "failed", family=HOSTILE, file=f"{HOSTILE}.py",
                message=f"{HOSTILE}: forward on interpret: {HOSTILE}\n{HOSTILE}\x1b[31m\x00",
                explanation=Explanation(
                    HOSTILE, (f"{HOSTILE}\x1b[31m\x00",), (Fact(HOSTILE, HOSTILE),)).to_json(),
                findings=_found(
                    "race", HOSTILE, accesses=(replace(RACE[0], ref=HOSTILE), RACE[1]))["findings"],
                coverage=(reached_to_json(Reached(
                    point=Point("branch", f"{HOSTILE}:3", HOSTILE, HOSTILE), counts={"true": 1},
                    missing=("false", HOSTILE), condition=HOSTILE, why={"false": HOSTILE},
                    unreachable={HOSTILE: HOSTILE})),),
                reason=HOSTILE, notes=(Note(f"{HOSTILE}\x00"),), replay=HOSTILE, script=HOSTILE,
                example=HOSTILE,
                pictures={**error_pictures(), "unavailable": HOSTILE, "sources": [
                    {**SOURCE, "file": HOSTILE, "lines": [HOSTILE] * 5}]}),
    ]  # fmt: skip


ENVIRONMENT = {
    "pytest_pallas": "0.1.0", "jax": "0.12.0.1", "pytest": "9.2.0", "python": "3.13.1",
    "machine": "x86_64", "written": "2026-11-22 02:00 UTC",
}  # fmt: skip

OPTIONS = {
    "backends": ["interpret", "tpu-interpret:v6e"], "devices": 8, "max_examples": 8, "seed": 0,
    "command": "pytest --pallas-suite=kernels",
}  # fmt: skip
