"""Ring attention: ``o = softmax(scale q k^T) v`` over a sequence that is split over devices.

Shapes, on each of ``p`` devices: ``q (h, q_len, d)``, ``k (g, kv_len, d)``, ``v (g, kv_len, d_v)``
and ``o (h, q_len, d_v)``, where ``g`` divides ``h``: head ``i`` of the queries reads head
``i // (h / g)`` of the keys. The sequence is the shards of the devices, one after the other.
Dtypes: float32 or bfloat16, the same for all; scores, sums and accumulators are float32.

Source: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
Context", 2023 (arXiv:2310.01889), with the online softmax of flash attention (arXiv:2205.14135).

Schedule. Queries stay where they are, keys and values travel. In round ``s``, ``0 <= s < p``,
device ``i`` attends to the shard of device ``i - s``, and sends it to device ``i + 1`` at the same
time: the copy starts before the first product of the round, and is waited for after the last one.
What arrives fills one of two slots in HBM while the other one is worked with; see ``_ring`` for the
credits that keep a device that runs ahead from overwriting a slot in use. The softmax does not mind
the order of its keys: maximum, sum and weighted values of each query are carried from round to
round like from block to block, and divided once, at the end.

Bytes. A device receives and sends ``(p - 1)`` shards of keys and values, which is the least if it
is to see all keys. With bfloat16 and ``h = g``, a round sends ``2 kv_len (d + d_v)`` bytes a head
and does ``2 q_len kv_len (d + d_v)`` operations, so the copy is hidden if ``q_len`` is at least the
operations a second of the chip over the bytes a second of a link. Sharing heads of keys divides
that by ``h / g``.

Causal. In its own shard, round 0, a device sees a triangle, and that is a flash attention like any
other. All later rounds have earlier keys, so nothing in them is masked, or later ones, which are
not computed. They are not even sent: device ``i`` takes part in ``i + 1`` rounds, and the link from
the last device to the first is idle. The last device has the most work and sets the pace; only
another order of the sequence would change that (Brandon et al., "Striped Attention", 2023,
arXiv:2311.09431).

Blocks. In every round an ``emit_pipeline`` takes blocks of queries and keys through VMEM, for one
head after the other, so that VMEM holds blocks only and shards may be as long as HBM allows. The
accumulators are in HBM between rounds, and in VMEM while a block of queries meets all keys of a
round: ``8 (d_v + 256)`` bytes a query and round. That is hidden behind the products from some 1500
keys a device on (v5e, heads of 128), fewer than the copy from device to device needs.

Backward: see ``_ring_backward``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _mesh, _require
from reference_kernels._refs import Ref
from reference_kernels._tpu import LANES, ROWS, fit, product
from reference_kernels.attention import _operands
from reference_kernels.attention._flash_blocks import (
    Blocks,
    across,
    each_slab,
    lane_sums,
    run_block,
)
from reference_kernels.parallel._ring import SLOTS, Ring, Traffic
from reference_kernels.parallel._ring_backward import ring_gradients


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the kernel needs besides arrays.

    Attributes:
      axis_name: the axis of the mesh over which the sequence is split.
      blocks: the blocks of the scores of a device's queries with its own keys.
      scale: factor of the scores.
      collective_id: which barrier semaphore to use.
    """

    axis_name: str
    blocks: Blocks
    scale: float
    collective_id: int


class _Softmax(NamedTuple):
    """What is known of queries so far, float32: of all of them in HBM, of a block in VMEM.

    Attributes:
      m: the maximum of the scores, ``(h, q_len, LANES)``, the same in all lanes; of a block,
        ``(block_q, LANES)``.
      sums: partial sums of the weights, likewise.
      acc: sums of the weighted values, ``(h, q_len, d_v)``, or ``(block_q, d_v)``.
    """

    m: Ref
    sums: Ref
    acc: Ref


class _Slots(NamedTuple):
    """What has arrived, in HBM.

    Attributes:
      k: keys, ``(SLOTS, g, kv_len, d)``.
      v: values, ``(SLOTS, g, kv_len, d_v)``.
    """

    k: Ref
    v: Ref


class _Scratch(NamedTuple):
    """What the kernel keeps.

    Attributes:
      weights: those of a block, in VMEM, ``(block_q, block_kv)``, in the dtype of the values.
      sends: semaphores of what leaves, ``(2,)``; see ``_ring.Traffic``.
      arrivals: semaphores of what arrives, ``(SLOTS, 2)``.
      credits: a semaphore: slots of the right neighbor that may be written to.
    """

    weights: Ref
    sends: Ref
    arrivals: Ref
    credits: Ref


def _ring_kernel(
    q: Ref,
    k: Ref,
    v: Ref,
    softmax: _Softmax,
    slots: _Slots,
    scratch: _Scratch,
    *,
    settings: Settings,
) -> None:
    """All rounds of a device.

    Args:
      q: queries of this device, ``(h, q_len, d)``, in HBM.
      k: its keys, ``(g, kv_len, d)``.
      v: its values, ``(g, kv_len, d_v)``.
      softmax: of its queries.
      slots: for the keys and values of others.
      scratch: what the kernel keeps.
      settings: of the attention.
    """
    own = settings.blocks
    later = dataclasses.replace(own, causal=False)  # of these rounds, all keys are seen
    ring = Ring(settings.axis_name, own.causal)
    traffic = Traffic(ring, (k, v), slots, scratch.sends, scratch.arrivals, scratch.credits)
    attend = functools.partial(_attend_to_shard, q, softmax, scratch.weights, settings.scale)

    def first() -> None:
        traffic.start(0)
        attend(k, v, own, before=None)
        traffic.finish(0)

    def other(s: jax.Array) -> None:
        traffic.receive(s)
        traffic.start(s)
        attend(*traffic.at_hand(s), later, before=softmax)
        traffic.finish(s)
        traffic.give_back(s)

    ring.enter()
    ring.rounds(first, other)


def _attend_to_shard(
    q: Ref,
    softmax: _Softmax,
    weights: Ref,
    scale: float,
    k: Ref,
    v: Ref,
    blocks: Blocks,
    *,
    before: _Softmax | None,
) -> None:
    """Add the keys and values of a device, a shard of the sequence, to those seen ``before``."""
    heads, group = q.shape[0], q.shape[0] // k.shape[0]

    def of_queries(ref: Ref) -> pl.BlockSpec:
        return pl.BlockSpec((None, blocks.block_q, ref.shape[-1]), lambda h, i, j: (h, i, 0))

    def of_keys(ref: Ref) -> pl.BlockSpec:
        return pl.BlockSpec(
            (None, blocks.block_kv, ref.shape[-1]),
            lambda h, i, j: (h // group, blocks.last_kv(i, j), 0),
        )

    earlier = before or ()
    pltpu.emit_pipeline(
        functools.partial(_attend_to_block, weights=weights, blocks=blocks, scale=scale),
        grid=(heads, *blocks.grid),
        in_specs=[of_queries(q), of_keys(k), of_keys(v), *map(of_queries, earlier)],
        out_specs=[*map(of_queries, softmax)],
    )(q, k, v, *earlier, *softmax)


def _attend_to_block(
    q: Ref, k: Ref, v: Ref, *refs: Ref, weights: Ref, blocks: Blocks, scale: float
) -> None:
    """Step ``(h, i, j)`` of a shard: block ``i`` of queries attends to block ``j`` of keys.

    Args:
      q: ``(block_q, d)``.
      k: ``(block_kv, d)``.
      v: ``(block_kv, d_v)``.
      *refs: the softmax of the queries with what earlier shards gave, but in the first one, and
        their softmax with this one.
      weights: those of the step.
      blocks: of the scores of a shard.
      scale: factor of the scores.
    """
    before, softmax = refs[:-3], _Softmax(*refs[-3:])
    i, j = pl.program_id(1), pl.program_id(2)
    add_block = functools.partial(_add_block, q, k, v, softmax, weights, i, j, blocks, scale)
    pl.when(j == 0)(lambda: _begin(softmax, _Softmax(*before) if before else None))
    run_block(blocks.whole(i, j), blocks.seen(i, j), add_block)


def _begin(softmax: _Softmax, before: _Softmax | None) -> None:
    """Go on from ``before``, or with no key seen."""
    block_q, d_v = softmax.acc.shape

    @each_slab(block_q)
    def _rows(rows: pl.Slice) -> None:
        if before:
            for ref, before_ref in zip(softmax, before, strict=True):
                ref[rows] = before_ref[rows]
        else:
            softmax.m[rows] = jnp.full((rows.size, LANES), -jnp.inf, jnp.float32)
            softmax.sums[rows] = jnp.zeros((rows.size, LANES), jnp.float32)
            softmax.acc[rows] = jnp.zeros((rows.size, d_v), jnp.float32)


def _add_block(
    q: Ref,
    k: Ref,
    v: Ref,
    softmax: _Softmax,
    weights_ref: Ref,
    i: jax.Array,
    j: jax.Array,
    blocks: Blocks,
    scale: float,
    edges: bool,
) -> None:
    """Add a block of keys, of which some are hidden from some queries if it has ``edges``."""
    scores = scale * math.log2(math.e) * product(q[...], k[...], (1, 1))
    if edges:
        scores = blocks.hide(scores, i, j, None, keys=1, edges=True)
    # Every query sees the first key of its own shard, so no maximum is -inf.
    m = jnp.maximum(softmax.m[...], jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.exp2(scores - across(m, blocks.block_kv))
    weights_ref[...] = weights.astype(weights_ref.dtype)
    rescale = jnp.exp2(softmax.m[...] - m)
    softmax.m[...] = m
    softmax.sums[...] = rescale * softmax.sums[...] + lane_sums(weights)
    softmax.acc[...] = across(rescale, v.shape[1]) * softmax.acc[...] + product(
        weights_ref[...], v[...], (1, 0)
    )


def _padded(x: jax.Array, block: int) -> jax.Array:
    """``x`` with zeros up to whole blocks: a pipeline would read beyond its end."""
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), (0, 0)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings) -> jax.Array:
    return _call(q, k, v, settings)[0]


def _call(
    q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings
) -> tuple[jax.Array, jax.Array]:
    """The output, and each query's log2 of its sum of exp2, ``(h, q_len)``."""
    blocks, size = settings.blocks, jax.lax.axis_size(settings.axis_name)
    q = _padded(q, blocks.block_q)
    k, v = _padded(k, blocks.block_kv), _padded(v, blocks.block_kv)
    rows = q.shape[:2]
    # What a kernel keeps in HBM is an output that nobody reads. The shapes say HBM as well, or XLA
    # may put small ones into VMEM, from where the vector unit would have to copy them.
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    softmax, _ = pl.pallas_call(
        functools.partial(_ring_kernel, settings=settings),
        out_shape=(
            _Softmax(
                m=pltpu.HBM((*rows, LANES), jnp.float32),
                sums=pltpu.HBM((*rows, LANES), jnp.float32),
                acc=pltpu.HBM((*rows, v.shape[2]), jnp.float32),
            ),
            _Slots(
                k=pltpu.HBM((SLOTS, *k.shape), k.dtype),
                v=pltpu.HBM((SLOTS, *v.shape), v.dtype),
            ),
        ),
        in_specs=[hbm, hbm, hbm],
        out_specs=(_Softmax(hbm, hbm, hbm), _Slots(hbm, hbm)),
        scratch_shapes=[
            _Scratch(
                weights=pltpu.VMEM((blocks.block_q, blocks.block_kv), v.dtype),
                sends=pltpu.SemaphoreType.DMA((2,)),
                arrivals=pltpu.SemaphoreType.DMA((SLOTS, 2)),
                credits=pltpu.SemaphoreType.REGULAR,
            )
        ],
        # A single device asks for no barrier.
        compiler_params=pltpu.CompilerParams(
            collective_id=settings.collective_id if size > 1 else None
        ),
        name="ring_attention",
    )(q, k, v)
    total = jnp.sum(softmax.sums, axis=-1)
    o = (softmax.acc / total[..., None])[:, : blocks.q_len].astype(q.dtype)
    return o, (softmax.m[..., 0] + jnp.log2(total))[:, : blocks.q_len]


def _forward(q: jax.Array, k: jax.Array, v: jax.Array, settings: Settings) -> tuple[jax.Array, Any]:
    o, log_sums = _call(q, k, v, settings)
    return o, (q, k, v, o, log_sums)


def _backward(settings: Settings, saved: Any, do: jax.Array) -> tuple[jax.Array, ...]:
    return ring_gradients(
        *saved, do, axis_name=settings.axis_name, blocks=settings.blocks, scale=settings.scale
    )


_attend.defvjp(_forward, _backward)


def ring_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    axis_name: str,
    *,
    causal: bool = False,
    scale: float | None = None,
    block_q: int = 512,
    block_kv: int = 512,
    collective_id: int = 9,
) -> jax.Array:
    """Attention of a sequence of which each device has a shard, inside ``jax.shard_map``.

    It can be differentiated by ``q``, ``k`` and ``v``.

    Args:
      q: queries of this device, ``(h, q_len, d)``, float32 or bfloat16.
      k: keys of this device, ``(g, kv_len, d)``; ``g`` divides ``h``.
      v: values of this device, ``(g, kv_len, d_v)``.
      axis_name: the axis of the mesh over which the sequence is split, in its order.
      causal: a query sees only the keys up to its own position in the whole sequence. Then
        ``kv_len`` must be ``q_len``.
      scale: factor of the scores; ``d ** -0.5`` by default.
      block_q: queries in a block.
      block_kv: keys in a block. With the defaults and heads of 128, some 5 MB of VMEM are used.
      collective_id: which barrier semaphore to use. Calls of one program along different axes need
        different ones.

    Returns:
      ``(h, q_len, d_v)``, of the dtype of ``q``: the outputs of this device's queries.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, ``g`` does not divide ``h``, lengths
        differ with ``causal``, or a block size is not positive.
    """
    sizes = _operands.check_qkv(q, k, v, front="h", kv_front="g")
    _check_sizes(sizes, causal)
    _require.positive(block_q=block_q, block_kv=block_kv)
    q_len, kv_len = sizes["q_len"], sizes["kv_len"]
    settings = Settings(
        axis_name,
        Blocks(q_len, kv_len, fit(block_q, q_len, ROWS), fit(block_kv, kv_len, ROWS), causal),
        sizes["d"] ** -0.5 if scale is None else scale,
        collective_id,
    )
    return _attend(q, k, v, settings)


def _check_sizes(sizes: dict[str, int], causal: bool) -> None:
    if sizes["h"] % sizes["g"]:
        raise ValueError(
            f"k must have a number of heads g that divides the h of q, {sizes['h']}, "
            f"but its g is {sizes['g']}"
        )
    if causal and sizes["q_len"] != sizes["kv_len"]:
        raise ValueError(
            f"k must have the same length as q, {sizes['q_len']}, if causal is True, because its "
            f"positions are those of the queries, but its length is {sizes['kv_len']}"
        )


def ring_attention_on_mesh(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    **settings: Any,
) -> jax.Array:
    """``ring_attention`` of the shards of all devices of a mesh.

    Args:
      q: queries, ``(devices, h, q_len, d)``, in the order of ``mesh.devices``.
      k: keys, ``(devices, g, kv_len, d)``.
      v: values, ``(devices, g, kv_len, d_v)``.
      mesh: any mesh.
      axis_name: the axis of it over which a sequence is split. Devices that differ along another
        axis have another sequence.
      **settings: ``causal``, ``scale``, ``block_q`` and ``block_kv`` of ``ring_attention``.

    Returns:
      ``(devices, h, q_len, d_v)``, of the dtype of ``q``.

    Raises:
      ValueError: the mesh has no such axis, the first dimension of an operand is not the number of
        its devices, or see ``ring_attention``.
    """
    _mesh.axis_size(mesh, axis_name)
    attend = functools.partial(ring_attention, axis_name=axis_name, **settings)
    return _mesh.on_each_device(attend, mesh, q=q, k=k, v=v)


def reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: jax.sharding.Mesh,
    axis_name: str,
    causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    """Attention of whole sequences, with the shards put together and the heads repeated."""
    axis, group = mesh.axis_names.index(axis_name), q.shape[1] // k.shape[1]

    def whole(x: jax.Array, repeats: int) -> jax.Array:
        x = jnp.repeat(x, repeats, axis=1)
        x = jnp.moveaxis(x.reshape(*mesh.devices.shape, *x.shape[1:]), axis, -3)
        return x.reshape(*x.shape[:-3], -1, x.shape[-1])

    o = _operands.reference(
        whole(q, 1), whole(k, group), whole(v, group), causal=causal, scale=scale
    )
    o = o.reshape(*o.shape[:-2], mesh.devices.shape[axis], q.shape[2], v.shape[3])
    return jnp.moveaxis(o, -3, axis).reshape(*q.shape[:3], v.shape[3])
