"""`megablox.gmm` and `tgmm`: products of groups of rows, each with its own matrix."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

from published.failures import TPU, fails
from pytest_pallas import KernelSpec, Linear
from pytest_pallas import strategies as pst

TILE = 16
TUNING = {"tiling": st.sampled_from([(TILE, 128, 128), (TILE, 256, 128)])}


def _groups(sizes: Any, m: int) -> Any:
    """The group of each row; rows after the last group are of none."""
    return jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(m), side="right")


def grouped(
    x: Any,
    w: Any,
    sizes: Any,
    offset: Any = None,
    existing: Any = None,
    *,
    transpose_rhs: bool = False,
    tiling: tuple[int, int, int] = (TILE, 128, 128),
) -> Any:
    """`gmm`, whose arguments have positions only."""
    offset = None if offset is None else jnp.asarray(offset)
    existing = None if existing is None else jnp.asarray(existing)
    return gmm(x, w, sizes, jnp.float32, tiling, offset, existing, transpose_rhs)


def reference(
    x: Any,
    w: Any,
    sizes: Any,
    offset: Any = None,
    existing: Any = None,
    *,
    transpose_rhs: bool = False,
) -> Any:
    """Rows of groups that are not of this shard are 0, or those of `existing`."""
    w = jnp.swapaxes(w, 1, 2) if transpose_rhs else w
    wide = jnp.promote_types(x.dtype, jnp.float32)
    group = _groups(sizes, x.shape[0]) - (0 if offset is None else offset)
    one_hot = (group[:, None] == jnp.arange(w.shape[0])).astype(x.dtype)
    found = jnp.einsum(
        "mg,mk,gkn->mn", one_hot, x, w, preferred_element_type=wide, optimize=[(1, 2), (0, 1)]
    )
    here = (group >= 0) & (group < w.shape[0])
    rest = jnp.zeros_like(found) if existing is None else existing
    return jnp.where(here[:, None], found, rest)


def transposed(x: Any, y: Any, sizes: Any, *, tiling: Any) -> Any:
    return tgmm(x, y, sizes, jnp.float32, tiling)


def transposed_reference(x: Any, y: Any, sizes: Any) -> Any:
    wide = jnp.promote_types(x.dtype, jnp.float32)
    one_hot = (_groups(sizes, x.shape[1])[:, None] == jnp.arange(len(sizes))).astype(x.dtype)
    return jnp.einsum("mg,km,mn->gkn", one_hot, x, y, preferred_element_type=wide)


def _inputs(shapes: str, *, groups: int = 0, **options: Any) -> Any:
    return pst.arguments(
        pst.arrays(
            shapes,
            dtype=pst.floats("bfloat16", "float32"),
            dims={"g": [1, 3, 5], "m": [TILE, 3 * TILE], "k": [100, 128, 300], "n": [72, 128, 200]},
        ),
        then=lambda drawn: {
            "sizes": pst.group_sizes(
                drawn.recipe["g"] + groups, total=drawn.recipe["m"], full=True, around=TILE
            )
        },
        options=options,
        tuning=TUNING,
    )


GMM = KernelSpec(
    name="gmm",
    kernel=grouped,
    reference=reference,
    backends=TPU,
    inputs=_inputs("m k, g k n"),
    exact=True,
    differentiable=(0, 1),
    relations=(Linear(0), Linear(1)),
)
GMM_TRANSPOSED = KernelSpec(
    name="gmm_transposed",
    kernel=grouped,
    reference=reference,
    backends=TPU,
    inputs=_inputs("m k, g n k", transpose_rhs=True),
    exact=True,
    differentiable=(0, 1),
    checks=("forward", "gradient", "padding"),
)
TGMM = KernelSpec(
    name="tgmm",
    kernel=transposed,
    reference=transposed_reference,
    backends=TPU,
    inputs=_inputs("k m, m n; g >= 1"),
    exact=True,
    relations=(Linear(0), Linear(1)),
)


def _sharded(arguments: pst.Arguments, *, existing: bool) -> pst.Arguments:
    """A shard that has the matrices of some groups; the groups before and after are elsewhere."""
    x, w, sizes = arguments.args
    offset = np.int32((len(sizes) - len(w)) // 2)
    shape = (x.shape[0], w.shape[2])
    into = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 7 if existing else None
    return pst.Arguments(
        (x, w, sizes, offset, into), arguments.options, arguments.tuning, arguments.recipe
    )


def _even(arguments: pst.Arguments) -> pst.Arguments:
    """The same call with a row in each group."""
    x, w, sizes, *rest = arguments.args
    bounds = np.linspace(0, x.shape[0], len(sizes) + 1).astype(np.int32)
    return dataclasses.replace(arguments, args=(x, w, np.diff(bounds), *rest), kin=None)


def _shard(name: str, *, existing: bool, even: bool = False, **rest: Any) -> KernelSpec:
    inputs = _inputs("m k, g k n", groups=2).map(functools.partial(_sharded, existing=existing))
    return KernelSpec(
        name=name,
        kernel=grouped,
        reference=reference,
        backends=TPU,
        inputs=inputs.map(_even) if even else inputs,
        exact=True,
        **rest,
    )


GMM_SHARD = _shard(
    "gmm_shard",
    existing=False,
    checks=("forward", "gradient", "donation", "grid"),
    differentiable=(0, 1),
)
GMM_EXISTING = _shard(
    "gmm_existing", existing=True, checks=("forward", "donation", "grid", "jit", "padding")
)
GMM_EXISTING_GRADIENT = _shard(
    "gmm_existing_gradient",
    existing=True,
    even=True,
    differentiable=(0, 1, 4),
    checks=("gradient",),
    xfail=fails(
        "tpu-sim", "rows that the product overwrites have the whole gradient, not 0", "gradient"
    ),
)


#: Tiles are counted by `jnp.histogram` with edges in float32, which cannot tell the last of more
#: than 4096 tiles apart: with tiles of 128 rows, from 524,288 rows on.
GMM_MANY_TILES = KernelSpec(
    name="gmm_many_tiles",
    kernel=grouped,
    reference=reference,
    backends=TPU,
    inputs=pst.arguments(
        pst.arrays(
            "m k, g k n",
            dtype="float32",
            dims={"m": 8192 * 8, "k": 8, "g": 2, "n": 8},
            values="integers",
        ),
        then={"sizes": st.just(np.array([8190 * 8 + 3, 13], np.int32))},
        tuning={"tiling": (8, 8, 8)},
    ),
    exact=True,
    checks=("forward",),
    xfail=fails(
        "tpu-sim", "a group that starts in one of the last tiles begins a tile late", "forward"
    ),
)


def _tgmm_sharded(
    x: Any, y: Any, sizes: Any, existing: Any, *, tiling: Any = (TILE, 128, 128)
) -> Any:
    offset = jnp.int32((len(sizes) - len(existing)) // 2)
    return tgmm(x, y, sizes, jnp.float32, tiling, offset, len(existing), jnp.asarray(existing))


def _tgmm_sharded_reference(x: Any, y: Any, sizes: Any, existing: Any) -> Any:
    offset = (len(sizes) - len(existing)) // 2
    found = transposed_reference(x, y, sizes)[offset : offset + len(existing)]
    return found + existing


TGMM_EXISTING = KernelSpec(
    name="tgmm_existing",
    kernel=_tgmm_sharded,
    reference=_tgmm_sharded_reference,
    backends=TPU,
    inputs=pst.arguments(
        pst.arrays(
            "k m, m n, g k n",
            dtype=("bfloat16", "bfloat16", "float32"),
            dims={"g": [1, 3], "m": [TILE, 3 * TILE], "k": [100, 128], "n": [72, 128]},
        ),
        then=lambda drawn: {
            "sizes": pst.group_sizes(
                drawn.recipe["g"] + 2, total=drawn.recipe["m"], full=True, around=TILE
            )
        },
        tuning=TUNING,
    ).map(
        lambda call: dataclasses.replace(
            call, args=(*call.args[:2], call.args[3], call.args[2]), kin=None
        )
    ),
    exact=True,
    checks=("forward", "donation", "grid"),
)
