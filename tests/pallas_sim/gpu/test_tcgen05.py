"""Products by Blackwell's tensor core, and tensor memory: values, and what is a race."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.dtypes import itemsize_bits
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_sim import simulate
from pallas_sim.errors import SimulationError

M, K, N = 128, 64, 128
SEEDS = (0, 1, 2)
ROWS: Any = {"transforms": (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))}
TC = plgpu.Barrier(orders_tensor_core=True)
SUMS = plgpu.TMEM((M, N), jnp.float32)


def smem(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
    """Shared memory in tiles with a swizzle of 128 bytes."""
    width = 1024 // itemsize_bits(dtype)
    transforms = (plgpu.TilingTransform((8, width)), plgpu.SwizzleTransform(128))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def kernel(
    body: Callable[..., None],
    *scratch: Any,
    shape: Any = (M, N),
    dtype: Any = jnp.float32,
    **mesh: Any,
) -> Any:
    """A kernel with one output."""
    return plgpu.kernel(
        body, out_type=jax.ShapeDtypeStruct(shape, dtype), scratch_types=list(scratch), **mesh
    )


@pytest.fixture
def rng() -> np.random.Generator:
    """Of the same numbers in each run."""
    return np.random.default_rng(3)


def whole(rng: np.random.Generator, *shape: int, dtype: Any = jnp.bfloat16) -> Any:
    """Small integers."""
    return rng.integers(-3, 4, shape).astype(np.float32).astype(dtype)


def found(function: Any, *args: Any, seed: int = 0) -> list[str]:
    """The kinds of the findings of a run on a b200."""
    return [each.kind for each in simulate(function, *args, target="b200", seed=seed).findings]


def races(function: Any, *args: Any, seed: int = 0) -> bool:
    """Whether a run has a race, or memory that was not made visible; nothing else is found."""
    kinds = set(found(function, *args, seed=seed))
    assert kinds <= {"race"}, kinds
    return bool(kinds)


# Values.


def multiply(
    *,
    lhs: Any = jnp.bfloat16,
    rhs: Any = None,
    out: Any = jnp.float32,
    m: int = M,
    k: int = K,
    n: int = N,
    in_tmem: bool = False,
    turned: bool = False,
    start: float | None = None,
) -> Any:
    """A product of one block; ``start`` is what it is added to."""
    rhs = lhs if rhs is None else rhs

    def body(
        a: Any, b: Any, o: Any, a_smem: Any, b_smem: Any, acc: Any, done: Any, *rest: Any
    ) -> None:
        a_smem[...] = a[...]
        b_smem[...] = b[...]
        plgpu.commit_smem()
        if start is not None:
            plgpu.async_store_tmem(acc, jnp.full((m, n), start, out))
        left = a_smem
        if in_tmem:
            left = rest[0]
            plgpu.async_store_tmem(left, a_smem[...])
        plgpu.commit_tmem()
        right = b_smem.T if turned else b_smem
        plgpu.tcgen05_mma(acc, left, right, done, accumulate=start is not None)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    packed = np.dtype(out).itemsize < 4
    more = [plgpu.TMEM((m, k), lhs, packed=True)] if in_tmem else []
    return kernel(
        body,
        smem(m, k, dtype=lhs),
        smem(*((n, k) if turned else (k, n)), dtype=rhs),
        plgpu.TMEM((m, n), out, packed=False) if packed else plgpu.TMEM((m, n), out),
        TC,
        *more,
        shape=(m, n),
        dtype=out,
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "case",
    [
        {},
        {"lhs": jnp.float16},
        {"lhs": jnp.float16, "out": jnp.float16},
        {"lhs": jnp.float8_e4m3fn, "k": 128},
        {"lhs": jnp.float8_e5m2, "rhs": jnp.float8_e4m3fn, "k": 128, "n": 256},
        {"lhs": jnp.int8, "out": jnp.int32, "k": 128},
        {"lhs": jnp.float32, "k": 32, "turned": True},
        {"turned": True},
        {"in_tmem": True},
        {"start": 5.0},
        {"m": 64},
    ],
    ids=str,
)
def test_a_product(case: dict[str, Any], seed: int, rng: np.random.Generator) -> None:
    """Of each dtype, shape and place."""
    sizes = {"m": M, "k": K, "n": N, **case}
    m, k, n = sizes["m"], sizes["k"], sizes["n"]
    lhs = case.get("lhs", jnp.bfloat16)
    a, b = whole(rng, m, k, dtype=lhs), whole(rng, k, n, dtype=case.get("rhs", lhs))
    run = simulate(multiply(**case), a, b.T if case.get("turned") else b, target="b200", seed=seed)
    wanted = a.astype(np.float64) @ b.astype(np.float64) + case.get("start", 0)
    assert not run.findings
    assert (run.values == wanted.astype(run.values.dtype)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("m", [64, 128])
def test_a_product_of_a_pair(m: int, seed: int, rng: np.random.Generator) -> None:
    """Each block has half of the rows, and half of the columns of the second operand."""

    def body(
        a: Any, b: Any, o: Any, a_smem: Any, b_smem: Any, acc: Any, ready: Any, done: Any
    ) -> None:
        me = jax.lax.axis_index("pair")
        a_smem[...] = a[pl.ds(me * m, m)]
        b_smem[...] = b[:, pl.ds(me * 64, 64)]
        plgpu.commit_smem()
        plgpu.barrier_arrive(ready)
        plgpu.barrier_wait(ready)
        plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False, collective_axis="pair")
        plgpu.barrier_wait(done)
        o[pl.ds(me * m, m)] = plgpu.async_load_tmem(acc)

    function = kernel(
        body,
        smem(m, K),
        smem(K, 64),
        plgpu.TMEM((m, 128), jnp.float32, collective=True),
        plgpu.ClusterBarrier(collective_axes=("pair",), orders_tensor_core=True),
        TC,
        shape=(2 * m, 128),
        cluster=(2,),
        cluster_names=("pair",),
    )
    a, b = whole(rng, 2 * m, K), whole(rng, K, 128)
    run = simulate(function, a, b, target="b200", seed=seed)
    assert not run.findings
    assert (run.values == a.astype(np.float32) @ b.astype(np.float32)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("m", [64, 128])
def test_a_scaled_product_of_a_pair(m: int, seed: int, rng: np.random.Generator) -> None:
    """Scales of the rows are each block's own, and both have those of all columns."""
    k, n, scales = 128, 128, 4
    paired = m == 64

    def body(*refs: Any) -> None:
        a, b, a_scale, b_scale, o, a_smem, b_smem, a_rows, b_rows, *rest = refs
        a_tmem, b_tmem, acc, ready, done = rest
        me = jax.lax.axis_index("pair")
        a_smem[...] = a[pl.ds(me * m, m)]
        b_smem[...] = b[pl.ds(me * (n // 2), n // 2)]
        a_rows[...] = a_scale[pl.ds(me, 1)]
        b_rows[...] = b_scale[...]
        plgpu.commit_smem()
        plgpu.barrier_arrive(ready)
        plgpu.barrier_wait(ready)
        plgpu.async_copy_scales_to_tmem(a_rows, a_tmem, collective_axis="pair")
        plgpu.async_copy_scales_to_tmem(b_rows, b_tmem, collective_axis="pair")
        plgpu.tcgen05_mma(
            acc,
            a_smem,
            b_smem.T,
            done,
            a_scale=a_tmem,
            b_scale=b_tmem,
            accumulate=False,
            collective_axis="pair",
        )
        plgpu.barrier_wait(done)
        o[pl.ds(me * m, m)] = plgpu.async_load_tmem(acc)

    layouts = plgpu.TMEMLayout
    columns = layouts.SCALES_M64_COLLECTIVE_LAYOUT if paired else layouts.SCALES_LAYOUT
    e8m0: Any = jnp.float8_e8m0fnu
    function = kernel(
        body,
        smem(m, k, dtype=jnp.float8_e4m3fn),
        smem(n // 2, k, dtype=jnp.float8_e4m3fn),
        plgpu.SMEM((1, 1, 32, 16), e8m0),
        plgpu.SMEM((1, 1, 64 if paired else 32, 16), e8m0),
        plgpu.TMEM((128, scales), e8m0, layout=layouts.SCALES_LAYOUT, collective=True),
        plgpu.TMEM((256 if paired else 128, scales), e8m0, layout=columns, collective=True),
        plgpu.TMEM((m, n), jnp.float32, collective=True),
        plgpu.ClusterBarrier(collective_axes=("pair",), orders_tensor_core=True),
        TC,
        shape=(2 * m, n),
        cluster=(2,),
        cluster_names=("pair",),
    )
    a, b = (whole(rng, size, k, dtype=jnp.float8_e4m3fn) for size in (2 * m, n))
    rows, cols = (np.exp2(rng.integers(-2, 3, (size, scales))) for size in (2 * m, n))
    padded = np.ones((2, 128, scales))
    padded[:, :m] = rows.reshape(2, m, scales)
    a_scale = padded.reshape(2, 4, 32, 1, 4).transpose(0, 3, 2, 1, 4).reshape(2, 1, 32, 16)
    if paired:
        parts = cols.reshape(2, 2, 32, 1, 4).transpose(3, 0, 2, 1, 4).reshape(1, 1, 64, 8)
        b_scale = np.pad(parts, ((0, 0), (0, 0), (0, 0), (0, 8)), constant_values=1)
    else:
        b_scale = cols.reshape(1, 4, 32, 1, 4).transpose(0, 3, 2, 1, 4).reshape(1, 1, 32, 16)
    run = simulate(
        function, a, b, a_scale.astype(e8m0), b_scale.astype(e8m0), target="b200", seed=seed
    )
    wanted = (a.astype(np.float64) * rows.repeat(32, axis=1)) @ (
        b.astype(np.float64) * cols.repeat(32, axis=1)
    ).T
    assert not run.findings
    assert (run.values == wanted).all()


def test_a_pair_needs_two_blocks(rng: np.random.Generator) -> None:
    """The axis of four is named."""

    def body(o: Any, a_smem: Any, b_smem: Any, acc: Any, done: Any) -> None:
        plgpu.tcgen05_mma(acc, a_smem, b_smem, done, collective_axis="pair")

    function = kernel(
        body,
        smem(M, K),
        smem(K, 64),
        plgpu.TMEM((M, 128), jnp.float32, collective=True),
        TC,
        cluster=(4,),
        cluster_names=("pair",),
    )
    with pytest.raises(SimulationError, match=r"'pair' must have two blocks .* but has 4"):
        simulate(function, target="b200")


def test_sparse_metadata_that_mean_nothing(rng: np.random.Generator) -> None:
    """PTX leaves the product undefined: the finding names the row and the group."""

    def body(a: Any, b: Any, meta: Any, o: Any, a_smem: Any, b_smem: Any, *rest: Any) -> None:
        meta_smem, meta_tmem, acc, done = rest
        a_smem[...] = a[...]
        b_smem[...] = b[...]
        meta_smem[...] = meta[...]
        plgpu.commit_smem()
        plgpu.async_copy_sparse_metadata_to_tmem(meta_smem, meta_tmem)
        plgpu.tcgen05_mma(acc, a_smem, b_smem, done, a_sparse_metadata=meta_tmem, accumulate=False)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    layout = plgpu.TMEMLayout.SPARSE_METADATA_LAYOUT
    function = kernel(
        body,
        smem(M, 64),
        smem(128, N),
        plgpu.SMEM((1, 1, 128, 64), jnp.uint2),
        plgpu.TMEM((128, 64), jnp.uint2, layout=layout),
        SUMS,
        TC,
    )
    places = np.broadcast_to(np.array([1, 3], np.uint8), (128, 32, 2)).copy()
    a, b = whole(rng, M, 64), whole(rng, 128, N)

    def formatted() -> Any:
        packed = jnp.asarray(places).astype(jnp.uint2)
        return np.asarray(plgpu.format_tcgen05_sparse_metadata(packed, jnp.bfloat16))

    right = simulate(function, a, b, formatted(), target="b200")
    dense = np.zeros((M, 32, 4), np.float32)
    dense[:, :, [1, 3]] = a.astype(np.float32).reshape(M, 32, 2)
    assert not right.findings
    assert (right.values == dense.reshape(M, 128) @ b.astype(np.float32)).all()
    places[5, 7] = 2, 2
    (finding,) = simulate(function, a, b, formatted(), target="b200").findings
    assert finding.kind == "undefined"
    assert "row 5, group 7, name the elements 2 and 2" in finding.message
    assert "test_tcgen05.py" in finding.line


@pytest.mark.parametrize("reduce", ["max", "min", "absmax", "absmin"])
def test_loads_that_reduce(reduce: Any, rng: np.random.Generator) -> None:
    """The values, and of each row one."""

    def body(x: Any, o: Any, tmem: Any) -> None:
        plgpu.async_store_tmem(tmem, x[...])
        plgpu.commit_tmem()
        values, reduced = plgpu.async_load_tmem(tmem, reduce=reduce)
        o[...] = values + jax.lax.broadcast_in_dim(reduced, (M, N), (0,))

    x = rng.normal(size=(M, N)).astype(np.float32)
    given = np.abs(x) if "abs" in reduce else x
    least = given.min(axis=1) if "min" in reduce else given.max(axis=1)
    run = simulate(kernel(body, SUMS), x, target="b200")
    assert (run.values == x + least[:, None]).all()


def test_leading_axes_lie_in_the_columns(rng: np.random.Generator) -> None:
    """``(2, 128, 64)`` as two parts of 64 columns."""

    def body(x: Any, o: Any, tmem: Any) -> None:
        for part in range(2):
            plgpu.async_store_tmem(tmem.at[part], x[:, part * 64 : part * 64 + 64])
        plgpu.commit_tmem()
        for part in range(2):
            o[:, part * 64 : part * 64 + 64] = plgpu.async_load_tmem(tmem.at[1 - part])

    x = rng.normal(size=(M, N)).astype(np.float32)
    run = simulate(kernel(body, plgpu.TMEM((2, M, 64), jnp.float32)), x, target="b200")
    assert not run.findings
    assert (run.values == np.concatenate([x[:, 64:], x[:, :64]], axis=1)).all()


@pytest.mark.skipif(
    "predicate" not in inspect.signature(plgpu.tcgen05_commit_arrive).parameters,
    reason="JAX 0.11 has no predicate",
)
def test_a_predicate_of_a_commit(rng: np.random.Generator) -> None:
    """Without the arrival no thread goes on, which is a deadlock; with it, all is well."""

    def body(a: Any, b: Any, o: Any, a_smem: Any, b_smem: Any, acc: Any, done: Any) -> None:
        a_smem[...] = a[...]
        b_smem[...] = b[...]
        plgpu.commit_smem()
        plgpu.tcgen05_mma(acc, a_smem, b_smem, accumulate=False)
        plgpu.tcgen05_commit_arrive(done, predicate=a[0, 0] < 0)
        plgpu.tcgen05_commit_arrive(done, predicate=a[0, 0] >= 0)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    a, b = whole(rng, M, K), whole(rng, K, N)
    function = kernel(body, smem(M, K), smem(K, N), SUMS, TC)
    run = simulate(function, a, b, target="b200")
    assert not run.findings
    assert (run.values == a.astype(np.float32) @ b.astype(np.float32)).all()


# Order.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("first", ["store", "load"])
@pytest.mark.parametrize("wait", ["", "commit_tmem", "wait_load_tmem", "commit_arrive"])
def test_a_store_and_a_load(first: str, wait: str, seed: int) -> None:
    """Each is ordered by the wait for the first of both, and by no other."""

    def body(o: Any, tmem: Any, barrier: Any) -> None:
        if first == "store":
            plgpu.async_store_tmem(tmem, jnp.ones((M, N)))
        else:
            o[...] = plgpu.async_load_tmem(tmem)
        if wait == "commit_tmem":
            plgpu.commit_tmem()
        elif wait == "wait_load_tmem":
            plgpu.wait_load_tmem()
        elif wait == "commit_arrive":
            plgpu.tcgen05_commit_arrive(barrier)
            plgpu.barrier_wait(barrier)
        if first == "store":
            o[...] = plgpu.async_load_tmem(tmem)
        else:
            plgpu.async_store_tmem(tmem, jnp.ones((M, N)))
        plgpu.commit_tmem()

    right = (first, wait) in (("store", "commit_tmem"), ("load", "wait_load_tmem"))
    assert races(kernel(body, SUMS, TC), seed=seed) is not right


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("target", ["lhs", "sums"])
def test_a_store_and_a_product(target: str, commits: bool) -> None:
    """The tensor core reads an operand, or sums, only after the commit of their store."""

    def body(o: Any, acc: Any, lhs: Any, b_smem: Any, done: Any) -> None:
        if target == "lhs":
            plgpu.async_store_tmem(lhs, jnp.zeros((M, K), jnp.bfloat16))
        else:
            plgpu.async_store_tmem(acc, jnp.zeros((M, N)))
        if commits:
            plgpu.commit_tmem()
        plgpu.tcgen05_mma(acc, lhs, b_smem, done, accumulate=target == "sums")
        plgpu.barrier_wait(done)
        plgpu.commit_tmem()
        o[...] = plgpu.async_load_tmem(acc)

    lhs = plgpu.TMEM((M, K), jnp.bfloat16, packed=True)
    assert races(kernel(body, SUMS, lhs, smem(K, N), TC)) is not commits


@pytest.mark.parametrize("commits", [False, True])
def test_two_stores(commits: bool) -> None:
    """Of the same columns, without a commit between them."""

    def body(o: Any, tmem: Any) -> None:
        plgpu.async_store_tmem(tmem, jnp.ones((M, N)))
        if commits:
            plgpu.commit_tmem()
        plgpu.async_store_tmem(tmem, jnp.zeros((M, N)))
        plgpu.commit_tmem()
        o[...] = plgpu.async_load_tmem(tmem)

    assert races(kernel(body, SUMS)) is not commits


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("writer", ["product", "copy"])
def test_what_is_loaded_is_overwritten(writer: str, waits: bool) -> None:
    """Only after ``wait_load_tmem``."""

    def body(o: Any, acc: Any, a_smem: Any, b_smem: Any, source: Any, done: Any) -> None:
        o[...] = plgpu.async_load_tmem(acc)
        if waits:
            plgpu.wait_load_tmem()
        if writer == "product":
            plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False)
        else:
            plgpu.async_copy_smem_to_tmem(source, acc)
            plgpu.tcgen05_commit_arrive(done)
        plgpu.barrier_wait(done)

    source = smem(M, N, dtype=jnp.float32)
    assert races(kernel(body, SUMS, smem(M, K), smem(K, N), source, TC)) is not waits


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arrival", ["product", "commit"])
@pytest.mark.parametrize("waits", [False, True])
def test_sums_are_read(arrival: str, waits: bool, seed: int) -> None:
    """Only after the arrival of the product at a barrier; the finding names both lines."""

    def body(o: Any, acc: Any, a_smem: Any, b_smem: Any, done: Any) -> None:
        barrier = done if arrival == "product" else None
        plgpu.tcgen05_mma(acc, a_smem, b_smem, barrier, accumulate=False)
        if arrival == "commit":
            plgpu.tcgen05_commit_arrive(done)
        if waits:
            plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)
        if not waits:
            plgpu.barrier_wait(done)

    function = kernel(body, SUMS, smem(M, K), smem(K, N), TC)
    assert races(function, seed=seed) is not waits
    if not waits:
        (finding,) = simulate(function, target="b200", seed=seed).findings
        later, earlier = finding.accesses
        assert (later.kind, earlier.kind) == ("read", "write")
        assert (later.ref, earlier.ref) == ("acc", "acc")
        assert earlier.by == "the tcgen05 product"
        assert later.line != earlier.line


def test_nobody_waits_for_a_product() -> None:
    """It is under way when its block ends."""

    def body(o: Any, acc: Any, a_smem: Any, b_smem: Any) -> None:
        plgpu.tcgen05_mma(acc, a_smem, b_smem, accumulate=False)

    (finding,) = simulate(kernel(body, SUMS, smem(M, K), smem(K, N)), target="b200").findings
    assert finding.kind == "unwaited"
    assert "the tcgen05 product" in finding.message


@pytest.mark.parametrize("seed", SEEDS)
def test_products_follow_each_other(seed: int, rng: np.random.Generator) -> None:
    """Of one thread, without a wait: a copy of scales, or of an operand, and sums of sums."""

    def body(
        a: Any, b: Any, o: Any, acc: Any, lhs: Any, a_smem: Any, b_smem: Any, done: Any
    ) -> None:
        a_smem[...] = a[...]
        b_smem[...] = b[...]
        plgpu.commit_smem()
        plgpu.async_copy_smem_to_tmem(a_smem, lhs)
        plgpu.tcgen05_mma(acc, lhs, b_smem, accumulate=False)
        plgpu.tcgen05_mma(acc, a_smem, b_smem, done)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    lhs = plgpu.TMEM((M, K), jnp.bfloat16, packed=True)
    a, b = whole(rng, M, K), whole(rng, K, N)
    function = kernel(body, SUMS, lhs, smem(M, K), smem(K, N), TC)
    run = simulate(function, a, b, target="b200", seed=seed)
    assert not run.findings
    assert (run.values == 2 * (a.astype(np.float32) @ b.astype(np.float32))).all()


@pytest.mark.parametrize("second", ["copy", "copy after a product", "copy to the sums"])
@pytest.mark.parametrize("waits", [False, True])
def test_not_all_pairs_keep_their_order(second: str, waits: bool) -> None:
    """Two copies do, if a product between reads what the first one brings."""

    def body(o: Any, acc: Any, lhs: Any, a: Any, b: Any, sums: Any, done: Any) -> None:
        if second == "copy to the sums":
            plgpu.tcgen05_mma(acc, a, b, accumulate=False)
        else:
            plgpu.async_copy_smem_to_tmem(a, lhs)
        if second == "copy after a product":
            plgpu.tcgen05_mma(acc, lhs, b, accumulate=False)
        if waits:
            plgpu.tcgen05_commit_arrive(done)
            plgpu.barrier_wait(done)
        if second == "copy to the sums":
            plgpu.async_copy_smem_to_tmem(sums, acc)
        else:
            plgpu.async_copy_smem_to_tmem(a, lhs)
        plgpu.tcgen05_commit_arrive(done)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    lhs = plgpu.TMEM((M, K), jnp.bfloat16, packed=True)
    more = smem(M, N, dtype=jnp.float32)
    run = simulate(kernel(body, SUMS, lhs, smem(M, K), smem(K, N), more, TC), target="b200")
    texts = [each.message for each in run.findings]
    wrong = not waits and second != "copy after a product"
    assert [("need not keep the order" in each) for each in texts] == [True] * wrong


@pytest.mark.parametrize("which", [0, 1])
def test_a_commit_covers_what_was_before_it(which: int) -> None:
    """The second product is not done because the first one is."""

    def body(o: Any, one: Any, two: Any, a_smem: Any, b_smem: Any, first: Any, second: Any) -> None:
        plgpu.tcgen05_mma(one, a_smem, b_smem, accumulate=False)
        plgpu.tcgen05_commit_arrive(first)
        plgpu.tcgen05_mma(two, a_smem, b_smem, accumulate=False)
        plgpu.barrier_wait(first)
        o[...] = plgpu.async_load_tmem((one, two)[which])
        plgpu.tcgen05_commit_arrive(second)
        plgpu.barrier_wait(second)

    assert races(kernel(body, SUMS, SUMS, smem(M, K), smem(K, N), TC, TC)) is (which == 1)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_product_arrives_at_several_barriers(which: int) -> None:
    """A wait for any of them proves it."""

    def body(o: Any, acc: Any, a_smem: Any, b_smem: Any, barriers: Any) -> None:
        plgpu.tcgen05_mma(acc, a_smem, b_smem, barriers.at[0], accumulate=False)
        plgpu.tcgen05_commit_arrive(barriers.at[1])
        plgpu.tcgen05_commit_arrive(barriers.at[2])
        plgpu.barrier_wait(barriers.at[which])
        o[...] = plgpu.async_load_tmem(acc)
        for each in {0, 1, 2} - {which}:
            plgpu.barrier_wait(barriers.at[each])

    barriers = plgpu.Barrier(num_barriers=3, orders_tensor_core=True)
    assert not races(kernel(body, SUMS, smem(M, K), smem(K, N), barriers))


@pytest.mark.parametrize("commits", [False, True])
def test_threads_write_an_operand(commits: bool) -> None:
    """The tensor core sees it after ``commit_smem``."""

    def body(o: Any, acc: Any, a_smem: Any, b_smem: Any, done: Any) -> None:
        a_smem[...] = jnp.ones((M, K), jnp.bfloat16)
        if commits:
            plgpu.commit_smem()
        plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    assert races(kernel(body, SUMS, smem(M, K), smem(K, N), TC)) is not commits


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("writer", ["store", "copy", "tensor memory"])
def test_an_operand_is_overwritten(writer: str, waits: bool, seed: int) -> None:
    """Only after the product has arrived."""

    def body(b: Any, o: Any, acc: Any, lhs: Any, b_smem: Any, done: Any, loaded: Any) -> None:
        plgpu.tcgen05_mma(acc, lhs, b_smem, done, accumulate=False)
        if waits:
            plgpu.barrier_wait(done)
        if writer == "store":
            b_smem[...] = jnp.zeros((K, N), jnp.bfloat16)
        elif writer == "copy":
            plgpu.copy_gmem_to_smem(b, b_smem, loaded)
            plgpu.barrier_wait(loaded)
        else:
            plgpu.async_store_tmem(lhs, jnp.zeros((M, K), jnp.bfloat16))
            plgpu.commit_tmem()
        if not waits:
            plgpu.barrier_wait(done)

    lhs = plgpu.TMEM((M, K), jnp.bfloat16, packed=True)
    function = kernel(body, SUMS, lhs, smem(K, N), TC, plgpu.Barrier())
    b = np.ones((K, N), jnp.bfloat16)
    assert races(function, b, seed=seed) is not waits


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("access", ["load", "overwrite"])
def test_a_copy_to_tensor_memory_is_waited_for(access: str, waits: bool) -> None:
    """Before a load of what it writes, and before a store to what it reads."""

    def body(o: Any, tmem: Any, source: Any, done: Any) -> None:
        plgpu.async_copy_smem_to_tmem(source, tmem)
        plgpu.tcgen05_commit_arrive(done)
        if waits:
            plgpu.barrier_wait(done)
        if access == "load":
            o[...] = plgpu.async_load_tmem(tmem)
        else:
            source[...] = jnp.zeros((M, N))
        if not waits:
            plgpu.barrier_wait(done)

    assert races(kernel(body, SUMS, smem(M, N, dtype=jnp.float32), TC)) is not waits


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("waits", ["", "producer", "consumer"])
@pytest.mark.parametrize("first", ["store", "load"])
def test_another_thread_goes_on(first: str, waits: str, seed: int) -> None:
    """An arrival does not prove loads and stores: who started them must have waited."""

    def body(o: Any, tmem: Any, ready: Any) -> None:
        who = jax.lax.axis_index("t")

        def wait() -> None:
            plgpu.commit_tmem() if first == "store" else plgpu.wait_load_tmem()

        @pl.when(who == 0)
        def _first() -> None:
            if first == "store":
                plgpu.async_store_tmem(tmem, jnp.ones((M, N)))
            else:
                o[...] = plgpu.async_load_tmem(tmem)
            if waits == "producer":
                wait()
            plgpu.barrier_arrive(ready)
            wait()

        @pl.when(who == 1)
        def _second() -> None:
            plgpu.barrier_wait(ready)
            if waits == "consumer":
                wait()
            if first == "store":
                o[...] = plgpu.async_load_tmem(tmem)
            else:
                plgpu.async_store_tmem(tmem, jnp.ones((M, N)))
                plgpu.commit_tmem()

    function = kernel(body, SUMS, TC, num_threads=2, thread_name="t")
    assert races(function, seed=seed) is (waits != "producer")


@pytest.mark.parametrize("own", [False, True])
def test_a_commit_covers_its_own_thread(own: bool) -> None:
    """Another thread's commit says nothing of a product."""

    def body(o: Any, acc: Any, a_smem: Any, b_smem: Any, ready: Any, one: Any, two: Any) -> None:
        who = jax.lax.axis_index("t")

        @pl.when(who == 0)
        def _producer() -> None:
            plgpu.tcgen05_mma(acc, a_smem, b_smem, accumulate=False)
            plgpu.barrier_arrive(ready)
            plgpu.tcgen05_commit_arrive(one)
            if not own:
                plgpu.barrier_wait(one)

        @pl.when(who == 1)
        def _consumer() -> None:
            plgpu.barrier_wait(ready)
            if own:
                plgpu.barrier_wait(one)
            else:
                plgpu.tcgen05_commit_arrive(two)
                plgpu.barrier_wait(two)
            o[...] = plgpu.async_load_tmem(acc)

    mesh: Any = {"num_threads": 2, "thread_name": "t"}
    assert races(kernel(body, SUMS, smem(M, K), smem(K, N), TC, TC, TC, **mesh)) is not own


@pytest.mark.parametrize("ordered", [False, True])
def test_products_of_two_threads(ordered: bool) -> None:
    """They follow each other if the second thread knows that the first one has started its own."""

    def body(o: Any, acc: Any, a_smem: Any, b_smem: Any, ready: Any, one: Any, two: Any) -> None:
        who = jax.lax.axis_index("t")

        @pl.when(who == 0)
        def _first() -> None:
            if not ordered:
                plgpu.barrier_arrive(ready)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, one, accumulate=False)
            if ordered:
                plgpu.barrier_arrive(ready)
            plgpu.barrier_wait(one)

        @pl.when(who == 1)
        def _second() -> None:
            plgpu.barrier_wait(ready)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, two)
            plgpu.barrier_wait(two)

    mesh: Any = {"num_threads": 2, "thread_name": "t"}
    assert races(kernel(body, SUMS, smem(M, K), smem(K, N), TC, TC, TC, **mesh)) is not ordered


@pytest.mark.parametrize("orders", [False, True])
@pytest.mark.parametrize("second", ["load", "store", "product"])
def test_not_every_barrier_orders_tensor_memory(second: str, orders: bool) -> None:
    """One without ``orders_tensor_core`` does not; the finding says what is missing."""

    def body(o: Any, acc: Any, a_smem: Any, b_smem: Any, ready: Any, done: Any) -> None:
        who = jax.lax.axis_index("t")

        @pl.when(who == 0)
        def _first() -> None:
            plgpu.async_store_tmem(acc, jnp.ones((M, N)))
            plgpu.commit_tmem()
            plgpu.barrier_arrive(ready)

        @pl.when(who == 1)
        def _second() -> None:
            plgpu.barrier_wait(ready)
            if second == "load":
                o[...] = plgpu.async_load_tmem(acc)
            elif second == "store":
                plgpu.async_store_tmem(acc, jnp.ones((M, N)))
                plgpu.commit_tmem()
            else:
                plgpu.tcgen05_mma(acc, a_smem, b_smem, done)
                plgpu.barrier_wait(done)

    ready = plgpu.Barrier(orders_tensor_core=orders)
    mesh: Any = {"num_threads": 2, "thread_name": "t"}
    function = kernel(body, SUMS, smem(M, K), smem(K, N), ready, TC, **mesh)
    findings = simulate(function, target="b200").findings
    assert [each.kind for each in findings] == ([] if orders else ["race"])
    if not orders:
        assert "orders_tensor_core=True" in findings[0].message


def test_another_barrier_on_the_way(rng: np.random.Generator) -> None:
    """What a third thread passes on by a plain barrier is not ordered, though it knows it."""

    def body(o: Any, acc: Any, one: Any, two: Any) -> None:
        who = jax.lax.axis_index("t")

        @pl.when(who == 0)
        def _first() -> None:
            plgpu.async_store_tmem(acc, jnp.ones((M, N)))
            plgpu.commit_tmem()
            plgpu.barrier_arrive(one)

        @pl.when(who == 1)
        def _second() -> None:
            plgpu.barrier_wait(one)
            plgpu.barrier_arrive(two)

        @pl.when(who == 2)
        def _third() -> None:
            plgpu.barrier_wait(two)
            o[...] = plgpu.async_load_tmem(acc)

    mesh: Any = {"num_threads": 3, "thread_name": "t"}
    assert races(kernel(body, SUMS, TC, plgpu.Barrier(), **mesh))
    assert not races(kernel(body, SUMS, TC, TC, **mesh))


# The chip.


def test_more_columns_than_there_are() -> None:
    """Before the run, with the name of what takes them."""

    def body(o: Any, one: Any, two: Any) -> None:
        pass

    big = plgpu.TMEM((M, 512), jnp.float32)
    (finding,) = simulate(kernel(body, big, SUMS), target="b200").findings
    assert finding.kind == "capacity"
    assert "640 columns (one 512, two 128)" in finding.message


def test_a_chip_without_tensor_cores_of_blackwell() -> None:
    """It has no tensor memory."""

    def body(o: Any, acc: Any) -> None:
        pass

    (finding,) = simulate(kernel(body, SUMS), target="h100").findings
    assert finding.kind == "capacity"
    assert "h100 has no tensor memory" in finding.message


def test_tensor_memory_has_no_plain_loads() -> None:
    """JAX's compiler refuses them, and so does the simulator."""

    def body(o: Any, acc: Any) -> None:
        o[...] = acc[...]

    with pytest.raises(SimulationError, match="async_load_tmem"):
        simulate(kernel(body, SUMS), target="b200")


def test_a_union_is_destroyed_by_the_other_part(rng: np.random.Generator) -> None:
    """What was written through one reference is not there after a write through the other."""

    def body(x: Any, o: Any, union: Any) -> None:
        one, two = union
        plgpu.async_store_tmem(one, x[...])
        plgpu.commit_tmem()
        plgpu.async_store_tmem(two, jnp.ones((M, 2 * N), jnp.bfloat16))
        plgpu.commit_tmem()
        o[...] = plgpu.async_load_tmem(one)

    x = rng.normal(size=(M, N)).astype(np.float32)
    union = plgpu.RefUnion(SUMS, plgpu.TMEM((M, 2 * N), jnp.bfloat16, packed=True))
    run = simulate(kernel(body, union), x, target="b200")
    assert not (run.values == x).any()


def test_a_product_of_other_dtypes() -> None:
    """An error names them."""
    a, b = np.ones((M, K), np.int16), np.ones((K, N), np.int16)
    function = multiply(lhs=np.int16, out=np.int32)
    with pytest.raises(SimulationError, match="no product of int16 and int16 with sums of int32"):
        simulate(function, a, b, target="b200")


# Order among products and copies.


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_onto_the_sums_of_a_product_must_wait_for_it(waits, seed, rng):
    def body(a, b, o, a_smem, b_smem, source, acc, done, copied):
        a_smem[...], b_smem[...], source[...] = a[...], b[...], jnp.ones((M, N))
        plgpu.commit_smem()
        plgpu.tcgen05_mma(acc, a_smem, b_smem, accumulate=False)
        if waits:
            plgpu.tcgen05_commit_arrive(done)
            plgpu.barrier_wait(done)
        plgpu.async_copy_smem_to_tmem(source, acc)
        plgpu.tcgen05_commit_arrive(copied)
        plgpu.barrier_wait(copied)
        o[...] = plgpu.async_load_tmem(acc)

    source = plgpu.SMEM((M, N), jnp.float32)
    function = kernel(body, smem(M, K), smem(K, N), source, SUMS, TC, TC)
    assert races(function, whole(rng, M, K), whole(rng, K, N), seed=seed) is not waits


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("used", [False, True])
def test_a_copy_onto_a_copy_under_way_is_a_race_unless_a_product_reads_between(used, seed, rng):
    def body(a, b, o, a_smem, b_smem, left, acc, done):
        a_smem[...], b_smem[...] = a[...], b[...]
        plgpu.commit_smem()
        plgpu.async_copy_smem_to_tmem(a_smem, left)
        if used:
            plgpu.tcgen05_mma(acc, left, b_smem, accumulate=False)
        plgpu.async_copy_smem_to_tmem(a_smem, left)
        plgpu.tcgen05_mma(acc, left, b_smem, accumulate=used)
        plgpu.tcgen05_commit_arrive(done)
        plgpu.barrier_wait(done)
        o[...] = plgpu.async_load_tmem(acc)

    left = plgpu.TMEM((M, K), jnp.bfloat16, packed=True)
    function = kernel(body, smem(M, K), smem(K, N), left, SUMS, TC)
    assert races(function, whole(rng, M, K), whole(rng, K, N), seed=seed) is not used


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_product_of_another_thread_is_done_when_one_that_adds_to_it_is(ordered, seed, rng):
    def body(a, b, o, a_smem, b_smem, acc, ready, started, done):
        thread = jax.lax.axis_index("t")

        @pl.when(thread == 0)
        def _first():
            a_smem[...], b_smem[...] = a[...], b[...]
            plgpu.commit_smem()
            plgpu.barrier_arrive(ready)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, accumulate=False)
            plgpu.barrier_arrive(started)

        @pl.when(thread == 1)
        def _second():
            plgpu.barrier_wait(started if ordered else ready)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, accumulate=True)
            plgpu.tcgen05_commit_arrive(done)
            plgpu.barrier_wait(done)
            o[...] = plgpu.async_load_tmem(acc)

    function = kernel(
        body, smem(M, K), smem(K, N), SUMS, TC, TC, TC, num_threads=2, thread_name="t"
    )
    a, b = whole(rng, M, K), whole(rng, K, N)
    run = simulate(function, a, b, target="b200", seed=seed)
    kinds = {each.kind for each in run.findings}
    if ordered:
        assert not kinds
        np.testing.assert_array_equal(run.values, 2 * (a.astype(np.float32) @ b.astype(np.float32)))
    else:
        assert "race" in kinds
