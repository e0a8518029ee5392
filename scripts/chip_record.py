"""What a GPU computes, bit by bit, as a file: written on the chip, compared with gpu-sim anywhere.

    python scripts/chip_record.py write FILE            # on a machine with a GPU
    python scripts/chip_record.py compare FILE [--target h200]

A record has products of ``wgmma`` (Hopper) and of Triton's ``dot``, conversions to float8, and
elementwise functions. The simulator claims the bits of products and conversions, and bounds of
functions of float32: the exit status of ``compare`` is 1 if one of the former differs or one of the
latter is outside, and 2 for a file that cannot be compared. Differences of other functions are
counted. ``write`` leaves out what the GPU or this JAX refuses, and prints
why.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import multiprocessing
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.chips import GPUS
from pallas_sim.errors import OptionError
from pallas_sim.functions import APPROXIMATE_FUNCTIONS, FUNCTIONS

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]

#: Calls a kernel with its operands.
Recorder = Callable[[Kernel, list[Array]], Any]

#: Version of the file.
FORMAT = 1

#: The entry of the file with the JSON of ``About``.
_ABOUT = "about"

#: Sides of a call, by its route: operands ``x``, ``y`` and ``z``, and the output ``o``. Narrow
#: floats are kept as unsigned integers.
_SIDES = {
    "wgmma": "xyo",
    "wgmma_f16": "xyo",  # sums of float16
    "wgmma_registers": "xyo",  # x comes from registers
    "tdot": "xyo",
    "tdot_f16": "xyo",  # sums of float16
    "tdot_added": "xyzo",  # z, a float32, and the product of each half of the contracted axis
    "to": "xo",
    **dict.fromkeys(("mosaic", "mosaic_approx", "triton"), "o"),  # of every finite value
}

_NARROW = ("float8_e4m3fn", "float8_e5m2")
_WGMMA = ("bfloat16", "float16", *_NARROW)
_DOT = (("bfloat16", "None"), ("float16", "None"), ("float32", "None"), ("float32", "highest"))

#: Operands of products: ordinary ones, wide exponents, cancelling ones, one large term among small
#: ones; NaN and infinities, subnormal operands, subnormal sums, and sums beyond float32.
_EASY = ("normal", "wide", "cancel", "one_large")
_HARD = ("special", "subnormal", "tiny", "huge")

#: Operands of an elementwise function at a time.
_PIECE = 1024

#: Elementwise functions by name.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(jnp, name) for name in ("exp", "exp2", "log", "log2", "tanh", "sin", "cos")},
    **{name: getattr(jnp, name) for name in ("sqrt", "log1p", "expm1", "cbrt")},
    **{name: getattr(jax.lax, name) for name in ("rsqrt", "logistic", "erf")},
    "divide": lambda x: (3 / x).astype(x.dtype),
    "power": lambda x: jnp.power(jnp.abs(x), jnp.full_like(x, 1.7)),
    "atan2": lambda x: jnp.arctan2(x, jnp.full_like(x, 1.3)),
}


#: The primitives of functions with other names, and their first operand.
_DIVISIONS: Mapping[str, np.float32] = {"divide": np.float32(3), "reciprocal": np.float32(1)}


def is_claimed(name: str) -> bool:
    """Whether the simulator claims the bits of a call (docs/simulator.md)."""
    return name.rpartition(".")[2] not in _FUNCTIONS


def is_bounded(name: str) -> bool:
    """Whether the simulator claims bounds of a call: of most functions of float32."""
    _, dtype, how = name.split(".")
    return dtype == "float32" and (how in _DIVISIONS or how in FUNCTIONS)


def bounds(name: str, x: Array, part: float = 1.0) -> tuple[Array, Array]:
    """The least and the largest result of a function, by the errors of the simulator.

    Args:
      name: of the call, one that ``is_bounded``.
      x: operands, float32.
      part: the largest error, as a part of its bound.
    """
    route, _, how = name.split(".")
    table = APPROXIMATE_FUNCTIONS if route == "mosaic_approx" else FUNCTIONS
    compute = table["div" if how in _DIVISIONS else how]
    operands = (_DIVISIONS[how], x) if how in _DIVISIONS else (x,)
    results: list[Array] = []
    for pair in itertools.product((-part, part), repeat=2):
        signs = itertools.cycle(pair)  # one for each part of a composed function

        def error(x: Array, signs: Iterator[float] = signs) -> Array:
            return np.full(np.shape(x), next(signs))

        with np.errstate(all="ignore"):
            results.append(compute(*operands, error))
    return np.fmin.reduce(results), np.fmax.reduce(results)


def outside(name: str, x: Array, results: Array, part: float = 1.0) -> int:
    """How many results of a chip are outside of ``bounds``."""
    low, high = bounds(name, x, part)
    inside = (low <= results) & (results <= high) | (np.isnan(low) & np.isnan(results))
    return int((~inside).sum())


@dataclass(frozen=True)
class ChipRecord:
    """What a chip computed.

    Attributes:
      device: kind of the device, such as ``"NVIDIA H200"``.
      target: its name here, such as ``"h200"``.
      jax: version that compiled the kernels.
      date: of the day, as ``YYYY-MM-DD``.
      arrays: by ``ROUTE.DTYPE.KIND.SIDE``; see ``_SIDES``.
    """

    device: str
    target: str
    jax: str
    date: str
    arrays: Mapping[str, Array]

    @property
    def calls(self) -> list[str]:
        """``ROUTE.DTYPE.KIND`` of each call."""
        return sorted(name.removesuffix(".o") for name in self.arrays if name.endswith(".o"))


def load(path: Path, target: str = "") -> ChipRecord:
    """The record in a file.

    Args:
      path: of the file.
      target: the chip that it must be of; "" for any.

    Raises:
      OptionError: it is no record, cut off, of a newer format or of another chip.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop(_ABOUT)))
        version, device = about["format"], about["device"]
        facts = {name: str(about[name]) for name in ("jax", "date")}
    except FileNotFoundError:
        raise OptionError(f"{path}: there is no such file") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise OptionError(
            f"{path}: this is no record of a chip, or a part of one ({error}); write it again with "
            "scripts/chip_record.py write"
        ) from None
    if version != FORMAT:
        raise OptionError(
            f"{path}: it has the format {version!r}, and this version reads {FORMAT}; use the "
            "scripts/chip_record.py that wrote it"
        )
    targets = {gpu.device_kind: name for name, gpu in GPUS.items()}
    if device not in targets:
        raise OptionError(
            f"{path}: it is of {device!r}, which gpu-sim does not simulate; known: "
            f"{', '.join(sorted(targets))}"
        )
    if target and target != targets[device]:
        raise OptionError(
            f"{path}: it is of {device!r}, and not of {target}; leave out --target, or give a "
            f"record of {target}"
        )
    for call in {name.rpartition(".")[0] for name in arrays}:
        sides = _SIDES.get(call.partition(".")[0], "o")
        if missing := [side for side in sides if f"{call}.{side}" not in arrays]:
            raise OptionError(
                f"{path}: {call} lacks {', '.join(missing)}: the file is cut off; write it again"
            )
    return ChipRecord(device, targets[device], arrays=arrays, **facts)


def save(path: Path, device: str, arrays: Mapping[str, Array]) -> None:
    """Write a record of today."""
    about = {
        "format": FORMAT,
        "device": device,
        "jax": jax.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    np.savez_compressed(path, **{_ABOUT: np.array(json.dumps(about)), **arrays})


def wgmma(a: Any, b: Any, times: int = 1, *, sums: Any = None, from_registers: bool = False) -> Any:
    """``a @ b.T`` by ``wgmma`` in one block of 64 rows; ``times`` of it.

    Args:
      a: ``(64, k)``.
      b: ``(n, k)``.
      times: how often the product is added.
      sums: dtype of the sums; by default float32, and int32 of int8.
      from_registers: ``a`` comes from registers, and not from shared memory.
    """
    sums = sums or (jnp.int32 if a.dtype == jnp.int8 else jnp.float32)

    def body(a_gmem: Any, b_gmem: Any, o_gmem: Any, a_smem: Any, b_smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(a_gmem, a_smem, loaded)
        plgpu.copy_gmem_to_smem(b_gmem, b_smem, loaded)
        plgpu.barrier_wait(loaded)

        def multiply(acc: Any) -> Any:
            left = a_smem
            if from_registers:
                layout = plgpu.Layout.WGMMA if a.dtype.itemsize == 2 else plgpu.Layout.WGMMA_8BIT
                left = plgpu.load(a_smem, layout=layout)
            for _ in range(times):
                plgpu.wgmma(acc, left, b_smem.T)
            return acc[...]

        o_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, b.shape[0]), sums))

    columns = 128 // a.dtype.itemsize
    transforms = (plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, b.shape[0]), sums),
        scratch_types=[
            plgpu.SMEM(a.shape, a.dtype, transforms=transforms),
            plgpu.SMEM(b.shape, b.dtype, transforms=transforms),
            plgpu.Barrier(num_arrivals=2),
        ],
    )(a, b)


def dot(precision: Any = None, out: Any = jnp.float32) -> Kernel:
    """A kernel for Triton, of one program: ``x @ y``."""

    def body(x: Any, y: Any, o: Any) -> None:
        product = jnp.dot(x[...], y[...], precision=precision, preferred_element_type=out)
        o[...] = product.astype(o.dtype)

    def multiply(x: Any, y: Any) -> Any:
        shape = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), out)
        return pl.pallas_call(body, out_shape=shape)(x, y)

    return multiply


def added_dots(precision: Any = None) -> Kernel:
    """A kernel for Triton, of one program: ``z + x @ y`` in two steps, by a loop."""

    def body(x: Any, y: Any, z: Any, o: Any) -> None:
        half = x.shape[1] // 2

        def step(i: Any, total: Any) -> Any:
            part = pl.ds(i * half, half)
            product = jnp.dot(
                x[:, part], y[part, :], precision=precision, preferred_element_type=jnp.float32
            )
            return total + product

        o[...] = jax.lax.fori_loop(0, 2, step, z[...])

    def add(x: Any, y: Any, z: Any) -> Any:
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(z.shape, z.dtype))(x, y, z)

    return add


def elementwise(function: Callable[..., Any], *, mosaic: bool, approx: bool = False) -> Kernel:
    """A kernel that applies a function to its operand, for Triton or Mosaic GPU.

    It takes ``_PIECE`` elements at a time, and a smaller operand at once.
    """

    def call(x: Any) -> Any:
        out, piece = jax.eval_shape(function, x), min(_PIECE, x.shape[0])

        def body(x: Any, o: Any) -> None:
            o[...] = function(x[...])

        def in_pieces(x: Any, o: Any) -> None:
            @pl.loop(0, x.shape[0] // piece)
            def _piece(i: Any) -> None:
                here = pl.ds(i * piece, piece)
                o[here] = function(x[here])

        if mosaic:
            options = plgpu.CompilerParams(approx_math=approx)
            return plgpu.kernel(in_pieces, out_type=out, compiler_params=options)(x)
        block = pl.BlockSpec((piece,), lambda i: (i,))
        grid = (x.shape[0] // piece,)
        return pl.pallas_call(body, out_shape=out, grid=grid, in_specs=[block], out_specs=block)(x)

    return call


def convert(dtype: Any, *, mosaic: bool = False) -> Kernel:
    """A kernel that converts its operand, for Triton or Mosaic GPU."""
    return elementwise(lambda x: x.astype(jnp.dtype(dtype)), mosaic=mosaic)


def call_of(record: Mapping[str, Array], name: str) -> tuple[Kernel, list[Array]]:
    """The kernel and the operands of a call."""
    route, dtype, how = name.split(".")
    if how in _FUNCTIONS:
        kernel = elementwise(
            _FUNCTIONS[how], mosaic=route != "triton", approx=route == "mosaic_approx"
        )
        return kernel, [_finite(dtype)]
    stored = jnp.dtype("bfloat16" if route == "to" else dtype)
    operands = [
        record[f"{name}.{side}"].view(jnp.float32 if side == "z" else stored)
        for side in _SIDES[route][:-1]
    ]
    match route:
        case "to":
            return convert(dtype), operands
        case "tdot":
            out = jnp.int32 if dtype == "int8" else jnp.float32
            return dot("highest" if how == "highest" else None, out), operands
        case "tdot_f16":
            return dot(out=jnp.float16), operands
        case "tdot_added":
            return added_dots("highest" if how == "highest" else None), operands
        case _:
            sums = jnp.float16 if route == "wgmma_f16" else None
            registers = route == "wgmma_registers"
            return functools.partial(wgmma, sums=sums, from_registers=registers), operands


def different(record: ChipRecord, name: str, target: str = "") -> int:
    """How many elements of a call have other bits on ``gpu-sim``, or are outside of its bounds."""
    kernel, operands = call_of(record.arrays, name)
    if is_bounded(name):
        return outside(name, operands[0], record.arrays[f"{name}.o"])
    values = np.asarray(simulate(kernel, *operands, target=target or record.target).values)
    chip = record.arrays[f"{name}.o"]
    equal = _bits(values) == _bits(chip)
    if not is_claimed(name):  # numpy's NaN has other bits
        equal |= np.isnan(values) & np.isnan(chip.view(values.dtype))
    return int((~equal).sum())


def _bits(array: Array) -> Array:
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize])


def operands() -> Iterator[tuple[str, list[Array]]]:
    """Calls to record: what is easy, and what shows each number of the model."""
    rng = np.random.default_rng(0)
    for dtype in _WGMMA:
        for kind in _EASY:
            yield f"wgmma.{dtype}.{kind}", _pair(rng, dtype, kind)
    for dtype, precision in _DOT:
        x, y = (_drawn(rng, (64, 64), dtype, "normal") for _ in range(2))
        yield f"tdot.{dtype}.{precision}", [x, y]
    for dtype in _NARROW:
        yield f"to.{dtype}.bfloat16", [_finite("bfloat16")]
    hard = {
        "wgmma": {
            "float32": ("wide", "cancel", *_HARD),
            "bfloat16": _HARD,
            **dict.fromkeys(("float16", *_NARROW), ("special", "subnormal")),
        },
        "wgmma_registers": dict.fromkeys(_WGMMA, ("wide", "special")),
        "wgmma_f16": {
            "float16": ("wide", "cancel", "special", "subnormal"),
            **dict.fromkeys(_NARROW, ("wide", "special")),
        },
        "tdot": {
            **dict.fromkeys(("bfloat16", "float32"), _HARD),
            "float16": ("special", "subnormal"),
            **dict.fromkeys(_NARROW, ("wide", "cancel", "special", "subnormal")),
        },
        "tdot_f16": dict.fromkeys(("float16", *_NARROW), ("wide", "special")),
        "tdot_added": {
            **dict.fromkeys(("bfloat16", "float16", *_NARROW), ("wide",)),
            "float32": ("wide", "highest"),
        },
    }
    for route, by_dtype in hard.items():
        depth = 64 if route.startswith("tdot") else 128
        for dtype, kinds in by_dtype.items():
            for kind in kinds:
                values = [array[:, :depth] for array in _pair(rng, dtype, kind)]
                if route == "tdot_added":
                    values.append(_drawn(rng, (64, 64), "float32", "wide"))
                yield f"{route}.{dtype}.{kind}", values
    for route in ("wgmma", "wgmma_registers", "tdot"):
        x, y = (rng.integers(-128, 128, (64, 128)).astype(np.int8) for _ in range(2))
        yield f"{route}.int8.normal", [x[:, :64], y[:, :64]] if route == "tdot" else [x, y]
    for function in _FUNCTIONS:
        for dtype in ("bfloat16", "float16"):
            for route in ("mosaic", "triton"):
                yield f"{route}.{dtype}.{function}", [_finite(dtype)]
        for route in ("mosaic", "mosaic_approx", "triton"):
            yield f"{route}.float32.{function}", [_finite("float32")]


def _finite(dtype: str) -> Array:
    """Every finite value of a 16-bit float, and 0 in the place of the others.

    For float32, those of bfloat16.
    """
    narrow = jnp.dtype("float16" if dtype == "float16" else "bfloat16")
    values = np.arange(2**16, dtype=np.uint16).view(narrow)
    return np.where(np.isfinite(values), values, 0).astype(jnp.dtype(dtype))


def _pair(rng: np.random.Generator, dtype: str, kind: str) -> list[Array]:
    return [_drawn(rng, (64, 128), dtype, kind) for _ in range(2)]


def _drawn(rng: np.random.Generator, shape: tuple[int, int], dtype: str, kind: str) -> Array:
    values = rng.normal(size=shape)
    if kind == "wide":
        values *= np.exp2(rng.integers(-6, 6, shape))
    elif kind == "cancel":
        values[:, 1::2] = -values[:, ::2] * (1 + 2.0**-6 * rng.normal(size=values[:, ::2].shape))
    elif kind == "one_large":
        values[:, :: shape[1] // 2] *= 64
    elif kind == "special":  # a row in four has one of these; the largest ones overflow together
        largest = float(jnp.finfo(dtype).max)
        rare = rng.choice([np.nan, np.inf, -np.inf, largest, -largest], shape)
        values = np.where(
            (np.arange(shape[0]) % 4 == 0)[:, None] & (rng.random(shape) < 0.02), rare, values
        )
    elif kind in _HARD:
        scale = {"subnormal": float(jnp.finfo(dtype).tiny), "tiny": 2.0**-66, "huge": 2.0**62}
        values *= scale[kind] * np.exp2(rng.integers(-4, 3, shape))
    return values.astype(jnp.dtype(dtype))


def write(path: Path, device: str, record: Recorder, processes: int = 1) -> dict[str, str]:
    """Record all calls.

    Args:
      path: of the new file.
      device: kind of the device.
      record: calls the kernel of a name with its operands, and returns its output; it can be sent
        to a process.
      processes: that share the calls: most of the time goes into compiling.

    Returns:
      What was refused, by the name of its call: the first line of the error.
    """
    calls = list(operands())
    if processes > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            outputs = list(pool.map(functools.partial(_recorded, record), calls))
    else:
        outputs = [_recorded(record, call) for call in calls]
    arrays: dict[str, Array] = {}
    for (name, values), output in zip(calls, outputs, strict=True):
        if not isinstance(output, str):
            sides = {
                f"{name}.{side}": _stored(array)
                for side, array in zip("xyz", values, strict=False)
                if side in _SIDES[name.partition(".")[0]]
            }
            arrays |= sides | {f"{name}.o": output}
    save(path, device, arrays)
    return {
        name: output
        for (name, _), output in zip(calls, outputs, strict=True)
        if isinstance(output, str)
    }


def _recorded(record: Recorder, call: tuple[str, list[Array]]) -> Array | str:
    """The output of a call as it is stored, or why there is none."""
    name, values = call
    arrays = {f"{name}.{side}": array for side, array in zip("xyz", values, strict=False)}
    kernel, _ = call_of(arrays, name)
    try:
        return _stored(np.asarray(record(kernel, values)))
    except Exception as error:  # what this GPU or this JAX does not have costs no other call
        return _first_line(error)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _on_device(kernel: Kernel, values: list[Array]) -> Any:
    return jax.jit(kernel)(*values)


def _stored(array: Array) -> Array:
    """An array as numpy can write it: floats of 8 and 16 bits as integers."""
    is_plain = array.dtype.kind in "iu" or array.dtype == np.float32
    return array if is_plain else _bits(array)


def main(words: list[str] | None = None) -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description="What a GPU computes, bit by bit.")
    parser.add_argument("command", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--processes", type=int, default=8, help="that write; by default 8")
    parser.add_argument("--target", default="", choices=["", *GPUS], help="chip of the record")
    given = parser.parse_args(words)
    if given.command == "write":
        try:
            device = jax.devices("gpu")[0].device_kind
        except RuntimeError as error:
            parser.error(f"there is no GPU to record: {error}")
        refused = write(given.file, device, _on_device, given.processes)
        for name, error in refused.items():
            print(f"{name}: left out: {error}")
        return int(any(map(is_claimed, refused)))
    try:
        record = load(given.file, given.target)
    except OptionError as error:
        parser.error(str(error))
    wrong = False
    for name in record.calls:
        try:
            count = different(record, name)
        except Exception as error:
            result = f"gpu-sim raised {_first_line(error)}"
            wrong |= is_claimed(name)
        else:
            how = "are outside of the bounds" if is_bounded(name) else "differ"
            result = f"{count} of {record.arrays[f'{name}.o'].size} elements {how}"
            wrong |= (is_claimed(name) or is_bounded(name)) and count > 0
        bits = is_claimed(name) or is_bounded(name)
        print(f"{name}: {result}" + ("" if bits else ", whose bits are not claimed"))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
