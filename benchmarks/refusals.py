"""What a compiler refuses and the simulator of its chip takes, by cause.

    uv run python benchmarks/refusals.py [--target CHIP] [--programs N] [--seed N] [--examples]

Half of the programs are calls of the reference kernels with one change: another dtype, another
size of a dim, or another tuning parameter. The other half are kernels of one operation, of many
dtypes and shapes. Each is simulated, and compiled for the chip, which need not be there. What only
the simulator takes is counted by what the compiler says, without names and numbers, and so is what
only the compiler takes: that is an error of the simulator. With ``--examples`` each cause is
followed by the programs. The same seed makes the same programs.

docs/simulator.md has what this printed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

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

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int32", "uint32", "int16", "int8", "uint8", "int4")
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


def from_kernels(platform: str, random_: random.Random) -> Iterator[Program]:
    """Yield calls of reference kernels with one change each, without end."""
    specs = [
        spec
        for spec in suite("reference_kernels").specs()
        if isinstance(spec, KernelSpec) and spec.claims(f"{platform}-sim") and not spec.meshes
    ]
    while True:
        spec = random_.choice(specs)
        drawn = random_.choice(draw_several(spec.inputs, 6))
        leaves, tree = jax.tree.flatten(drawn.args)
        change = random_.choice([_another_dtype, _another_size, _another_size, _another_tuning])
        changed = change(leaves, dict(drawn.tuning), random_)
        if changed is None:
            continue
        leaves, tuning, text = changed
        if any(np.size(leaf) > MOST for leaf in leaves):
            continue
        call = Call(
            function=spec.kernel_for(platform),
            args=jax.tree.unflatten(tree, leaves),
            options={**drawn.options, **tuning},
            settings=RunSettings(timeout=30),
        )
        yield Program(f"{spec.name}: {text}", call)


_Changed = tuple[list[Any], dict[str, Any], str] | None


def _another_dtype(
    leaves: Sequence[Any], tuning: dict[str, Any], random_: random.Random
) -> _Changed:
    names = sorted({leaf.dtype.name for leaf in leaves if hasattr(leaf, "dtype")} & {*DTYPES})
    if not names:
        return None
    old = random_.choice(names)
    new = random_.choice([name for name in (FLOATS if old in FLOATS else INTEGERS) if name != old])
    cast = [
        leaf.astype(jnp.dtype(new)) if getattr(leaf, "dtype", None) == old else leaf
        for leaf in leaves
    ]
    return cast, tuning, f"{new} for {old}"


def _another_size(
    leaves: Sequence[Any], tuning: dict[str, Any], random_: random.Random
) -> _Changed:
    sizes = sorted({size for leaf in leaves for size in np.shape(leaf)})
    if not sizes:
        return None
    old = random_.choice(sizes)
    new = random_.choice([1, 3, 8, 24, 64, 100, 128, 200, old + 1, 2 * old, max(1, old - 1)])
    shapes = [tuple(new if n == old else n for n in np.shape(leaf)) for leaf in leaves]
    if max((int(np.prod(shape)) for shape in shapes), default=0) > MOST:
        return None
    resized = [
        leaf if np.shape(leaf) == shape else np.resize(leaf, shape)
        for leaf, shape in zip(leaves, shapes, strict=True)
    ]
    return resized, tuning, f"{new} for {old}"


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


def from_operations(platform: str, random_: random.Random) -> Iterator[Program]:
    """Yield kernels of one operation each, without end."""
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
        settings = RunSettings(timeout=30)
        yield Program(
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
class Verdicts:
    """What simulator and compiler said of the programs.

    Attributes:
      both: how many both take.
      neither: how many both refuse.
      only_simulated: programs that only the simulator takes, by the compiler's cause.
      only_compiled: programs that only the compiler takes, by the simulator's.
    """

    both: int
    neither: int
    only_simulated: dict[str, list[str]]
    only_compiled: dict[str, list[str]]


def compare(
    programs: Iterator[Program], count: int, simulator: Backend, compiler: Backend
) -> Verdicts:
    """Run and compile some programs."""
    both = neither = done = 0
    only_simulated: dict[str, list[str]] = defaultdict(list)
    only_compiled: dict[str, list[str]] = defaultdict(list)
    while done < count:
        program = next(programs)
        compiled = compiler.run(program.call)
        report = compiled.report
        if report is None or report.status not in ("compiled", "refused"):
            continue  # the kernel itself rejects such arguments, or the compiler died
        done += 1
        simulated = simulator.run(program.call)
        taken = report.status == "compiled"
        if simulated.error is None:
            both += taken
            if not taken:
                only_simulated[cause(report.message)].append(program.name)
        else:
            neither += not taken
            if taken:
                only_compiled[cause(str(simulated.error))].append(program.name)
    return Verdicts(both, neither, only_simulated, only_compiled)


def _print(title: str, causes: dict[str, list[str]], *, examples: bool) -> None:
    print(f"\n{title}: {sum(map(len, causes.values()))}")
    for text, names in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"{len(names):5}  {text}")
        for name in names if examples else ():
            print(f"         {name}")


def main() -> None:
    """Print the tables of a chip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="v6e")
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", action="store_true")
    settings = parser.parse_args()
    platform = TARGETS[settings.target].platform
    session = Session(options=Options(cost="skip", timeout=30.0))
    names = tuple(f"{platform}-{kind}:{settings.target}" for kind in ("sim", "compile"))
    simulator, compiler = select(names, session.families).backends
    for source in (from_operations, from_kernels):
        programs = source(platform, random.Random(settings.seed))
        verdicts = compare(programs, settings.programs // 2, simulator, compiler)
        print(f"\n== {source.__name__}, {settings.target}: {verdicts.both} taken by both, ", end="")
        print(f"{verdicts.neither} refused by both")
        _print("only the simulator takes", verdicts.only_simulated, examples=settings.examples)
        _print("only the compiler takes", verdicts.only_compiled, examples=settings.examples)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
