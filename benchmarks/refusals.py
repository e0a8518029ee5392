"""What a compiler refuses and the simulator of its chip takes, by cause.

    uv run python benchmarks/refusals.py [--target CHIP] [--programs N] [--seed N]
        [--source operations|kernels] [--results FILE] [--examples]

The programs of ``operations`` are kernels of one operation, of many dtypes and shapes. Those of
``kernels`` are calls of the reference kernels with one change: of a dtype, of a size of a dim, of
a tuning parameter, or of a launch, that is the shape, dtype or memory space of a block, scratch
memory or output, or a compiler parameter. Each is simulated, and compiled for the chip, which need
not be there. What only the simulator takes is counted by what the compiler says, without names and
numbers, and so is what only the compiler takes: that is an error of the simulator. With
``--examples`` each cause is followed by the programs.

Program number n of a seed is always the same. ``--results`` keeps each verdict in a file as soon as
it is there, and does not repeat those that it has.

docs/simulator.md has what this printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

from pallas_sim.chips import TARGETS
from pytest_pallas import suite
from pytest_pallas.backends.protocol import Backend, Call, RunSettings
from pytest_pallas.backends.registry import select
from pytest_pallas.draw.arrays import draw_several
from pytest_pallas.options import Options
from pytest_pallas.session import Session
from pytest_pallas.spec import KernelSpec

#: The most elements of an array, so that a program takes a second.
MOST = 1 << 18

#: Seconds for each program, on each side.
TIMEOUT = 30.0

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int32", "uint32", "int16", "int8", "uint8", "int4", "uint4")
DTYPES = (*FLOATS, *INTEGERS, "bool")


@dataclass(frozen=True)
class Program:
    """A function to simulate and to compile.

    Attributes:
      name: of the kernel, and what was changed.
      call: the function with its arguments.
    """

    name: str
    call: Call


# Programs made from the reference kernels.


def from_kernels(platform: str, random_: random.Random) -> Program:
    """Return a call of a reference kernel with one change."""
    specs = _specs(platform)
    while True:
        spec = random_.choice(specs)
        drawn = random_.choice(draw_several(spec.inputs, 6))
        leaves, tree = jax.tree.flatten(drawn.args)
        function = spec.kernel_for(platform)
        change: Any = random_.choice(
            [_another_dtype, _another_size, _another_tuning, _another_launch, _another_launch]
        )
        if change is _another_launch:
            function = partial(_another_launch, function, random_.random())
            leaves, tuning, text = leaves, dict(drawn.tuning), "launch"
        elif (changed := change(leaves, dict(drawn.tuning), random_)) is not None:
            leaves, tuning, text = changed
        else:
            continue
        if any(np.size(leaf) > MOST for leaf in leaves):
            continue
        call = Call(
            function=function,
            args=jax.tree.unflatten(tree, leaves),
            options={**drawn.options, **tuning},
            settings=RunSettings(timeout=TIMEOUT),
        )
        return Program(f"{spec.name}: {text}", call)


@functools.cache
def _specs(platform: str) -> list[KernelSpec]:
    return [
        spec
        for spec in suite("reference_kernels").specs()
        if isinstance(spec, KernelSpec) and spec.claims(f"{platform}-sim") and not spec.meshes
    ]


_Changed = tuple[list[Any], dict[str, Any], str] | None


def _another_dtype(
    leaves: Sequence[Any], tuning: dict[str, Any], random_: random.Random
) -> _Changed:
    names = sorted({leaf.dtype.name for leaf in leaves if hasattr(leaf, "dtype")} & {*DTYPES})
    if not names:
        return None
    old = random_.choice(names)
    new = _other(old, random_)
    cast = [
        leaf.astype(jnp.dtype(new)) if getattr(leaf, "dtype", None) == old else leaf
        for leaf in leaves
    ]
    return cast, tuning, f"{new} for {old}"


def _other(dtype: str, random_: random.Random) -> str:
    """Return another dtype, mostly of the same kind."""
    same = FLOATS if dtype in FLOATS else INTEGERS
    among = same if random_.random() < 0.8 else DTYPES
    return random_.choice([name for name in among if name != dtype])


def _another_size(
    leaves: Sequence[Any], tuning: dict[str, Any], random_: random.Random
) -> _Changed:
    sizes = sorted({size for leaf in leaves for size in np.shape(leaf)})
    if not sizes:
        return None
    old = random_.choice(sizes)
    new = _other_size(old, random_)
    shapes = [tuple(new if n == old else n for n in np.shape(leaf)) for leaf in leaves]
    if max((int(np.prod(shape)) for shape in shapes), default=0) > MOST:
        return None
    resized = [
        leaf if np.shape(leaf) == shape else np.resize(leaf, shape)
        for leaf, shape in zip(leaves, shapes, strict=True)
    ]
    return resized, tuning, f"{new} for {old}"


def _other_size(old: int, random_: random.Random) -> int:
    return random_.choice([1, 3, 8, 24, 64, 100, 128, 200, old + 1, 2 * old, max(1, old - 1)])


def _another_tuning(
    leaves: Sequence[Any], tuning: dict[str, Any], random_: random.Random
) -> _Changed:
    numbers = [name for name, value in tuning.items() if type(value) is int]
    if not numbers:
        return None
    name = random_.choice(numbers)
    old = tuning[name]
    new = random_.choice([1, 4, 8, 16, 32, 64, 96, 128, 256, old + 8, 2 * old, max(1, old // 2)])
    return list(leaves), {**tuning, name: new}, f"{name}={new} for {old}"


# Changes of a launch, which the wrapper of a kernel makes.


def _another_launch(function: Any, seed: float, *args: Any, **options: Any) -> Any:
    """Call a kernel, and change a part of the launches that it makes, the same one every time."""

    def changing(launch: Any) -> Any:
        def changed(*args: Any, **options: Any) -> Any:
            leaves, tree = jax.tree.flatten((args, options), is_leaf=_is_part)
            parts = [number for number, leaf in enumerate(leaves) if _is_part(leaf)]
            random_ = random.Random(seed)
            random_.shuffle(parts)
            for number in parts:
                other = _another_part(leaves[number], random_)
                if other is not None:
                    CHANGES[seed] = f"{other} for {leaves[number]}"
                    leaves[number] = other
                    break
            args, options = jax.tree.unflatten(tree, leaves)
            return launch(*args, **options)

        return changed

    jax.clear_caches()  # a kernel under jit may have been traced before
    with (
        patch.object(pl, "pallas_call", changing(pl.pallas_call)),
        patch.object(pl, "kernel", changing(pl.kernel)),
        patch.object(plgpu, "kernel", changing(plgpu.kernel)),
    ):
        return function(*args, **options)


#: The last change of a launch, by its seed.
CHANGES: dict[float, str] = {}

_PARAMS = (pltpu.CompilerParams, plgpu.CompilerParams)
_MEMORY = (type(pltpu.VMEM((1,), jnp.int32)), type(plgpu.SMEM((1,), jnp.int32)))
_PARTS = (pl.BlockSpec, jax.ShapeDtypeStruct, *_MEMORY, *_PARAMS)


def _is_part(value: Any) -> bool:
    return isinstance(value, _PARTS)


def _another_part(part: Any, random_: random.Random) -> Any:
    """Return a part of a launch with one change; None for one that has nothing to change."""
    if isinstance(part, pltpu.CompilerParams):
        return _other_parameters(part, random_)
    if isinstance(part, plgpu.CompilerParams):
        lanes = plgpu.LoweringSemantics
        semantics = random_.choice([kind for kind in lanes if kind != part.lowering_semantics])
        return dataclasses.replace(part, lowering_semantics=semantics)
    if isinstance(part, pl.BlockSpec):
        return _other_block(part, random_)
    if isinstance(part, jax.ShapeDtypeStruct):
        shape, dtype = _other_array(part.shape, part.dtype, random_)
        return jax.ShapeDtypeStruct(shape, dtype)
    aval = part.inner_aval
    if "float" not in str(aval.dtype) and "int" not in str(aval.dtype):
        return None  # a semaphore or barrier
    if random_.random() < 0.3 and isinstance(part, _MEMORY[0]):
        spaces = [space for space in (pltpu.VMEM, pltpu.SMEM) if space != part.memory_space]
        return random_.choice(spaces)(aval.shape, aval.dtype)
    shape, dtype = _other_array(aval.shape, aval.dtype, random_)
    if isinstance(part, _MEMORY[0]):
        return part.memory_space(shape, dtype)
    return dataclasses.replace(part, inner_aval=part.inner_aval.update(shape=shape, dtype=dtype))


def _other_array(shape: Any, dtype: Any, random_: random.Random) -> tuple[tuple[int, ...], Any]:
    name = jnp.dtype(dtype).name
    if not shape or random_.random() < 0.5:
        return tuple(shape), jnp.dtype(_other(name, random_) if name in DTYPES else "float32")
    at = random_.randrange(len(shape))
    size = _other_size(shape[at], random_)
    return (*shape[:at], size, *shape[at + 1 :]), jnp.dtype(dtype)


def _other_block(spec: Any, random_: random.Random) -> Any:
    change = random_.choice(["size", "size", "space", "buffers"])
    sizes = [at for at, size in enumerate(spec.block_shape or ()) if type(size) is int]
    if change == "size" and sizes:
        at = random_.choice(sizes)
        shape = list(spec.block_shape)
        shape[at] = _other_size(shape[at], random_)
        return _replaced(spec, block_shape=tuple(shape))
    if isinstance(spec, plgpu.BlockSpec):
        return None
    if change == "buffers" and spec.block_shape is not None:
        return _replaced(spec, pipeline_mode=pl.Buffered(random_.choice([1, 2, 3])))
    return _replaced(spec, memory_space=random_.choice([pltpu.VMEM, pltpu.SMEM, pl.ANY]))


def _replaced(spec: Any, **changes: Any) -> Any:
    names = ("block_shape", "index_map", "pipeline_mode", "memory_space")
    return pl.BlockSpec(**({name: getattr(spec, name) for name in names} | changes))


def _other_parameters(params: Any, random_: random.Random) -> Any:
    kinds = params.dimension_semantics
    if kinds is None or random_.random() < 0.3:
        return dataclasses.replace(params, vmem_limit_bytes=random_.choice([1 << 16, 1 << 22]))
    at, kind = random_.randrange(len(kinds)), random_.choice(["parallel", "arbitrary"])
    return dataclasses.replace(params, dimension_semantics=(*kinds[:at], kind, *kinds[at + 1 :]))


# Kernels of one operation.

SHAPES = ((8, 128), (16, 256), (64, 64), (5, 7), (1, 128), (8, 1), (256,), (2, 8, 128))

#: Of one array, with a result of any shape.
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(jnp, name)
        for name in (
            *("abs", "sign", "negative", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "sin"),
            *("cos", "tan", "tanh", "floor", "ceil", "round", "square", "isfinite", "cbrt", "sinh"),
            *("arctan", "bitwise_not", "logical_not", "sum", "max", "min", "prod", "argmax"),
            *("argmin", "any", "all", "transpose", "ravel", "sort", "flip"),
        )
    },
    **{
        name: getattr(lax, name)
        for name in ("erf", "rsqrt", "logistic", "population_count", "clz", "erf_inv")
    },
    "x + x": lambda x: x + x,
    "x * x": lambda x: x * x,
    "x / x": lambda x: x / x,
    "x // 3": lambda x: x // 3,
    "x % 3": lambda x: x % 3,
    "x ** 2": lambda x: x**2,
    "x ** 2.5": lambda x: x**2.5,
    "x << 1": lambda x: x << 1,
    "x & x": lambda x: x & x,
    "maximum": lambda x: jnp.maximum(x, x),
    "x < x": lambda x: x < x,
    "where": lambda x: jnp.where(x > 0, x, 0),
    "where of booleans": lambda x: jnp.where(x > 0, x > 1, x < 1),
    "sum of rows": lambda x: jnp.sum(x, axis=-1, keepdims=True),
    "sum of columns": lambda x: jnp.sum(x, axis=0),
    "max of rows": lambda x: jnp.max(x, axis=-1),
    "argmax of rows": lambda x: jnp.argmax(x, axis=-1),
    "cumsum": lambda x: jnp.cumsum(x, axis=-1),
    "first rows": lambda x: x[: max(1, x.shape[0] // 2)],
    "last columns": lambda x: x[..., 1:],
    "every other": lambda x: x[..., ::2],
    "every other row": lambda x: x[::2],
    "an element": lambda x: x[(0,) * x.ndim],
    "concatenate": lambda x: jnp.concatenate([x, x], axis=-1),
    "concatenate rows": lambda x: jnp.concatenate([x, x], axis=0),
    "stack": lambda x: jnp.stack([x, x]),
    "pad": lambda x: jnp.pad(x, 1),
    "roll": lambda x: jnp.roll(x, 1, axis=-1),
    "repeat": lambda x: jnp.repeat(x, 2, axis=0),
    "tile": lambda x: jnp.tile(x, 2),
    "to a column": lambda x: x.reshape(-1, 1),
    "to halves": lambda x: x.reshape(2, -1),
    "to rows of 32": lambda x: x.reshape(-1, 32),
    "a new axis": lambda x: x[..., None],
    "broadcast": lambda x: jnp.broadcast_to(x[:1], x.shape),
    "take": lambda x: jnp.take(x, jnp.arange(x.shape[0]), axis=0),
    "take along": lambda x: jnp.take_along_axis(x, jnp.zeros(x.shape, jnp.int32), axis=0),
    "dot": lambda x: jnp.dot(x, x.T, preferred_element_type=_sums(x)),
    "dot of columns": lambda x: jnp.dot(x.T, x, preferred_element_type=_sums(x)),
    "dot in its own dtype": lambda x: jnp.dot(x, x.T),
    "einsum of batches": lambda x: jnp.einsum("bij,bkj->bik", x, x),
    "iota": lambda x: x + lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1).astype(x.dtype),
    "arange": lambda x: x + jnp.arange(x.shape[-1]).astype(x.dtype),
    "a loop": lambda x: lax.fori_loop(0, 3, lambda i, y: y + x, x),
    "a branch": lambda x: lax.cond(jnp.sum(x) > 0, lambda: x, lambda: x + x),
    "scan": lambda x: lax.scan(lambda total, row: (total + row, row), x[0], x)[0],
    "dynamic slice": lambda x: lax.dynamic_slice_in_dim(x, x.shape[0] // 2, 1),
    **{f"to {name}": lambda x, name=name: x.astype(name) for name in DTYPES},
    "bits": lambda x: lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}"),
}

#: Of a reference.
INDICES: dict[str, Callable[[Any], Any]] = {
    "a row": lambda ref: ref[0],
    "a row that is computed": lambda ref: ref[pl.num_programs(0) - 1],
    "a column": lambda ref: ref[..., 0],
    "rows of a slice": lambda ref: ref[pl.ds(pl.num_programs(0) - 1, 1)],
    "columns of a slice": lambda ref: ref[..., pl.ds(0, max(1, ref.shape[-1] // 2))],
    "columns at one": lambda ref: ref[..., pl.ds(1, max(1, ref.shape[-1] // 2))],
    "every other row of it": lambda ref: ref[pl.ds(0, ref.shape[0] // 2, stride=2)],
    "every other column of it": lambda ref: ref[..., pl.ds(0, ref.shape[-1] // 2, stride=2)],
    "rows by a list": lambda ref: ref[jnp.arange(ref.shape[0])],
    "a reshaped reference": lambda ref: ref.reshape(1, *ref.shape)[...],
    "an element of it": lambda ref: ref[(0,) * len(ref.shape)],
}


def _sums(x: Any) -> Any:
    return jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32


def from_operations(platform: str, random_: random.Random) -> Program:
    """Return a kernel of one operation."""
    of_refs = {name: partial(_loaded, operation) for name, operation in OPERATIONS.items()}
    makers = list({**of_refs, **INDICES}.items())
    while True:
        name, operation = random_.choice(makers)
        dtype, shape = random_.choice(DTYPES), random_.choice(SHAPES)
        x = np.ones(shape, jnp.dtype(dtype))
        try:
            out = _result_of(operation, x)
        except Exception:  # JAX may raise anything for what does not fit together
            continue
        call = partial(_kernel_of, operation, out, platform)
        settings = RunSettings(timeout=TIMEOUT)
        return Program(
            f"{name} of {dtype}{list(shape)}", Call(function=call, args=(x,), settings=settings)
        )


def _loaded(operation: Any, ref: Any) -> Any:
    return operation(ref[...])


def _kernel_of(operation: Any, out: Any, platform: str, x: Any) -> Any:
    """Run a kernel that stores what an operation makes of a reference."""

    def body(x_ref: Any, o_ref: Any) -> None:
        value = operation(x_ref)
        o_ref[...] = value if out.shape else jnp.broadcast_to(value, o_ref.shape)

    shape = jax.ShapeDtypeStruct(out.shape or (1, 1), out.dtype)
    if platform == "gpu":
        return plgpu.kernel(body, out_type=shape, grid=(1,), grid_names=("g",))(x)
    return pl.pallas_call(body, out_shape=shape, grid=(1,))(x)


def _result_of(operation: Any, x: Any) -> Any:
    """Return shape and dtype of what an operation makes of a reference."""
    results: list[Any] = []

    def body(x_ref: Any, o_ref: Any) -> None:
        value = operation(x_ref)
        results.append(jax.ShapeDtypeStruct(value.shape, value.dtype))
        o_ref[...] = jnp.zeros((1, 1), jnp.float32)

    shape = jax.ShapeDtypeStruct((1, 1), jnp.float32)
    jax.eval_shape(pl.pallas_call(body, out_shape=shape, grid=(1,)), x)
    return results[0]


# Comparing.

#: Parts of a compiler's message that differ from program to program.
_PARTICULAR = (
    (re.compile(r"(?s)\n.*"), ""),
    (re.compile(r"^.*?refused for \w+: "), ""),
    (re.compile(r"\b(vector|memref|tensor)<[^>]*(<[^>]*>[^>]*)*>"), "T"),
    (re.compile(r"\b[a-z]+\d*\[[\d,]*\](\{[^}]*\})?"), "T"),
    (re.compile(r"[\[(][-\d, ]*[\])]"), "()"),
    (re.compile(r"-?\b\d+(\.\d+)?( [KM]iB)?\b"), "N"),
    (re.compile(r"\s+"), " "),
)


def cause(message: str) -> str:
    """Return what a compiler says, without the numbers and types of one program."""
    for pattern, replacement in _PARTICULAR:
        message = pattern.sub(replacement, message)
    return message.strip()[:110]


@dataclass(frozen=True)
class Verdict:
    """What compiler and simulator say of a program.

    Attributes:
      source: of the program, a key of ``SOURCES``.
      number: of the program.
      name: of the program.
      compiler: ``"compiled"``, ``"refused"``, ``"crashed"``, ``"timed out"``, ``"out of memory"``;
        ``"rejected"`` for one that fails while it is traced.
      reason: what the compiler says.
      simulator: ``"ran"``, or the name of the error.
      error: what the simulator says.
      seconds: that both took.
    """

    source: str
    number: int
    name: str
    compiler: str
    reason: str = ""
    simulator: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether the compiler got to see the program, and survived it."""
        return self.compiler in ("compiled", "refused")


SOURCES: dict[str, Callable[[str, random.Random], Program]] = {
    "operations": from_operations,
    "kernels": from_kernels,
}


def program(source: str, number: int, seed: int, platform: str) -> Program:
    """Return a program by its number."""
    return SOURCES[source](platform, random.Random(f"{seed} {source} {number}"))


def judge(source: str, number: int, seed: int, simulator: Backend, compiler: Backend) -> Verdict:
    """Compile and run a program."""
    started = time.perf_counter()
    made = program(source, number, seed, compiler.platform)
    compiled = compiler.run(made.call)
    report, name = compiled.report, made.name
    if isinstance(made.call.function, partial) and made.call.function.func is _another_launch:
        name = f"{name} {CHANGES.get(made.call.function.args[1], '')}"
    if report is None:
        return Verdict(source, number, name, "rejected", _head(compiled.error))
    reason = report.message if report.status != "compiled" else ""
    error = simulator.run(made.call).error
    seconds = round(time.perf_counter() - started, 2)
    ended = "ran" if error is None else type(error).__name__
    return Verdict(source, number, name, report.status, reason, ended, _head(error), seconds)


def _head(error: Exception | None) -> str:
    return "" if error is None else "\n".join(str(error).splitlines()[:6])


def _load(file: Path | None) -> list[Verdict]:
    if file is None or not file.exists():
        return []
    return [Verdict(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def _print(verdicts: Sequence[Verdict], *, examples: bool) -> None:
    """Print how many programs are taken by both, by neither, and by one, with the causes."""
    both = [v for v in verdicts if v.counts]
    same = {
        status: sum(v.compiler == status and (v.simulator == "ran") == taken for v in both)
        for status, taken in (("compiled", True), ("refused", False))
    }
    print(f"{same['compiled']} taken by both, {same['refused']} refused by both")
    tables = {
        "only the simulator takes": [
            (v.reason, v) for v in both if v.compiler == "refused" and v.simulator == "ran"
        ],
        "only the compiler takes": [
            (f"{v.simulator}: {v.error}", v)
            for v in both
            if v.compiler == "compiled" and v.simulator != "ran"
        ],
        "the compiler ended": [
            (f"{v.compiler}: {v.reason}", v)
            for v in verdicts
            if not v.counts and v.compiler != "rejected"
        ],
    }
    for title, rows in tables.items():
        causes: dict[str, list[str]] = defaultdict(list)
        for text, verdict in rows:
            causes[cause(text)].append(f"{verdict.number} {verdict.name}")
        print(f"\n{title}: {len(rows)}")
        for text, names in sorted(causes.items(), key=lambda item: -len(item[1])):
            print(f"{len(names):5}  {text}")
            for name in names if examples else ():
                print(f"         {name}")


def main() -> None:
    """Print the tables of a chip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="v6e")
    parser.add_argument("--programs", type=int, default=500, help="of each source")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--source", choices=[*SOURCES], action="append")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--examples", action="store_true")
    settings = parser.parse_args()
    platform = TARGETS[settings.target].platform
    session = Session(options=Options(cost="skip", timeout=TIMEOUT))
    names = tuple(f"{platform}-{kind}:{settings.target}" for kind in ("sim", "compile"))
    simulator, compiler = select(names, session.families).backends
    kept = _load(settings.results)
    for source in settings.source or SOURCES:
        verdicts = [verdict for verdict in kept if verdict.source == source]
        number = max((verdict.number for verdict in verdicts), default=-1)
        while sum(verdict.counts for verdict in verdicts) < settings.programs:
            number += 1
            verdict = judge(source, number, settings.seed, simulator, compiler)
            verdicts.append(verdict)
            if settings.results is not None:
                with settings.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")
        print(f"\n== {source}, {settings.target}: ", end="")
        _print(verdicts, examples=settings.examples)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
