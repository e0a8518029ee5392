"""What a GPU computes, bit by bit, as a file: written on the chip, compared with gpu-sim anywhere.

    python scripts/chip_record.py write FILE            # on a machine with a GPU
    python scripts/chip_record.py compare FILE [--target h200]

A record has products of ``wgmma`` (Hopper) and of Triton's ``dot``, and conversions to float8. The
exit status of ``compare`` is 1 if a bit differs, and 2 for a file that cannot be compared.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.chips import GPUS
from pallas_sim.errors import OptionError

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]

#: Version of the file.
FORMAT = 1

#: The entry of the file with the JSON of ``About``.
_ABOUT = "about"

#: Sides of a call; a conversion has no ``y``. Operands and float8 are kept as unsigned integers.
_SIDES = {"wgmma": "xyo", "tdot": "xyo", "to": "xo"}

_NARROW = ("float8_e4m3fn", "float8_e5m2")
_WGMMA = ("bfloat16", "float16", *_NARROW)
_DOT = (("bfloat16", "None"), ("float16", "None"), ("float32", "None"), ("float32", "highest"))


@dataclass(frozen=True)
class ChipRecord:
    """What a chip computed.

    Attributes:
      device: kind of the device, such as ``"NVIDIA H200"``.
      target: its name here, such as ``"h200"``.
      jax: version that compiled the kernels.
      date: of the day, as ``YYYY-MM-DD``.
      arrays: by ``ROUTE.DTYPE.KIND.SIDE``: operands ``x`` and ``y``, and the output ``o``.
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


def wgmma(a: Any, b: Any, times: int = 1) -> Any:
    """``a @ b.T`` by ``wgmma`` from shared memory, in one block of 64 rows; ``times`` of it."""

    def body(a_gmem: Any, b_gmem: Any, o_gmem: Any, a_smem: Any, b_smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(a_gmem, a_smem, loaded)
        plgpu.copy_gmem_to_smem(b_gmem, b_smem, loaded)
        plgpu.barrier_wait(loaded)

        def multiply(acc: Any) -> Any:
            for _ in range(times):
                plgpu.wgmma(acc, a_smem, b_smem.T)
            return acc[...]

        o_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, b.shape[0])))

    columns = 128 // a.dtype.itemsize
    transforms = (plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, b.shape[0]), jnp.float32),
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


def convert(dtype: Any, *, mosaic: bool = False) -> Kernel:
    """A kernel that converts its operand, for Triton or Mosaic GPU."""

    def body(x: Any, o: Any) -> None:
        o[...] = x[...].astype(o.dtype)

    def converted(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype))
        return (
            plgpu.kernel(body, out_type=shape)(x)
            if mosaic
            else pl.pallas_call(body, out_shape=shape)(x)
        )

    return converted


def call_of(record: Mapping[str, Array], name: str) -> tuple[Kernel, list[Array]]:
    """The kernel and the operands of a call."""
    route, dtype, how = name.split(".")
    operands = [
        record[f"{name}.{side}"].view(jnp.dtype("bfloat16" if route == "to" else dtype))
        for side in _SIDES[route][:-1]
    ]
    if route == "to":
        return convert(dtype), operands
    return wgmma if route == "wgmma" else dot(None if how == "None" else how), operands


def different(record: ChipRecord, name: str, target: str = "") -> int:
    """How many elements of a call have other bits on ``gpu-sim``."""
    kernel, operands = call_of(record.arrays, name)
    values = np.asarray(simulate(kernel, *operands, target=target or record.target).values)
    wanted = record.arrays[f"{name}.o"]
    return int((_bits(values) != _bits(wanted)).sum())


def _bits(array: Array) -> Array:
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize])


def operands() -> Iterator[tuple[str, list[Array]]]:
    """Calls to record: what is easy, and what shows each number of the model."""
    rng = np.random.default_rng(0)
    for dtype in _WGMMA:
        for kind in ("normal", "wide", "cancel", "one_large"):
            x, y = (_drawn(rng, (64, 128), dtype, kind) for _ in range(2))
            yield f"wgmma.{dtype}.{kind}", [x, y]
    for dtype, precision in _DOT:
        x, y = (_drawn(rng, (64, 64), dtype, "normal") for _ in range(2))
        yield f"tdot.{dtype}.{precision}", [x, y]
    finite = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    finite = np.where(np.isfinite(finite), finite, 0).astype(finite.dtype)
    for dtype in _NARROW:
        yield f"to.{dtype}.bfloat16", [finite]


def _drawn(rng: np.random.Generator, shape: tuple[int, int], dtype: str, kind: str) -> Array:
    values = rng.normal(size=shape)
    if kind == "wide":
        values *= np.exp2(rng.integers(-6, 6, shape))
    elif kind == "cancel":
        values[:, 1::2] = -values[:, ::2] * (1 + 2.0**-6 * rng.normal(size=values[:, ::2].shape))
    elif kind == "one_large":
        values[:, :: shape[1] // 2] *= 64
    return values.astype(jnp.dtype(dtype))


def write(path: Path, device: str, run: Callable[[Kernel, list[Array]], Any]) -> None:
    """Record all calls.

    Args:
      path: of the new file.
      device: kind of the device.
      run: calls a kernel on it.
    """
    arrays: dict[str, Array] = {}
    for name, given in operands():
        kernel, _ = call_of(
            {f"{name}.{side}": each for side, each in zip("xy", given, strict=False)}, name
        )
        for side, each in zip("xy", given, strict=False):
            arrays[f"{name}.{side}"] = _bits(each)
        output = np.asarray(run(kernel, given))
        arrays[f"{name}.o"] = _bits(output) if name.startswith("to.") else output
    save(path, device, arrays)


def main(words: list[str] | None = None) -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description="What a GPU computes, bit by bit.")
    parser.add_argument("command", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="", choices=["", *GPUS], help="chip of the record")
    given = parser.parse_args(words)
    if given.command == "write":
        try:
            device = jax.devices("gpu")[0].device_kind
        except RuntimeError as error:
            parser.error(f"there is no GPU to record: {error}")
        write(given.file, device, lambda kernel, arrays: jax.jit(kernel)(*arrays))
        return 0
    try:
        record = load(given.file, given.target)
    except OptionError as error:
        parser.error(str(error))
    wrong = {name: different(record, name) for name in record.calls}
    for name, count in wrong.items():
        print(f"{name}: {count} of {record.arrays[f'{name}.o'].size} elements differ")
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
