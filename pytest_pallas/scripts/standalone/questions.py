# ruff: noqa: T201
"""What a stand-alone script asks, one function a check: True while the failure is there.

Scripts get a copy of the source, as of ``parts.py``.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pytest_pallas.scripts.simulated import seeded
from pytest_pallas.scripts.standalone.parts import (
    ARRAYS,
    Case,
    KernelRaisedError,
    call,
    describe,
    expect,
    judge,
    mesh_of,
    named,
    run,
    split,
    wide,
)


def forward(case: Case) -> bool:
    """Compare the kernel with its reference."""
    outputs = run(case, case.kernel, case.args, case.options | case.tuning)
    return judge(case, outputs, expect(case.reference, case.args, case.options))


def without_jit(case: Case) -> bool:
    """Compare the kernel, not jitted, with its reference."""
    outputs = run(case, case.kernel, case.args, case.options | case.tuning, jit=False)
    return judge(case, outputs, expect(case.reference, case.args, case.options))


def blocks(case: Case) -> bool:
    """Compare the kernel with its reference, with its default tuning and with the drawn one."""
    expected = expect(case.reference, case.args, case.options)
    print("with its default tuning")
    default = judge(case, run(case, case.kernel, case.args, case.options), expected)
    print(f"with {case.tuning}")
    drawn = judge(case, run(case, case.kernel, case.args, case.options | case.tuning), expected)
    return default or drawn


def pullback(function: Callable[..., Any], by: tuple[int, ...]) -> Callable[..., Any]:
    """``gradient(cotangents, *args)`` of a function, by some of its arguments."""

    def gradient(cotangents: Any, *args: Any, **options: Any) -> Any:
        def only(*some: Any) -> Any:
            full = list(args)
            for position, value in zip(by, some, strict=True):
                full[position] = value
            return function(*full, **options)

        outputs, pull = jax.vjp(only, *(args[position] for position in by))
        if cotangents is None:
            return pull(jax.tree.map(jnp.ones_like, outputs))
        return pull(jax.tree.map(lambda ct, out: ct.astype(out.dtype), cotangents, outputs))

    return gradient


def gradient(case: Case) -> bool:
    """Compare what kernel and reference pull back."""
    by, args = case.more["by"], (case.more["cotangents"], *case.args)
    outputs = run(case, pullback(case.kernel, by), args, case.options | case.tuning)
    return judge(case, outputs, expect(pullback(case.reference, by), args, case.options))


def batched(function: Callable[..., Any], flags: Any) -> Callable[..., Any]:
    """``jax.vmap(function)`` over those arrays among the arguments that are flagged."""

    def batch(*args: Any, **options: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, ARRAYS)]

        def one(*arrays: Any) -> Any:
            full = list(leaves)
            for place, value in zip(places, arrays, strict=True):
                full[place] = value
            return function(*jax.tree.unflatten(tree, full), **options)

        axes = tuple(0 if flag else None for flag in flags)
        return jax.vmap(one, in_axes=axes)(*(leaves[place] for place in places))

    return batch


def vmap(case: Case) -> bool:
    """Compare batches of two, of all arrays and of the first, with one call after the other.

    The second of a batch is the first with its floats negated.
    """
    leaves, tree = jax.tree.flatten(case.args)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, ARRAYS)]
    first = expect(case.reference, case.args, case.options)
    failed = False
    for count in {len(places), 1}:
        other, stacked = list(leaves), list(leaves)
        for place in places[:count]:
            value = np.asarray(leaves[place])
            other[place] = -value if jnp.issubdtype(value.dtype, jnp.floating) else value
            stacked[place] = np.stack([value, other[place]])
        second = expect(case.reference, jax.tree.unflatten(tree, other), case.options)
        both = tuple(
            {name: np.stack([one[name], two[name]]) for name in one}
            for one, two in zip(first, second, strict=True)
        )
        flags = [number < count for number in range(len(places))]
        print(f"vmap of the first {count} of {len(places)} arrays")
        batch = tuple(jax.tree.unflatten(tree, stacked))
        outputs = run(case, batched(case.kernel, flags), batch, case.options | case.tuning)
        failed |= judge(case, outputs, both)
    return failed


def differ(
    one: dict[str, Any], other: dict[str, Any], words: tuple[str, str] = ("once", "again")
) -> bool:
    """Print which outputs of two calls are not the same to the bit. ``words`` name the two."""
    failed = False
    for name in {**one, **other}:
        first, second = one.get(name), other.get(name)
        if first is None or second is None or describe(first) != describe(second):
            print(f"{name}: not of one type")
            failed = True
            continue
        a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (first, second))
        count = int((a != b).reshape(first.size, -1).any(axis=1).sum()) if first.size else 0
        print(f"{name}: {describe(first)}, {count} of {first.size} elements differ in bits")
        if count and jnp.issubdtype(first.dtype, jnp.number):
            with np.errstate(all="ignore"):
                gap = np.abs(wide(first) - wide(second))
            place = np.unravel_index(int(np.argmax(np.nan_to_num(gap, nan=np.inf))), gap.shape)
            print(f"  largest difference {gap[place]} at {tuple(map(int, place))}")
            print(f"    {words[0]:<8}{first[place]}\n    {words[1]:<8}{second[place]}")
        failed |= count > 0
    return failed


def determinism(case: Case) -> bool:
    """Compare three runs, bit for bit; of a simulator, with three seeds."""
    cases = [seeded(case, seed) if case.more["simulated"] else case for seed in range(3)]
    runs = [run(each, case.kernel, case.args, case.options | case.tuning) for each in cases]
    return any(list(map(functools.partial(differ, runs[0]), runs[1:])))  # prints all


def export(case: Case) -> bool:
    """Compare the kernel with itself after ``jax.export``, bit for bit."""
    apply, arrays = split(case.kernel, case.args, case.options | case.tuning)
    arrays = [jnp.array(array) for array in arrays]

    def flat(*arrays: Any) -> Any:
        return jax.tree.leaves(apply(*arrays))

    names = ("tpu_custom_call", "mosaic_gpu", "triton_kernel_call", "__gpu$xla.gpu.triton")
    allowed = [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]
    try:
        with case.backend():
            direct = named(jax.jit(flat)(*arrays))
            exported = jax.export.export(jax.jit(flat), disabled_checks=allowed)(*arrays)
            try:
                exported = jax.export.deserialize(exported.serialize())
            except ImportError as error:
                print(f"not serialized: {error}")
            again = named(exported.call(*arrays))
    except Exception as error:
        raise KernelRaisedError from error
    return differ(direct, again)


def dtype(case: Case) -> bool:
    """Compare the pytrees, shapes, dtypes and weak types that kernel and reference return."""

    def types(function: Any, options: Any) -> Any:
        return jax.eval_shape(lambda: call(function, case.args, options, jit=False))

    with case.backend():
        found = types(case.kernel, case.options | case.tuning)
    wanted = types(case.reference, case.options)
    words: list[str] = []
    for values in (found, wanted):
        leaves = [
            f"{'weakly typed ' if leaf.weak_type else ''}{describe(leaf)}"
            for leaf in jax.tree.leaves(values)
        ]
        words.append(f"{jax.tree.structure(values)} of {', '.join(leaves)}")
    print(f"kernel     {words[0]}\nreference  {words[1]}")
    return words[0] != words[1]


def sharding(case: Case) -> bool:
    """Compare the kernel under ``shard_map`` on 1, 2, 4 and 8 devices with its reference.

    The arrays are the drawn ones as often as there are devices, each rolled by one more element.
    """
    from jax.sharding import PartitionSpec

    axes, counts = case.more["batch_axes"], case.more["devices"]

    def several(leaf: Any, axis: int) -> Any:
        return np.concatenate([np.roll(leaf, n, axis) for n in range(counts[-1])], axis)

    args = tuple(
        arg if axis is None else jax.tree.map(lambda leaf, axis=axis: several(leaf, axis), arg)
        for arg, axis in zip(case.args, axes, strict=True)
    )
    expected = expect(case.reference, args, case.options)
    failed = False
    for count in counts:
        mesh = mesh_of(shards=count)
        whole = {n: arg for n, arg in enumerate(args) if not jax.tree.leaves(arg)
                 or not all(isinstance(leaf, ARRAYS) for leaf in jax.tree.leaves(arg))}  # fmt: skip
        spread = [n for n in range(len(args)) if n not in whole]
        specs = tuple(
            PartitionSpec() if axes[n] is None else PartitionSpec(*[None] * axes[n], "shards")
            for n in spread
        )

        def sharded(*args: Any, **options: Any) -> Any:
            def local(*parts: Any) -> Any:
                full = dict(enumerate(args)) | dict(zip(spread, parts, strict=True))  # noqa: B023
                return case.kernel(*full.values(), **options)

            return jax.shard_map(
                local,
                mesh=mesh,  # noqa: B023
                in_specs=specs,  # noqa: B023
                out_specs=PartitionSpec("shards"),
                check_vma=False,
            )(*(args[n] for n in spread))  # noqa: B023

        print(f"on {count} devices")
        failed |= judge(case, run(case, sharded, args, case.options | case.tuning), expected)
    return failed


def main(
    case: Case,
    question: Callable[[Case], bool],
    seen: str,
    *,
    raised: bool = False,
    seconds: float = 0.0,
) -> None:
    """Answer a question and end: with 1 while the failure is there, with 0 when it is gone.

    2 if neither can be said, as where the kernel raises and did not when it was tested.
    ``seconds`` is how long a kernel may take that hung in the test.
    """

    def late() -> None:
        print(f"the kernel did not finish within {seconds:g} s")
        end(1)

    def end(status: int) -> None:
        print("the failure is there" if status == 1 else "no answer" if status else "no failure")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # devices that wait for ever, or a failed callback, would hold it up

    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}; the test saw:\n  {seen}")
    if seconds:
        timer = threading.Timer(seconds, late)
        timer.daemon = True
        timer.start()
    try:
        status = int(question(case))
        if raised and not status and not case.limits:
            print("the kernel raises no more; the test had no answer to judge, so run it again")
    except KernelRaisedError as error:
        text = f"{type(error.__cause__).__name__}: {error.__cause__}"
        lines = [line for line in text.splitlines() if line.strip() and "clock:" not in line]
        print("the kernel raised", *lines[:1], *lines[1:][-5:], sep="\n  ")
        if not raised:
            print("which it did not when it was tested")
        status = 1 if raised else 2
    except Exception:
        traceback.print_exc()
        status = 2
    end(status)
