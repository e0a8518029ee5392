"""Every view of a reference is the memory that it views: for values, races, and boxes in findings.

Random compositions of up to six transforms lead to windows. What the monitor takes a window for is
compared with the bytes that a store to it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import pallas_sim.accesses
import pallas_sim.copies
import pallas_sim.gpu.engines
import pallas_sim.gpu.mosaic_kernels
import pallas_sim.rules.kernels
from pallas_sim import SimulationError, simulate
from pallas_sim.dtypes import bit_width
from pallas_sim.edges import read_inside, region_inside, write_inside
from pallas_sim.memory import Elements, Outside
from pallas_sim.order.accesses import index_of, overlap, whole_of
from pallas_sim.transforms import (
    AxisSlice,
    Bitcast,
    Expanded,
    Indexed,
    Operand,
    Reshaped,
    Transform,
    Transposed,
    Untiled,
)
from pallas_sim.windows import applied, bitcast_rows, read, region_of, write

DTYPES = [
    np.dtype(dtype)
    for dtype in ("uint8", "int16", "uint32", "float32", ml_dtypes.bfloat16, ml_dtypes.int4)
]

Rng = np.random.Generator


def octets(array: Any) -> Any:
    """The bytes of each element, as numpy keeps it."""
    array = np.array(array, order="C")
    return array.reshape((*array.shape, 1)).view(np.uint8)


def ones(shape: Sequence[int], dtype: Any) -> Any:
    """All bits of each element."""
    if bit_width(np.dtype(dtype)) < 8:
        return np.full(shape, -1).astype(dtype)
    return np.full(shape, -1, f"i{np.dtype(dtype).itemsize}").view(dtype).reshape(shape)


def drawn(rng: Rng, shape: Sequence[int], dtype: Any) -> Any:
    """Random bits."""
    dtype = np.dtype(dtype)
    if bit_width(dtype) < 8:
        return rng.integers(-8, 8, shape).astype(dtype)
    bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return bits.view(dtype).reshape(shape).copy()


def bytes_of(region: Any, whole: Any) -> Any:
    """For each byte of an allocation whether a region has it."""
    marks = np.zeros(whole.nbytes, np.bool_)
    memory = region.memory if isinstance(region, Elements) else region
    first, base = (array.__array_interface__["data"][0] for array in (memory, whole))
    shape, strides = (*memory.shape, memory.itemsize), (*memory.strides, 1)
    view = np.ndarray(shape, np.bool_, marks, first - base, strides)
    view[region.key if isinstance(region, Elements) else ...] = True
    return marks.reshape(*whole.shape, whole.itemsize)


def shape_of(rng: Rng, least: int = 1) -> tuple[int, ...]:
    return tuple(map(int, rng.choice([1, 2, 3, 4, 6, 8], int(rng.integers(least, 5)))))


def divisors(rng: Rng, size: int) -> tuple[int, ...]:
    """A random shape of so many elements."""
    shape: list[int] = []
    for _ in range(int(rng.integers(0, 4))):
        shape.append(int(rng.choice([n for n in range(1, size + 1) if size % n == 0])))
        size //= shape[-1]
    return tuple(map(int, rng.permutation([*shape, size])))


def cast_of(rng: Rng, shape: Sequence[int], dtype: Any) -> np.dtype[Any] | None:
    other = DTYPES[int(rng.integers(len(DTYPES)))]
    bits, other_bits = bit_width(np.dtype(dtype)), bit_width(other)
    rows = shape[max(len(shape) - 2, 0)] if shape else 1
    fits = bits == other_bits or (bool(shape) and rows * bits % other_bits == 0)
    return other if fits else None


# Windows, without a kernel.


def index_along(rng: Rng, size: int, operands: list[Any]) -> Any:
    """A number, a slice or a strided one; its start may be an operand."""

    def maybe_traced(value: int) -> Any:
        if rng.random() < 0.5:
            return value
        operands.append(np.int32(value))
        return Operand(len(operands) - 1)

    kind = rng.integers(0, 8)
    if kind == 0:
        return maybe_traced(int(rng.integers(size)))
    if kind == 1:
        stride = int(rng.integers(1, 3))
        count = int(rng.integers(1, (size - 1) // stride + 2))
        start = int(rng.integers(0, size - (count - 1) * stride))
        return AxisSlice(maybe_traced(start), count, stride)
    if kind == 2 and size % 2 == 0:
        return AxisSlice(maybe_traced(int(rng.choice([0, size // 2]))), size // 2, 1)
    if kind == 3:
        count = int(rng.integers(1, size + 1))
        return AxisSlice(maybe_traced(int(rng.integers(0, size - count + 1))), count, 1)
    return AxisSlice(0, size, 1)


def transform_of(rng: Rng, array: Any, operands: list[Any]) -> Transform | None:
    shape = array.shape
    match rng.choice(["index", "index", "list", "reshape", "bitcast", "bitcast", "moved"]):
        case "index":
            return Indexed(tuple(index_along(rng, n, operands) for n in shape), shape, ())
        case "list" if shape:
            rows = rng.permutation(shape[0])[: int(rng.integers(1, 4))].astype(np.int32)
            operands.append(rows)
            rest = (AxisSlice(0, size, 1) for size in shape[1:])
            return Indexed((Operand(len(operands) - 1), *rest), shape, rows.shape)
        case "reshape":
            return Reshaped(divisors(rng, array.size))
        case "bitcast":
            dtype = cast_of(rng, shape, array.dtype)
            return None if dtype is None else Bitcast(dtype)
        case _ if len(shape) == 4 and rng.random() < 0.5:
            return Untiled(shape[2:])
        case _ if len(shape) == 2 and shape[1] % 2 == 0 and rng.random() < 0.5:
            return Expanded((2,))
        case _:
            return Transposed(tuple(map(int, rng.permutation(len(shape)))))


def window_of(rng: Rng, memory: Any) -> tuple[list[Transform], list[Any], Any]:
    """Random transforms with their operands, and the window that copies give."""
    operands: list[Any] = []
    transforms: list[Transform] = []
    window = memory
    for _ in range(int(rng.integers(1, 7))):
        transform = transform_of(rng, window, operands)
        if transform is not None:
            transforms.append(transform)
            window = np.array(applied(np.array(window), transform, operands))
    return transforms, operands, window


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_window_covers_what_a_store_changes(dtype):
    for seed in range(150):
        rng = np.random.default_rng(seed)
        memory = drawn(rng, shape_of(rng), dtype)
        transforms, operands, window = window_of(rng, memory)
        np.testing.assert_array_equal(
            octets(read(memory, transforms, operands)), octets(window), str(transforms)
        )
        values, after = drawn(rng, window.shape, window.dtype), memory.copy()
        write(after, transforms, operands, lambda _, values=values: values)
        np.testing.assert_array_equal(
            octets(read(after, transforms, operands)), octets(values), str(transforms)
        )
        changed = np.zeros_like(memory)
        bits = ones(window.shape, window.dtype)
        write(changed, transforms, operands, lambda _, bits=bits: bits)
        region = region_of(memory, transforms, operands)
        marks = bytes_of(region, memory)
        np.testing.assert_array_equal(marks, octets(changed) != 0, str(transforms))
        assert (octets(after) == octets(memory))[~marks].all()


def beyond(rng: Rng, indexed: Indexed) -> Indexed:
    """An index that may reach beyond the edges of an axis."""
    axis = int(rng.integers(len(indexed.indices)))
    span, indices = indexed.indices[axis], list(indexed.indices)
    if not isinstance(span, AxisSlice):
        return indexed
    indices[axis] = AxisSlice(int(rng.integers(-2, indexed.shape[axis] + 1)), span.size, 1)
    return Indexed(tuple(indices), indexed.shape, ())


def test_a_window_beyond_an_edge_covers_what_a_store_changes():
    def zeros(shape: Any, dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    windows = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        window = memory = np.zeros(shape_of(rng), DTYPES[seed % len(DTYPES)])
        operands: list[Any] = []
        transforms: list[Transform] = []
        for _ in range(int(rng.integers(1, 7))):
            transform = transform_of(rng, window, operands)
            if isinstance(transform, Indexed) and transform.indices and not transform.joint:
                transform = beyond(rng, transform)
            if transform is not None:
                transforms.append(transform)
                window = np.array(read_inside(np.array(window), [transform], operands, zeros))
        try:
            read(memory, transforms, operands)
        except Outside:
            windows += 1
        else:
            continue
        changed, bits = memory.copy(), ones(window.shape, window.dtype)
        write_inside(changed, transforms, operands, lambda _, bits=bits: bits, zeros)
        marks = bytes_of(region_inside(memory, transforms, operands), memory)
        np.testing.assert_array_equal(marks, octets(changed) != 0, str(transforms))
    assert windows > 100


def test_regions_overlap_where_they_share_a_byte():
    overlaps = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        memory = np.zeros(shape_of(rng), DTYPES[seed % len(DTYPES)])
        regions = []
        for _ in range(2):
            transforms, operands, _ = window_of(rng, memory)
            regions.append(region_of(memory, transforms, operands))
        one, other = regions
        marks = [bytes_of(region, memory) for region in regions]
        shared = bool((marks[0] & marks[1]).any())
        overlaps += shared
        assert overlap(one, other) == overlap(other, one) == shared
        # Each box is the smallest one, in the coordinates of the memory.
        for region, mark in zip(regions, marks, strict=True):
            points = np.argwhere(mark.any(-1))
            box = zip(points.min(0).tolist(), (points.max(0) + 1).tolist(), strict=True)
            assert index_of(region) == tuple(box)
    assert 150 < overlaps < 290


def test_indices_of_keys_leave_out_the_axis_of_their_words():
    memory = np.zeros((4, 2), np.uint32)
    some = Indexed((Operand(0),), (4,), (2,))
    region = region_of(memory, [some], [np.array([3, 1])])
    assert bytes_of(region, memory).all((1, 2)).tolist() == [False, True, False, True]
    first = Indexed((AxisSlice(0, 2, 1),), (4,), ())
    region = region_of(memory, [first, Reshaped((4,))], [])
    assert bytes_of(region, memory).all((1, 2)).tolist() == [True, True, False, False]


def test_the_box_of_a_large_region_has_all_of_it():
    memory = np.zeros((3, 1024, 2048), np.int8)
    rows = memory.reshape(-1)[2048 * 100 + 7 :: 3]
    assert index_of(rows) == ((0, 3), (0, 1024), (0, 2048))
    assert index_of(memory.reshape(-1)[5 : 2048 + 9]) == ((0, 1), (0, 2), (0, 2048))
    assert index_of(memory[1:, 3:5].T) == ((1, 3), (3, 5), (0, 2048))


# Kernels.


@dataclass(frozen=True)
class Step:
    """A transform of a reference in a kernel.

    Attributes:
      apply: to a reference; a number that is traced, and 0, is the second argument.
      oracle: does the same to an array.
    """

    apply: Callable[[Any, Any], Any]
    oracle: Callable[[Any], Any]


def index_of_kernel(rng: Rng, size: int) -> tuple[Callable[[Any], Any], Any]:
    """An index along an axis, for a kernel and for numpy."""
    traced = int(rng.integers(0, 2))
    kind = rng.integers(0, 6)
    if kind == 0:
        index = int(rng.integers(size))
        return lambda zero: index + traced * zero, index
    if kind == 1 and size > 2:
        count, start = (size - 1) // 2, int(rng.integers(0, 2))
        return lambda _: pl.ds(start, count, 2), slice(start, start + 2 * count - 1, 2)
    if kind in (2, 3) and size > 1:
        count = int(rng.integers(1, size)) if kind == 2 else -(-size // 2)
        start = int(rng.integers(0, size - count + 1))
        return lambda zero: pl.ds(start + traced * zero, count), slice(start, start + count)
    return lambda _: slice(None), slice(None)


def step_of(rng: Rng, window: Any, *, casts: bool) -> Step | None:
    shape = window.shape
    match rng.choice(["at", "at", "reshape", "bitcast", "transpose", "squeeze"]):
        case "at":
            pairs = [index_of_kernel(rng, size) for size in shape]
            key = tuple(index for _, index in pairs)
            return Step(
                lambda ref, zero: ref.at[tuple(of_kernel(zero) for of_kernel, _ in pairs)],
                lambda array: array[(*key, ...)],
            )
        case "reshape" | "squeeze" as kind:
            squeezed = tuple(size for size in shape if size > 1) or (1,)
            other = squeezed if kind == "squeeze" else divisors(rng, window.size)
            return Step(lambda ref, _: ref.reshape(other), lambda array: array.reshape(other))
        case "bitcast" if casts and len(shape) > 1:
            dtype = cast_of(rng, shape, window.dtype)
            if dtype is None:
                return None
            return Step(lambda ref, _: ref.bitcast(dtype), lambda array: bitcast_rows(array, dtype))
        case "transpose" if len(shape) > 1:
            order = tuple(map(int, rng.permutation(len(shape))))
            return Step(lambda ref, _: ref.transpose(order), lambda array: array.transpose(order))
        case _:
            return None


@dataclass(frozen=True)
class View:
    """A random view of a buffer.

    Attributes:
      buffer: what the buffer has.
      steps: from the buffer to the view.
      window: what the view has.
    """

    buffer: Any
    steps: tuple[Step, ...]
    window: Any

    def of(self, ref: Any, zero: Any) -> Any:
        for step in self.steps:
            ref = step.apply(ref, zero)
        return ref

    def oracle(self, array: Any) -> Any:
        for step in self.steps:
            array = np.array(step.oracle(array))
        return array

    @property
    def is_one_of_numpy(self) -> bool:
        """Whether numpy has a view, too."""
        array = self.buffer
        for step in self.steps:
            array = step.oracle(array)
        return np.may_share_memory(array, self.buffer)

    def read(self) -> Any:
        """For each byte of the buffer whether the values of the view depend on it."""
        before, depends = octets(self.window), np.zeros(octets(self.buffer).shape, np.bool_)
        narrow = bit_width(self.buffer.dtype) < 8
        for at in np.ndindex(*depends.shape):
            bits = octets(self.buffer).copy()
            bits[at] ^= 1 if narrow else 255
            array = bits.view(np.int8)[..., 0] if narrow else bits.view(self.buffer.dtype)[..., 0]
            other = octets(self.oracle(array.astype(self.buffer.dtype)))
            depends[at] = (other != before).any()
        return depends


def view_of(seed: int, *, writes: bool, casts: bool = True) -> View:
    rng = np.random.default_rng(seed)
    dtype = DTYPES[int(rng.integers(len(DTYPES)))] if casts else np.dtype(np.uint32)
    buffer = drawn(rng, shape_of(rng, least=2), dtype)
    buffer = np.zeros_like(buffer) if writes else buffer
    steps: list[Step] = []
    window = buffer
    for _ in range(int(rng.integers(1, 7))):
        step = step_of(rng, window, casts=casts)
        if step is not None:
            steps.append(step)
            window = np.array(step.oracle(window))
    return View(buffer, tuple(steps), window)


@pytest.fixture(autouse=True)
def _views_that_no_compiler_makes(monkeypatch):
    """JAX lowers no access to an array in SMEM, for one; the machine knows what it would be."""
    for name in ("require_lowering", "require_blocks"):
        monkeypatch.setattr(pallas_sim.rules.kernels, name, lambda *_: None)
    monkeypatch.setattr(pallas_sim.gpu.mosaic_kernels, "require_mosaic_gpu", lambda *_: None)


@pytest.fixture
def regions(monkeypatch):
    """The name, region and kind of each access of a line that has ``# recorded``, as recorded."""
    regions: list[tuple[str, Any, bool]] = []
    with open(__file__) as file:
        lines = {f"{__file__}:{n}" for n, line in enumerate(file, 1) if "# recorded" in line}

    def watch(module: Any, name: str, sides: Callable[[Any], Any]) -> None:
        make = getattr(module, name)

        def record(*args: Any) -> Any:
            event = make(*args)
            regions.extend(side for line, *side in sides(event) if line in lines)
            return event

        monkeypatch.setattr(module, name, record)

    def of_copy(event: Any) -> Any:
        copy = event.copy
        yield copy.line, copy.names[0], copy.source, False
        yield copy.line, copy.names[1], copy.target, True

    def of_operation(event: Any) -> Any:
        for side in event.operation.sides:
            yield event.operation.line, side.name, side.region, side.writes

    watch(pallas_sim.accesses, "Touched", lambda e: [(e.line, e.name, e.region, e.writes)])
    watch(pallas_sim.copies, "Started", of_copy)
    watch(pallas_sim.gpu.engines, "Forked", of_operation)
    return regions


def check(view: View, regions: list[Any], values: Sequence[Any], name: str, *, writes: bool):
    after, window = map(np.asarray, values)
    (region, *_) = [part for at, part, kind in regions if (at, kind) == (name, writes)]
    whole = whole_of((region, name), (region, name))
    assert (whole.shape, whole.dtype) == (view.buffer.shape, view.buffer.dtype)
    if writes:
        np.testing.assert_array_equal(bytes_of(region, whole), octets(after) != 0)
    else:
        np.testing.assert_array_equal(octets(window), octets(view.window))
        np.testing.assert_array_equal(bytes_of(region, whole), view.read())


VMEM = pl.BlockSpec(memory_space=pltpu.VMEM)
SPACES = {"vmem": pltpu.VMEM, "smem": pltpu.SMEM, "hbm": pltpu.HBM}
OPERATIONS = {"store": True, "load": False, "copy to": True, "copy from": False}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("space", SPACES)
def test_accesses_of_a_tpu(operation, space, regions):
    if space == "hbm" and operation in ("store", "load"):
        return  # it has none
    writes = OPERATIONS[operation]
    for seed in range(6):
        view = view_of(100 * len(operation) + 10 * len(space) + seed, writes=writes)

        def body(zero_ref, x_ref, bits_ref, o_ref, w_ref, buffer, done, view=view):
            pltpu.sync_copy(x_ref, buffer)
            part = view.of(buffer, zero_ref[0])
            if operation == "store":
                part[...] = bits_ref[...]  # recorded
            elif operation == "load":
                w_ref[...] = part[...]  # recorded
            else:
                ends = (bits_ref, part) if writes else (part, w_ref)
                pltpu.async_copy(*ends, done).wait()  # recorded
            pltpu.sync_copy(buffer, o_ref)

        kernel = pl.pallas_call(
            body,
            out_shape=[jax.typeof(view.buffer), jax.typeof(view.window)],
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), VMEM, VMEM],
            out_specs=[VMEM, VMEM],
            scratch_shapes=[
                SPACES[space](view.buffer.shape, view.buffer.dtype),
                pltpu.SemaphoreType.DMA,
            ],
        )
        regions.clear()
        bits = ones(view.window.shape, view.window.dtype)
        run = simulate(kernel, np.zeros(1, np.int32), view.buffer, bits, seed=seed % 3)
        assert not run.findings
        check(view, regions, run.values, "buffer", writes=writes)


@pytest.mark.parametrize("writes", [True, False])
def test_copies_to_another_device(writes, regions):
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    for seed in range(6):
        view = view_of(1000 + seed, writes=writes)

        def body(x_ref, bits_ref, o_ref, w_ref, buffer, sent, done, view=view):
            other = 1 - lax.axis_index("x")
            pltpu.sync_copy(x_ref, buffer)
            barrier = pltpu.get_barrier_semaphore()
            pl.semaphore_signal(barrier, 1, device_id=(other,))
            pl.semaphore_wait(barrier, 1)
            part = view.of(buffer, lax.axis_index("x") * 0)
            ends = (bits_ref, part) if writes else (part, w_ref)
            copy = pltpu.make_async_remote_copy(*ends, sent, done, device_id=(other,))
            copy.start()  # recorded
            copy.wait()
            pltpu.sync_copy(buffer, o_ref)

        kernel = pl.pallas_call(
            body,
            out_shape=[jax.typeof(view.buffer), jax.typeof(view.window)],
            in_specs=[VMEM, VMEM],
            out_specs=[VMEM, VMEM],
            scratch_shapes=[
                pltpu.VMEM(view.buffer.shape, view.buffer.dtype),
                *[pltpu.SemaphoreType.DMA] * 2,
            ],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )

        def call(x, bits, kernel=kernel):
            return [part[None] for part in kernel(x, bits)]

        regions.clear()
        specs = {"in_specs": (P(), P()), "out_specs": P("x"), "check_vma": False}
        run = simulate(
            jax.shard_map(call, mesh=mesh, **specs),
            view.buffer,
            ones(view.window.shape, view.window.dtype),
            seed=seed % 3,
        )
        assert not run.findings
        values = [part[0] for part in run.values]
        check(view, regions, values, "buffer", writes=writes)


@pytest.mark.parametrize("writes", [True, False])
def test_copies_of_memory_that_subcores_share(writes, regions):
    for seed in range(6):
        view = view_of(3000 + seed, writes=writes)

        def body(x_ref, bits_ref, o_ref, w_ref, buffer, done, view=view):
            pltpu.sync_copy(x_ref, buffer)
            part = view.of(buffer, lax.axis_index("subcore"))
            ends = (bits_ref, part) if writes else (part, w_ref)
            pltpu.async_copy(*ends, done).wait()  # recorded
            pltpu.sync_copy(buffer, o_ref)

        def call(x, bits, view=view, body=body):
            names = {"core_axis_name": "core", "subcore_axis_name": "subcore"}
            return pl.kernel(
                body,
                out_type=[jax.typeof(view.buffer), jax.typeof(view.window)],
                mesh=plsc.VectorSubcoreMesh(**names, num_cores=1, num_subcores=1),
                scratch_types=[
                    pltpu.VMEM_SHARED(view.buffer.shape, view.buffer.dtype),
                    pltpu.SemaphoreType.DMA,
                ],
                compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
            )(x, bits)

        regions.clear()
        bits = ones(view.window.shape, view.window.dtype)
        run = simulate(call, view.buffer, bits, seed=seed % 3)
        assert not run.findings
        check(view, regions, run.values, "buffer", writes=writes)


GPU_OPERATIONS = {**OPERATIONS, "atomic": True}


@pytest.mark.parametrize("operation", GPU_OPERATIONS)
def test_accesses_of_shared_memory(operation, regions):
    writes = GPU_OPERATIONS[operation]
    for seed in range(6):
        view = view_of(2000 + 10 * len(operation) + seed, writes=writes, casts=False)
        if operation.startswith("copy") and not view.is_one_of_numpy:
            continue  # an engine has no such reference

        def body(x_ref, bits_ref, o_ref, w_ref, buffer, barrier, view=view):
            buffer[...] = x_ref[...]
            plgpu.commit_smem()
            part = view.of(buffer, lax.axis_index("block"))
            if operation == "store":
                part[...] = bits_ref[...]  # recorded
            elif operation == "atomic":
                plgpu.atomic_or(part, bits_ref[...])  # recorded
            elif operation == "load":
                w_ref[...] = part[...]  # recorded
            elif writes:
                plgpu.copy_gmem_to_smem(bits_ref, part, barrier)  # recorded
                plgpu.barrier_wait(barrier)
            else:
                plgpu.copy_smem_to_gmem(part, w_ref)  # recorded
                plgpu.wait_smem_to_gmem(0)
            o_ref[...] = buffer[...]

        kernel = plgpu.kernel(
            body,
            out_type=[jax.typeof(view.buffer), jax.typeof(view.window)],
            scratch_types=[plgpu.SMEM(view.buffer.shape, jnp.uint32), plgpu.Barrier()],
            grid=(1,),
            grid_names=("block",),
        )
        regions.clear()
        bits = ones(view.window.shape, view.window.dtype)
        run = simulate(kernel, view.buffer, bits, target="h100")
        assert not run.findings
        check(view, regions, run.values, "buffer", writes=writes)


def test_an_engine_has_no_reference_that_is_reshaped_with_a_copy():
    def body(x_ref, o_ref, buffer, barrier):
        plgpu.copy_gmem_to_smem(x_ref, buffer.at[:, 0:32].reshape(2048), barrier)
        plgpu.barrier_wait(barrier)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64,), jnp.float32),
        scratch_types=[plgpu.SMEM((64, 64), jnp.float32), plgpu.Barrier()],
    )
    with pytest.raises(SimulationError, match=r"reshaped to \[2048\] .* do not follow each other"):
        simulate(kernel, np.ones(2048, np.float32), target="h100")


# Races through views, and what findings say of them.


VIEWS: dict[str, Callable[[Any], Any]] = {
    "at": lambda ref: ref.at[0],
    "bitcast": lambda ref: ref.bitcast(jnp.uint32),
    "bitcast.reshape.at": lambda ref: ref.bitcast(jnp.uint32).reshape(2, 8, 128).at[0],
    "bitcast.reshape.slice": lambda ref: ref.bitcast(jnp.uint32).reshape(16, 128).at[0:8],
    "reshape.bitcast.at": lambda ref: ref.reshape(32, 128).bitcast(jnp.int8).at[3:9],
    "at.reshape.at": lambda ref: ref.at[:, 0:4].reshape(16, 128).at[7],
}


def copied(view: Callable[[Any], Any], change: Callable[[Any], None]) -> Any:
    """A copy of one bank of a buffer, while a kernel changes a view of the buffer."""

    def body(x_ref, o_ref, buffer, done):
        buffer[...] = x_ref[...]
        copy = pltpu.make_async_copy(buffer.at[0], o_ref, done)
        copy.start()
        change(view(buffer))
        copy.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((8, 2, 128), jnp.bfloat16),
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.VMEM((2, 8, 2, 128), jnp.bfloat16), pltpu.SemaphoreType.DMA],
    )


def clear(part: Any) -> None:
    part[...] = jnp.zeros(part.shape, part.dtype)


def clear_some(part: Any) -> None:
    mask = jnp.broadcast_to(jnp.arange(part.shape[-1]) < 5, part.shape)
    pltpu.store(part, jnp.zeros(part.shape, part.dtype), mask=mask)


BANKS = np.ones((2, 8, 2, 128), jnp.bfloat16)


def boxes(finding: Any) -> list[tuple[tuple[int, int], ...]]:
    return [access.index for access in finding.accesses]


def meet(one: Any, other: Any) -> bool:
    pairs = zip(one, other, strict=True)
    return all(first < stop and start < last for (first, last), (start, stop) in pairs)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("change", [clear, clear_some])
@pytest.mark.parametrize("view", VIEWS)
def test_a_store_through_a_view_of_what_is_copied(view, change, seed):
    (race,) = simulate(copied(VIEWS[view], change), BANKS, seed=seed).findings
    assert race.kind == "race"
    assert meet(*boxes(race))


@pytest.mark.parametrize(
    "view",
    [
        lambda ref: ref.bitcast(jnp.uint32).reshape(2, 8, 128).at[1],
        lambda ref: ref.reshape(4, 8, 128).bitcast(jnp.int8).at[2, 1:5],
    ],
)
def test_a_store_through_a_view_of_other_memory(view):
    for seed in range(3):
        assert not simulate(copied(view, clear), BANKS, seed=seed).findings


@pytest.mark.parametrize(
    ("select", "races"),
    [
        (lambda index, one, other: pl.select_ref(index, one, other).at[0], True),
        (lambda index, one, other: pl.select_ref(index, one, other).reshape(16, 128).at[0:8], True),
        (lambda index, one, other: pl.select_ref(index, other, one).at[0], False),
    ],
)
def test_a_part_of_a_reference_that_an_index_chooses(select, races):
    def body(index_ref, x_ref, o_ref, one, other, done):
        one[...] = x_ref[...]
        other[...] = x_ref[...] + 1
        copy = pltpu.make_async_copy(select(index_ref[0], one, other), o_ref, done)
        copy.start()
        one[0, 7, :] = jnp.ones(128)
        copy.wait()

    kernel = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), VMEM],
        out_specs=VMEM,
        scratch_shapes=[*[pltpu.VMEM((2, 8, 128), jnp.float32)] * 2, pltpu.SemaphoreType.DMA],
    )
    x = np.ones((2, 8, 128), np.float32)
    run = simulate(kernel, np.zeros(1, np.int32), x)
    assert [finding.kind for finding in run.findings] == ["race"] * races
    if not races:
        np.testing.assert_array_equal(run.values, x[0] + 1)


def test_boxes_of_a_bank_and_of_its_row_meet():
    def exchange(x):
        def body(x_ref, o_ref, banks, sent, arrived):
            me = lax.axis_index("x")
            barrier = pltpu.get_barrier_semaphore()
            pl.semaphore_signal(barrier, 1, device_id=(1 - me,))
            pl.semaphore_wait(barrier, 1)
            box = banks.at[lax.rem(2 * me, 2)]
            box[...] = jnp.zeros_like(box)
            box[me] = x_ref[0:1]
            ends = (box.at[me], box.at[me])
            copy = pltpu.make_async_remote_copy(*ends, sent, arrived, device_id=(1 - me,))
            copy.start()
            copy.wait()
            o_ref[...] = jnp.broadcast_to(box[0] + box[1], o_ref.shape)

        return pl.pallas_call(
            body,
            out_shape=x,
            scratch_shapes=[pltpu.VMEM((2, 2, 1, 128), x.dtype), *[pltpu.SemaphoreType.DMA] * 2],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)

    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
    run = simulate(jax.shard_map(exchange, mesh=mesh, **specs), np.ones((16, 128), np.float32))
    races = [finding for finding in run.findings if finding.kind == "race"]
    assert ((0, 1), (0, 2), (0, 1), (0, 128)) in {boxes(race)[0] for race in races}
    assert all(meet(*boxes(race)) for race in races)


@pytest.mark.parametrize("tiled", [False, True])
def test_the_box_of_shared_memory(tiled):
    """It is in the shape that the kernel gives the reference, not in the bytes of the block."""
    transforms = (plgpu.TilingTransform((8, 32)),) if tiled else ()

    def body(x_ref, o_ref, pad, buffer, barrier):
        pad[...] = jnp.zeros(pad.shape)
        plgpu.copy_gmem_to_smem(x_ref, buffer.at[1], barrier)
        buffer[1, 8:16, :] = jnp.zeros((8, 64))
        plgpu.barrier_wait(barrier)
        o_ref[...] = buffer[1]

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        scratch_types=[
            plgpu.SMEM((100,), jnp.float32),
            plgpu.SMEM((2, 64, 64), jnp.float32, transforms=transforms),
            plgpu.Barrier(),
        ],
    )
    run = simulate(kernel, np.ones((64, 64), np.float32), target="h100")
    (race, *_) = [finding for finding in run.findings if finding.kind == "race"]
    assert boxes(race) == [((1, 2), (8, 16), (0, 64)), ((1, 2), (0, 64), (0, 64))]


def test_a_copy_of_elements_of_4_bits_is_waited_for():
    """Its bytes are those of the chip, whatever dtype its reference is cast to."""

    def body(x_ref, o_ref, done):
        copy = pltpu.make_async_copy(x_ref.bitcast(jnp.int32), o_ref, done)
        copy.start()
        pltpu.make_async_copy(o_ref.at[0:8], o_ref.at[0:8], done).wait()
        pltpu.make_async_copy(x_ref.at[0:64], x_ref.at[0:64], done).wait()

    kernel = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((16, 128), jnp.int32),
        in_specs=[VMEM],
        out_specs=VMEM,
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    x = np.arange(128 * 128).reshape(128, 128).astype(np.int8).astype(jnp.int4)
    for seed in range(3):
        run = simulate(kernel, x, seed=seed)
        assert not run.findings
        np.testing.assert_array_equal(run.values, bitcast_rows(x, np.int32))


def test_blocks_without_axes():
    """Of an output that is one number, and of an array in place whose axes are all squeezed."""

    def body(x_ref, number_ref, o_ref, done):
        number_ref[...] = jnp.float32(3)
        pltpu.sync_copy(x_ref.at[...], o_ref.at[pl.program_id(0)])

    kernel = pl.pallas_call(
        body,
        grid=(4,),
        out_shape=[
            jax.ShapeDtypeStruct((), jnp.float32),
            jax.ShapeDtypeStruct((4,), jnp.float32),
        ],
        in_specs=[pl.BlockSpec((None,), lambda i: (i,), memory_space=pl.ANY)],
        out_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    x = np.arange(4, dtype=np.float32)
    run = simulate(kernel, x)
    assert not run.findings
    assert run.values[0] == 3
    np.testing.assert_array_equal(run.values[1], x)
