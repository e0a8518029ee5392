# ruff: noqa: T201
"""What stand-alone scripts ask of several answers of a kernel; else as ``questions.py``."""

from __future__ import annotations

import types
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytest_pallas.scripts.standalone.parts import (
    Case,
    answer,
    describe,
    expect,
    judge,
    judge_one,
    named,
    run,
    wide,
)
from pytest_pallas.scripts.standalone.questions import differ


def related(case: Case) -> bool:
    """Compare the kernel's answer with what its answers to other calls say that it must be."""
    others = [
        jax.tree.map(wide, answer(case, case.kernel, args, options | tuning))
        for args, options, tuning in case.more["others"]
    ]
    claimed = named(claimed_by(case, others))
    outputs = run(case, case.kernel, case.args, case.options | case.tuning)
    if outputs.keys() != claimed.keys():
        print(f"outputs: {', '.join(outputs)}; of the other calls: {', '.join(claimed)}")
        return True
    wrong = [as_claimed(case, name, outputs[name], claimed[name]) for name in outputs]
    return any(wrong)


def claimed_by(case: Case, others: list[Any]) -> Any:
    """What the outputs of the other calls say of those of this one. All floats are float64."""
    claim = case.more["claim"]
    with np.errstate(all="ignore"):
        if "factor" in claim:
            print(f"claimed: {claim['factor']} times the answer to the other call")
            return jax.tree.map(lambda leaf: claim["factor"] * leaf, others[0])
        if "order" in claim:
            leaves, tree = jax.tree.flatten(others[0])
            words = [axis for axis in claim["axes"] if axis is not None]
            where = f", permuted along axis {', '.join(map(str, words))}" if words else ""
            print(f"claimed: the answer to the other call{where}")
            moved = [
                leaf if axis is None else np.take(leaf, claim["order"], axis)
                for leaf, axis in zip(leaves, claim["axes"], strict=True)
            ]
            return jax.tree.unflatten(tree, moved)
        if "expect" in claim:
            if claim["expect"] is None:
                print("claimed: the answer to the other call")
                return others[0]
            print("claimed: what the relation expects, given the answer to the other call")
            words = {"args": case.args, "options": case.options, "tuning": case.tuning}
            changed = types.SimpleNamespace(**words, recipe=claim["recipe"])
            return claim["expect"](others[0], changed)
        print("claimed: the sum of the answers to the other calls")
        return jax.tree.map(lambda one, two: one + two, *others)


def as_claimed(case: Case, name: str, output: Any, claimed: Any) -> bool:
    """Compare one output with what is claimed of it, by what the test allowed; print both."""
    if output.shape != claimed.shape:
        print(f"{name}: {describe(output)}; claimed: {describe(claimed)}")
        return True
    if jnp.issubdtype(output.dtype, jnp.inexact):
        with np.errstate(all="ignore"):
            skip = left_out(case, wide(output), claimed, output.dtype)
            output = np.where(skip, 0, output).astype(output.dtype)
            claimed = np.where(skip, 0, claimed)
            rounded = claimed.astype(output.dtype)
    else:
        rounded = claimed = claimed.astype(output.dtype)  # which wraps around as the kernel does
    if not case.more["exact"]:
        return judge_one(name, output, claimed, rounded, case.limits.get(name), claim="claimed")
    if jnp.issubdtype(output.dtype, jnp.inexact):  # 0.0 is as good as -0.0, and any NaN as another
        none = np.array(np.nan).astype(output.dtype)
        sides = [np.where(np.isnan(wide(side)), none, side) for side in (output, rounded)]
        zero = (wide(sides[0]) == 0) & (wide(sides[1]) == 0)
        output, rounded = (np.where(zero, 0, side).astype(output.dtype) for side in sides)
    print("the test allowed no difference")
    return differ({name: output}, {name: rounded}, ("kernel", "claimed"))


def left_out(case: Case, output: Any, claimed: Any, dtype: Any) -> Any:
    """Where an output says nothing: it overflows, or scaling took it among the least numbers."""
    claim = case.more["claim"]
    info, narrow = jnp.finfo(dtype), jnp.finfo(np.float32)
    largest = float(info.max) * (1 - float(info.eps))
    if not claim:
        return ~(np.isfinite(output) & (np.abs(claimed) <= largest))
    skip = np.zeros(output.shape, bool)
    if "factor" in claim and case.more["exact"]:
        skip |= np.isfinite(claimed) & (np.abs(claimed) > largest)
        if abs(claim["factor"]) != 1:
            # Sums of float32 lose bits below its least normal number.
            least = float(narrow.smallest_normal) / float(narrow.eps)
            least = max(float(info.smallest_normal), least)
            least *= max(abs(claim["factor"]), 1 / abs(claim["factor"]))
            skip |= (np.abs(output) < least) & (np.abs(claimed) < least)
    return skip


def cross(case: Case) -> bool:
    """Compare the kernel and what computes the same with the reference, and with each other."""
    here = case.more["here"]
    mine = run(case, case.kernel, case.args, case.options | case.tuning)
    expected = expect(case.reference, case.args, case.options)

    def called(outputs: dict[str, Any], side: str) -> dict[str, Any]:
        return {f"{name} of {side}": value for name, value in outputs.items()}

    failed = False
    for backend, (there, function, tuning) in zip(case.backends, case.more["others"], strict=True):
        other = replace(case, backend=backend)
        theirs = run(other, function, case.args, case.options | tuning)
        for side, outputs in ((here, mine), (there, theirs)):
            oracle, own = (called(each, side) for each in expected)
            failed |= judge(case, called(outputs, side), (oracle, own))
        between = f"{here} against {there}"
        for name in mine.keys() & theirs.keys():
            limit = case.limits.get(f"{name} of {between}")
            if limit is not None and mine[name].shape == theirs[name].shape:
                one, two = mine[name], theirs[name]
                rounded = two.astype(one.dtype)
                failed |= judge_one(
                    f"{name} of {between}", one, wide(two), rounded, limit, claim=there
                )
    return failed
