"""Every cheat is refused by its name, and no honest kernel is."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from cheats import CHEATS, OTHER_NAMES

from pytest_pallas import Report, verify_many
from pytest_pallas.candidates.jail import SandboxLimits
from pytest_pallas.candidates.sandbox import Sandbox
from pytest_pallas.candidates.source import CandidateSource, candidate_of
from pytest_pallas.candidates.verdicts import to_json

HONEST = Path(__file__).with_name("honest.py")

TARGETS = ("tpu-sim:v6e",)


def doubled(x: Any, y: Any) -> Any:
    return 2 * x + y


def attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    logits = q @ k.T / jnp.sqrt(jnp.asarray(q.shape[1], q.dtype))
    if causal:
        logits = jnp.where(jnp.tril(jnp.ones(logits.shape, bool)), logits, -1e30)
    return jax.nn.softmax(logits, axis=-1) @ v


#: Reference, inputs, and sizes of the first call, by the first word of a kernel's name.
TASKS: Mapping[str, tuple[Any, str, dict[str, int]]] = {
    "add": (doubled, "m n, m n", {"m": 16, "n": 128}),
    "dot": (jnp.matmul, "m k, k n", {"m": 16, "k": 128, "n": 128}),
    "sum": (functools.partial(jax.nn.softmax, axis=-1), "m n", {"m": 16, "n": 128}),
    "cum": (functools.partial(jnp.cumsum, axis=1), "m n", {"m": 16, "n": 256}),
    "att": (attention, "s d, s d, s d", {"s": 16, "d": 128}),
    "tra": (jnp.transpose, "m n", {"m": 16, "n": 128}),
    "rev": (lambda x: x[::-1], "m n", {"m": 16, "n": 120}),
    "cop": (lambda x: x, "m n", {"m": 16, "n": 128}),
}


def honest_names(task: str) -> list[str]:
    lines = HONEST.read_text().splitlines()
    defined = (line.split("(")[0].split()[-1] for line in lines if line.startswith("def "))
    assigned = [line.split()[0] for line in lines if line.startswith("add_partial")]
    kernels = [name for name in (*defined, *assigned) if name.startswith(f"{task}_")]
    return [name for name in kernels if name != "add_body"]


@functools.cache
def judged(task: str) -> Mapping[str, Report]:
    """Reports of all honest kernels of a task."""
    reference, inputs, sizes = TASKS[task]
    names = honest_names(task)
    candidates = [f"{HONEST}:{name}" for name in names]
    reports = verify_many(
        candidates, reference, inputs, targets=TARGETS, seed=5, sizes=sizes, hidden=6
    )
    return dict(zip(names, reports, strict=True))


@functools.cache
def caught(task: str) -> Mapping[str, Report]:
    """Reports of all cheats of a task."""
    names = [name for name in CHEATS if task_of_cheat(name) == task]
    candidates = [
        CandidateSource(
            name=name, files={"cheat.py": CHEATS[name][0]}, module="cheat.py", function="kernel"
        )
        for name in names
    ]
    reference, inputs, sizes = TASKS[task]
    reports = verify_many(
        candidates, reference, inputs, targets=TARGETS, seed=5, sizes=sizes, hidden=6, budget=6
    )
    return dict(zip(names, reports, strict=True))


def task_of_cheat(name: str) -> str:
    return "dot" if name.startswith("dot_") else "add"


def test_the_corpus_is_as_large_as_it_should_be() -> None:
    assert sum(len(honest_names(task)) for task in TASKS) >= 30
    assert len(CHEATS) >= 30


@pytest.mark.parametrize("name", [name for task in TASKS for name in honest_names(task)])
def test_no_honest_kernel_is_refused(name: str) -> None:
    report = judged(name[:3])[name]
    assert report.passed, str(report)
    assert report.score == 1
    assert report.digest


@pytest.mark.parametrize("name", CHEATS)
def test_every_cheat_is_refused_by_its_name(name: str) -> None:
    report = caught(task_of_cheat(name))[name]
    assert not report.passed
    assert report.status == 1, str(report)
    assert report.reason in (CHEATS[name][1], *OTHER_NAMES.get(name, ())), str(report)
    assert report.score < 0.9
    json.dumps(to_json(report), allow_nan=False)


def test_nothing_is_left_behind() -> None:
    caught("add")
    assert not Path("/var/tmp/pytest_pallas_was_here").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("wrong_sign", "forks", "kills_its_parent", "writes_elsewhere", "writes_the_report"),
        *("dies", "prints_very_much", "ends_early", "no_kernel"),
    ],
)
def test_without_namespaces_there_is_a_verdict_too(name: str) -> None:
    """Where the system allows no namespaces, limits and Landlock hold."""
    text, reason = CHEATS[name]
    case = candidate_of(CandidateSource(name=name, files={}, module="", function=""))
    assert case.problem is None
    with Sandbox(SandboxLimits(seconds=5), separate=False) as sandbox:
        traced = sandbox.trace({"cheat.py": text}, "cheat.py", "kernel", [], target="v6e")
    assert not any("namespace" in word for word in traced.in_force)
    if name in ("wrong_sign", "no_kernel"):
        assert traced.failed is None
    else:
        assert traced.failed is not None
        names = (reason, *OTHER_NAMES.get(name, ()), "PermissionError", "crashed")
        assert traced.failed.name in names
