"""Code that a kernel inlines: ``plgpu.inline_mgpu``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, llvm, math, memref, nvvm, scf, vector

from pallas_sim import simulate
from pallas_sim.errors import BoundsError, DeadlockError, MissingRuleError

STRIDED = plgpu.Layout.WG_STRIDED((512,), vec_size=4)


def word() -> Any:
    """MLIR's type of 32 bits."""
    return ir.IntegerType.get_signless(32)


def number(value: int) -> Any:
    """A constant of 32 bits."""
    return arith.constant(word(), value)


def elementwise(function: Callable[..., Any], dtype: Any = np.uint32, out: Any = None) -> Any:
    """A kernel that applies a function of MLIR's values to 512 numbers.

    Args:
      function: of a value and of the number of its thread.
      dtype: of the input.
      out: dtype of the output; that of the input if it is not given.
    """
    out = np.dtype(dtype if out is None else out)
    layout = plgpu.Layout.WG_STRIDED((512,), vec_size=1)

    def body(x: Any, o: Any) -> None:
        @plgpu.inline_mgpu(
            arg_types=(layout,),
            return_type=plgpu.ShapeDtypeStruct((512,), out, layout=layout),
        )
        def inline(_: Any, x: Any) -> Any:
            registers = np.empty_like(x.registers)
            for at, register in np.ndenumerate(x.registers):
                given = vector.extract(register, [], [0])
                found = function(given, mgpu.utils.thread_idx())
                registers[at] = vector.broadcast(ir.VectorType.get((1,), found.type), found)
            signed = mgpu.utils.is_signed(out)
            return mgpu.FragmentedArray(
                _registers=registers, _layout=layout.to_mgpu(), _is_signed=signed
            )

        o[...] = inline(plgpu.layout_cast(x[...], layout))

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((512,), out))


def words(seed: int = 0) -> Any:
    """512 words of random bits."""
    return np.random.default_rng(seed).integers(0, 1 << 32, 512, dtype=np.uint32)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, _: arith.addi(x, number(7)), lambda x: x + 7),
        (lambda x, _: arith.divui(x, number(7)), lambda x: x // 7),
        (lambda x, _: arith.remui(x, number(1000)), lambda x: x % 1000),
        (
            lambda x, _: arith.divsi(x, number(7)),
            lambda x: np.trunc(x.view(np.int32) / 7).astype(np.int32).view(np.uint32),
        ),
        (lambda x, _: arith.shli(x, number(3)), lambda x: x << 3),
        (lambda x, _: arith.shrsi(x, number(3)), lambda x: (x.view(np.int32) >> 3).view("u4")),
        (lambda x, _: arith.maxsi(x, number(9)), lambda x: np.maximum(x.view("i4"), 9).view("u4")),
        (lambda x, _: arith.maxui(x, number(9)), lambda x: np.maximum(x, 9)),
        (lambda x, _: math.ctpop(x), lambda x: np.bitwise_count(x).astype(np.uint32)),
        (
            lambda x, _: arith.select(
                arith.cmpi(arith.CmpIPredicate.slt, x, number(0)), number(1), x
            ),
            lambda x: np.where(x.view(np.int32) < 0, 1, x).astype(np.uint32),
        ),
        (lambda _, thread: thread, lambda _: np.tile(np.arange(128, dtype=np.uint32), 4)),
    ],
)
def test_words_are_computed_as_their_operations_say(function: Any, expected: Any) -> None:
    x = words()
    found = simulate(elementwise(function), x, target="h100")
    np.testing.assert_array_equal(found.values, expected(x))
    assert not found.findings


def test_floats_of_16_bits_round_after_each_operation() -> None:
    x = np.linspace(0.3, 3, 512).astype(jnp.bfloat16)
    kernel = elementwise(lambda x, _: arith.addf(arith.mulf(x, x), x), jnp.bfloat16)
    found = simulate(kernel, x, target="h100")
    wide = x.astype(np.float32)
    squared = (wide * wide).astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found.values, (squared + wide).astype(jnp.bfloat16))


PTX: dict[str, Callable[[Any], Any]] = {
    "lop3.b32 $0, $1, 0x0f0f0f0f, 0x00300030, 0xEA;": lambda x: x & 0x0F0F0F0F | 0x00300030,
    "prmt.b32 $0, $1, $1, 0x0123;": lambda x: x.byteswap(),
    "prmt.b32 $0, $1, 0, 0xB4A0;": lambda x: (
        (x & 0xFF) | (np.where(x >> 23 & 1, 0xFF, 0) << 8) | (np.where(x >> 31, 0xFF, 0) << 24)
    ).astype(np.uint32),
    "shr.s32 $0, $1, 5;": lambda x: (x.view(np.int32) >> 5).view(np.uint32),
    "shr.u32 $0, $1, 40;": lambda x: x * 0,
    "{ .reg .b32 t; and.b32 t, $1, 0xff; mul.lo.u32 $0, t, 3; }": lambda x: (x & 0xFF) * 3,
    "{ .reg .pred p; setp.lt.s32 p, $1, 0; selp.b32 $0, 1, 2, p; }": lambda x: np.where(
        x.view(np.int32) < 0, 1, 2
    ).astype(np.uint32),
    "{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {h, l}; }": lambda x: x >> 16 | x << 16,
    "mul.hi.u32 $0, $1, 5;": lambda x: (x.astype(np.uint64) * 5 >> 32).astype(np.uint32),
    "mad.lo.s32 $0, $1, 3, 4;": lambda x: x * 3 + 4,
    "brev.b32 $0, $1;": lambda x: np.array([int(f"{each:032b}"[::-1], 2) for each in x], np.uint32),
    "bfe.u32 $0, $1, 4, 9;": lambda x: x >> 4 & 0x1FF,
    "clz.b32 $0, $1;": lambda x: np.array([32 - int(each).bit_length() for each in x], np.uint32),
}


@pytest.mark.parametrize("text", PTX)
def test_instructions_of_inline_assembly(text: str) -> None:
    kernel = elementwise(lambda x, _: mgpu.utils.inline_ptx(text, x, result_types=word()))
    x = np.r_[np.uint32(0), words()[1:]]
    np.testing.assert_array_equal(simulate(kernel, x, target="h100").values, PTX[text](x))


def test_two_floats_in_one_register() -> None:
    x = np.linspace(-600, 600, 512).astype(np.float32)

    def packed(text: str) -> Any:
        kernel = elementwise(
            lambda x, _: mgpu.utils.inline_ptx(text, x, result_types=word()), np.float32, np.uint32
        )
        return np.asarray(simulate(kernel, x, target="h100").values)

    pairs = packed("cvt.rn.bf16x2.f32 $0, $1, 0f3F800000;").view(jnp.bfloat16).reshape(-1, 2)
    np.testing.assert_array_equal(pairs[:, 1], x.astype(jnp.bfloat16))
    np.testing.assert_array_equal(pairs[:, 0], 1)
    text = "{ .reg .b16 t; cvt.rn.satfinite.e4m3x2.f32 t, $1, $1; mov.b32 $0, {t, t}; }"
    small = packed(text).view(jnp.float8_e4m3fn).reshape(-1, 4)
    np.testing.assert_array_equal(small[:, 0], np.clip(x, -448, 448).astype(jnp.float8_e4m3fn))
    text = "{ .reg .b32 t; cvt.rn.f16x2.f32 t, $1, $1; fma.rn.f16x2 $0, t, t, t; }"
    halves = packed(text).view(np.float16).reshape(-1, 2)
    wide = x.astype(np.float16).astype(np.float64)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(halves[:, 1], (wide * wide + wide).astype(np.float16))


def test_an_unknown_instruction_and_operation_are_named() -> None:
    x = words()
    kernel = elementwise(
        lambda x, _: mgpu.utils.inline_ptx("dp4a.u32.u32 $0, $1, $1, 0;", x, result_types=word())
    )
    with pytest.raises(MissingRuleError, match=r"instruction 'dp4a.u32.u32.*test_inline.py:\d+"):
        simulate(kernel, x, target="h100")
    kernel = elementwise(lambda x, _: gpu.subgroup_size() and x)
    with pytest.raises(MissingRuleError, match=r"does not know gpu\.subgroup_size"):
        simulate(kernel, x, target="h100")


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("layout", [plgpu.Layout.WGMMA, plgpu.Layout.TCGEN05])
@pytest.mark.parametrize("swizzle", [32, 128])
def test_swizzled_tiles_are_where_mosaic_gpu_looks_for_them(
    dtype: Any, layout: Any, swizzle: int
) -> None:
    dtype = np.dtype(dtype)
    columns = swizzle // dtype.itemsize
    shape = (128, 2 * columns)
    tiles = (plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(swizzle))

    def body(x: Any, o: Any, buffer: Any, other: Any, arrived: Any) -> None:
        plgpu.copy_gmem_to_smem(x, buffer, arrived)
        plgpu.barrier_wait(arrived)

        @plgpu.inline_mgpu(
            arg_types=(plgpu.RefType(tiles),),
            return_type=plgpu.ShapeDtypeStruct(shape, dtype, layout=layout),
        )
        def load(_: Any, memory: Any) -> Any:
            return mgpu.FragmentedArray.load_tiled(
                memory,
                swizzle=swizzle,
                layout=layout.to_mgpu(),
                is_signed=mgpu.utils.is_signed(dtype),
            )

        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(tiles), layout))
        def store(_: Any, memory: Any, value: Any) -> None:
            value.store_tiled(memory, swizzle=swizzle)
            mgpu.commit_shared()

        store(other, load(buffer))
        plgpu.copy_smem_to_gmem(other, o)
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(shape, dtype),
        scratch_types=[
            plgpu.SMEM(shape, dtype, transforms=tiles),
            plgpu.SMEM(shape, dtype, transforms=tiles),
            plgpu.Barrier(),
        ],
    )
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    found = simulate(kernel, x, target="h100")
    np.testing.assert_array_equal(np.asarray(found.values).view(np.uint8), x.view(np.uint8))
    assert not found.findings


def dequantized(scales: int = 64) -> Any:
    """Rows of numbers times a scale each, which every thread reads from shared memory."""

    def body(x: Any, s: Any, o: Any, buffer: Any) -> None:
        buffer[...] = s[...]

        @plgpu.inline_mgpu(
            arg_types=(plgpu.RefType(), plgpu.Layout.WGMMA),
            return_type=plgpu.ShapeDtypeStruct((64, 64), jnp.float32, layout=plgpu.Layout.WGMMA),
        )
        def scaled(_: Any, s: Any, x: Any) -> Any:
            return x.foreach(
                lambda value, index: arith.mulf(value, memref.load(s, (index[0],))),
                create_array=True,
            )

        x_ = plgpu.load(x, layout=plgpu.Layout.WGMMA, optimized=False)
        o[...] = scaled(buffer, x_.astype(jnp.float32))

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.float32),
        scratch_types=[plgpu.SMEM((scales,), jnp.float32)],
    )


def test_each_thread_reads_the_element_that_it_computes() -> None:
    rng = np.random.default_rng(1)
    x, s = rng.integers(-9, 9, (64, 64), np.int8), rng.standard_normal(64).astype(np.float32)
    found = simulate(dequantized(), x, s, target="h100")
    np.testing.assert_array_equal(found.values, x * s[:, None])
    assert not found.findings


def test_memory_beyond_an_edge_is_an_error_with_the_line() -> None:
    x, s = np.ones((64, 64), np.int8), np.ones(32, np.float32)
    with pytest.raises(BoundsError, match=r"4 bytes at byte 128 of .*, which has 128.*_inline.py:"):
        simulate(dequantized(32), x, s, target="h100")


@pytest.mark.parametrize("commits", [False, True])
def test_a_copy_sees_what_was_inlined_after_a_fence(commits: bool) -> None:
    def body(o: Any, buffer: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
        def fill(_: Any, memory: Any) -> None:
            value = mgpu.FragmentedArray.splat(
                mgpu.utils.c(3.0, ir.F32Type.get()), (512,), STRIDED.to_mgpu()
            )
            value.store_untiled(memory)
            if commits:
                mgpu.commit_shared()

        fill(buffer)
        plgpu.copy_smem_to_gmem(buffer, o)
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((512,), jnp.float32),
        scratch_types=[plgpu.SMEM((512,), jnp.float32)],
    )
    found = simulate(kernel, target="h100")
    np.testing.assert_array_equal(found.values, 3)
    assert [each.kind for each in found.findings] == ([] if commits else ["race"])


def test_blocks_that_write_the_same_element_are_a_race() -> None:
    def kernel(apart: bool) -> Any:
        def body(o: Any) -> None:
            @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
            def store(_: Any, memory: Any) -> None:
                index = ir.IndexType.get()
                at = gpu.block_id(gpu.Dimension.x) if apart else arith.constant(index, 0)
                with mgpu.utils.single_thread():
                    memref.store(number(1), memory, [at])

            store(o)

        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((2,), jnp.int32),
            grid=(2,),
            grid_names=("g",),
        )

    assert not simulate(kernel(True), target="h100").findings
    assert [each.kind for each in simulate(kernel(False), target="h100").findings] == ["race"]


def test_threads_go_different_ways() -> None:
    def collatz(x: Any, _: Any) -> Any:
        """How many steps it takes to get to 1."""
        loop = scf.WhileOp([word(), word()], [x, number(0)])
        before = loop.before.blocks.append(word(), word())
        with ir.InsertionPoint(before):
            going = arith.cmpi(arith.CmpIPredicate.ne, before.arguments[0], number(1))
            scf.condition(going, before.arguments)
        after = loop.after.blocks.append(word(), word())
        with ir.InsertionPoint(after):
            value, steps = after.arguments
            odd = arith.trunci(ir.IntegerType.get_signless(1), value)
            branch = scf.IfOp(odd, [word()], has_else=True)
            with ir.InsertionPoint(branch.then_block):
                scf.yield_([arith.addi(arith.muli(value, number(3)), number(1))])
            with ir.InsertionPoint(branch.else_block):
                scf.yield_([arith.shrui(value, number(1))])
            scf.yield_([branch.results[0], arith.addi(steps, number(1))])
        return loop.results[1]

    def steps(value: int) -> int:
        count = 0
        while value != 1:
            value, count = (3 * value + 1 if value % 2 else value // 2), count + 1
        return count

    x = np.arange(1, 513, dtype=np.uint32)
    found = simulate(elementwise(collatz), x, target="h100")
    np.testing.assert_array_equal(found.values, [steps(int(each)) for each in x])


def test_a_loop_of_as_many_rounds_as_each_thread_wants() -> None:
    def summed(x: Any, _: Any) -> Any:
        loop = scf.ForOp(number(0), x, number(1), [number(0)])
        with ir.InsertionPoint(loop.body):
            scf.yield_([arith.addi(loop.inner_iter_args[0], loop.induction_variable)])
        return loop.results[0]

    x = (np.arange(512) % 11).astype(np.uint32)
    found = simulate(elementwise(summed), x, target="h100")
    np.testing.assert_array_equal(found.values, [sum(range(each)) for each in x])


def test_lanes_of_a_warp_exchange_values() -> None:
    x = words()
    lanes = x.reshape(-1, 32)
    kernel = elementwise(lambda x, _: mgpu.utils.shfl_bfly(x, 5))
    found = np.asarray(simulate(kernel, x, target="h100").values).reshape(-1, 32)
    np.testing.assert_array_equal(found, lanes[:, np.arange(32) ^ 5])

    def moved(kind: Any, clamp: int) -> Any:
        kernel = elementwise(
            lambda x, _: nvvm.shfl_sync(number(-1), x, number(3), number(clamp), kind)
        )
        return np.asarray(simulate(kernel, x, target="h100").values).reshape(-1, 32)

    at = np.arange(32)
    up, down = np.where(at >= 3, at - 3, at), np.where(at + 3 < 32, at + 3, at)
    np.testing.assert_array_equal(moved(nvvm.ShflKind.up, 0), lanes[:, up])
    np.testing.assert_array_equal(moved(nvvm.ShflKind.down, 31), lanes[:, down])
    np.testing.assert_array_equal(moved(nvvm.ShflKind.idx, 31), lanes[:, [3] * 32])
    kernel = elementwise(lambda x, _: mgpu.utils.redux(x, number(-1), nvvm.ReductionKind.UMAX))
    found = np.asarray(simulate(kernel, x, target="h100").values).reshape(-1, 32)
    np.testing.assert_array_equal(found, np.repeat(lanes.max(1), 32).reshape(-1, 32))


@pytest.mark.parametrize("grid", [(3,), (2, 3), (2, 1, 3, 2)])
def test_blocks_know_where_they_are(grid: tuple[int, ...]) -> None:
    names = tuple(f"g{axis}" for axis in range(len(grid)))

    def body(o: Any) -> None:
        @plgpu.inline_mgpu(
            return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=plgpu.Layout.WG_SPLAT)
        )
        def here(_: Any) -> Any:
            at = number(0)
            for axis in (gpu.Dimension.z, gpu.Dimension.y, gpu.Dimension.x):
                size = arith.index_cast(word(), gpu.grid_dim(axis))
                at = arith.addi(arith.muli(at, size), arith.index_cast(word(), gpu.block_id(axis)))
            return mgpu.FragmentedArray.splat(at, (), is_signed=True)

        o[tuple(map(jax.lax.axis_index, (*names, "c")))] = here()

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((*grid, 2), jnp.int32),
        grid=grid,
        grid_names=names,
        cluster=(2,),
        cluster_names=("c",),
    )
    found = np.asarray(simulate(kernel, target="h100").values)
    np.testing.assert_array_equal(found.reshape(-1), np.arange(found.size))


def test_one_warp_has_32_threads_and_gives_scalars() -> None:
    def body(o: Any, where: Any) -> None:
        @plgpu.warp_map
        def _warps(warp: Any) -> None:
            @plgpu.inline_mgpu(
                arg_types=(plgpu.RefType(), plgpu.Layout.WG_SPLAT),
                return_type=plgpu.ShapeDtypeStruct((), jnp.int32, layout=plgpu.Layout.WG_SPLAT),
            )
            def store(_: Any, memory: Any, warp: Any) -> Any:
                thread = arith.index_cast(ir.IndexType.get(), mgpu.utils.thread_idx())
                memref.store(warp.registers.item(), memory, [thread])
                return warp + warp

            twice = store(o, warp)
            where[warp] = twice

    kernel = plgpu.kernel(
        body,
        out_type=(jax.ShapeDtypeStruct((128,), jnp.int32), jax.ShapeDtypeStruct((4,), jnp.int32)),
    )
    o, where = simulate(kernel, target="h100").values
    np.testing.assert_array_equal(o, np.repeat(np.arange(4), 32))
    np.testing.assert_array_equal(where, [0, 2, 4, 6])


def test_what_only_a_compiler_has_is_named() -> None:
    def kernel(function: Any, layout: Any = STRIDED) -> Any:
        def body(x: Any, o: Any) -> None:
            inline = plgpu.inline_mgpu(
                arg_types=(plgpu.RefType(),),
                return_type=plgpu.ShapeDtypeStruct((512,), jnp.uint32, layout=layout),
            )
            o[...] = inline(function)(x)

        return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((512,), jnp.uint32))

    def load(_: Any, memory: Any) -> Any:
        return mgpu.FragmentedArray.load_strided(memory, is_signed=False, vec_size=4)

    x = words()
    np.testing.assert_array_equal(simulate(kernel(load), x, target="h100").values, x)
    with pytest.raises(MissingRuleError, match="uses async_copy of its first argument"):
        simulate(kernel(lambda ctx, memory: ctx.async_copy(src_ref=memory)), x, target="h100")
    other = plgpu.Layout.WG_STRIDED((512,), vec_size=2)
    with pytest.raises(MissingRuleError, match="returns the layout"):
        simulate(kernel(load, other), x, target="h100")
    with pytest.raises(MissingRuleError, match="raises ZeroDivisionError"):
        simulate(kernel(lambda *_: 1 // 0), x, target="h100")


def test_four_bits_are_taken_out_of_words() -> None:
    """As kernels do that multiply by weights of 4 bits."""
    layout = plgpu.Layout.WG_STRIDED((1024,), vec_size=8)

    def body(x: Any, o: Any) -> None:
        @plgpu.inline_mgpu(
            arg_types=(plgpu.RefType(),),
            return_type=plgpu.ShapeDtypeStruct((1024,), jnp.uint8, layout=layout),
        )
        def unpacked(_: Any, memory: Any) -> Any:
            values: Any = mgpu.FragmentedArray.load_strided(memory, is_signed=False, vec_size=8)
            narrow = ir.IntegerType.get_signless(8)
            registers = np.empty_like(values.registers)
            for at, register in np.ndenumerate(values.registers):
                packed = mgpu.utils.bitcast(register, word())
                wide = llvm.mlir_undef(ir.VectorType.get((8,), narrow))
                for place in range(8):
                    shifted = arith.shrui(packed, number(4 * place))
                    part = arith.trunci(narrow, arith.andi(shifted, number(15)))
                    wide = vector.insert(part, wide, [], [place])
                registers[at] = wide
            return mgpu.FragmentedArray(
                _registers=registers, _layout=layout.to_mgpu(), _is_signed=False
            )

        o[...] = unpacked(x)

    kernel = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((1024,), jnp.uint8))
    x = np.random.default_rng(2).integers(0, 16, 1024, np.uint8)
    found = simulate(kernel, x.astype(jnp.uint4), target="h100")
    np.testing.assert_array_equal(found.values, x)


def test_a_block_has_several_warpgroups() -> None:
    def body(o: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
        def store(_: Any, memory: Any) -> None:
            thread = mgpu.utils.thread_idx()
            memref.store(thread, memory, [arith.index_cast(ir.IndexType.get(), thread)])

        store(o)

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((256,), jnp.int32),
        num_threads=2,
        thread_name="t",
    )
    found = simulate(kernel, target="h100")
    np.testing.assert_array_equal(found.values, np.arange(256))
    assert not found.findings


def test_parts_of_a_reference_are_addressed() -> None:
    def body(x: Any, o: Any) -> None:
        @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))
        def copy(_: Any, source: Any, target: Any) -> None:
            part = mgpu.utils.memref_slice(source, (slice(None), slice(4, 8)))
            turned = mgpu.utils.memref_transpose(part, (1, 0))
            with mgpu.utils.single_thread():
                for row, column in np.ndindex(4, 3):
                    index = [arith.constant(ir.IndexType.get(), at) for at in (row, column)]
                    memref.store(memref.load(turned, index), target, index)

        copy(x.at[pl.ds(1, 3)], o)

    kernel = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((4, 3), jnp.float32))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_array_equal(simulate(kernel, x, target="h100").values, x[1:4, 4:8].T)


def in_turns(*, meets: bool = True, rounds: int = 3, threads: int = 256, comes: bool = True) -> Any:
    """A kernel whose second warpgroup reads what the first writes, at barriers with numbers.

    Args:
      meets: whether the second one waits for the first.
      rounds: how often.
      threads: for which the first one says that a barrier is.
      comes: whether the second one says that it has read.
    """

    def at(way: str, name: int, count: int = 256) -> None:
        @plgpu.inline_mgpu()
        def meet(_: Any) -> None:
            void, text = ir.Type.parse("!llvm.void"), f"bar.{way} {name}, {count};"
            llvm.inline_asm(void, [], text, "", has_side_effects=True)

        meet()

    def body(x: Any, o: Any, box: Any) -> None:
        group = jax.lax.axis_index("wg")

        @pl.loop(0, rounds)
        def _(step: Any) -> None:
            @pl.when(group == 0)
            def _() -> None:
                pl.when(step > 0)(lambda: at("sync", 9))
                box[...] = x[step]
                at("arrive", 8, threads)

            @pl.when(group == 1)
            def _() -> None:
                if meets:
                    at("sync", 8)
                o[step] = box[...]
                if comes:
                    pl.when(step < rounds - 1)(lambda: at("arrive", 9))

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((rounds, 512), jnp.float32),
        scratch_types=[plgpu.SMEM((512,), jnp.float32)],
        num_threads=2,
        thread_name="wg",
    )


def test_warpgroups_meet_at_barriers_with_numbers() -> None:
    x = np.arange(1536, dtype=np.float32).reshape(3, 512)
    for seed in range(4):
        result = simulate(in_turns(), x, target="h100", seed=seed)
        np.testing.assert_array_equal(result.values, x)
        assert not result.findings


def test_a_warpgroup_that_does_not_wait_at_its_barrier_is_a_race() -> None:
    x = np.ones((1, 512), np.float32)
    result = simulate(in_turns(meets=False, rounds=1), x, target="h100")
    assert [each.kind for each in result.findings] == ["race"]
    assert result.findings[0].ref == "box"


def test_a_barrier_with_a_number_where_others_never_come_is_a_deadlock() -> None:
    x = np.ones((2, 512), np.float32)
    with pytest.raises(DeadlockError, match=r"barrier 9.*needs 256 threads, has 128"):
        simulate(in_turns(rounds=2, comes=False), x, target="h100")


def test_a_barrier_with_a_number_is_for_as_many_threads_on_both_sides() -> None:
    x = np.ones((1, 512), np.float32)
    result = simulate(in_turns(rounds=1, threads=384), x, target="h100")
    kinds = {each.kind: each.message for each in result.findings}
    assert kinds["phase"] == "barrier 8 is for 256 threads, and here for 384"
