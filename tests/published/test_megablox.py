"""The grouped matrix products bundled with JAX."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.megablox import gmm as differentiable_gmm
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm
from references import DATA, draw, wide

TILES = {"tiling": (8, 16, 16)}

#: Sizes of groups over 32 rows in tiles of 8.
GROUPS = {
    "whole tiles": (8, 16, 8),
    "straddling": (3, 10, 19),
    "empty": (0, 13, 0, 0, 19, 0),
    "one": (32,),
    "rows": (1,) * 32,
}

pytestmark = [
    pytest.mark.pallas(backends=["interpret", "tpu-interpret"], reason="written for TPUs"),
]


def owners(sizes, rows):
    """[group, row]: whether the row is of the group."""
    ends = jnp.cumsum(sizes)
    row = jnp.arange(rows)
    return (row >= (ends - sizes)[:, None]) & (row < ends[:, None])


def gmm_reference(lhs, rhs, sizes, *, preferred_element_type=None, transpose_rhs=False):
    rhs = jnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
    mine = owners(sizes, lhs.shape[0])
    lhs, rhs = lhs.astype(wide(lhs.dtype)), rhs.astype(wide(rhs.dtype))
    every = jnp.einsum("mk,gkn->gmn", lhs, rhs)
    out = jnp.sum(jnp.where(mine[:, :, None], every, 0), axis=0)
    return out if preferred_element_type is None else out.astype(preferred_element_type)


def tgmm_reference(lhs, rhs, sizes):
    mine = owners(sizes, rhs.shape[0])
    lhs, rhs = lhs.astype(wide(lhs.dtype)), rhs.astype(wide(rhs.dtype))
    return jnp.einsum("km,gm,mn->gkn", lhs, mine.astype(lhs.dtype), rhs)


@pytest.mark.parametrize("data", DATA, ids="-".join)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("k", [16, 23])
def test_gmm(pallas_check, pallas_rng, data, groups, k):
    sizes = np.array(GROUPS[groups], np.int32)
    lhs = draw(pallas_rng, (32, k), data)
    rhs = draw(pallas_rng, (len(sizes), k, 19), data)
    pallas_check(
        gmm, lhs, rhs, sizes, reference=gmm_reference, tuning=TILES, exact=data[1] == "integers"
    )


@pytest.mark.parametrize("data", DATA, ids="-".join)
def test_gmm_transposed(pallas_check, pallas_rng, data):
    sizes = np.array(GROUPS["empty"], np.int32)
    lhs = draw(pallas_rng, (32, 23), data)
    rhs = draw(pallas_rng, (len(sizes), 19, 23), data)
    pallas_check(
        gmm,
        lhs,
        rhs,
        sizes,
        reference=gmm_reference,
        options={"transpose_rhs": True, "preferred_element_type": jnp.dtype(data[0])},
        tuning=TILES,
        check_dtype=False,
    )


@pytest.mark.parametrize("data", DATA, ids="-".join)
@pytest.mark.parametrize("groups", GROUPS)
def test_tgmm(pallas_check, pallas_rng, data, groups):
    sizes = np.array(GROUPS[groups], np.int32)
    lhs, rhs = draw(pallas_rng, (23, 32), data), draw(pallas_rng, (32, 19), data)
    pallas_check(
        tgmm, lhs, rhs, sizes, reference=tgmm_reference, tuning=TILES, exact=data[1] == "integers"
    )


@pytest.mark.parametrize("data", DATA, ids="-".join)
def test_gmm_of_fewer_rows(pallas_check, pallas_rng, data):
    sizes = np.array([3, 0, 17], np.int32)
    lhs, rhs = draw(pallas_rng, (32, 16), data), draw(pallas_rng, (3, 16, 19), data)
    pallas_check(gmm, lhs, rhs, sizes, reference=gmm_reference, tuning=TILES)


@pytest.mark.parametrize("data", DATA, ids="-".join)
def test_tgmm_of_fewer_rows(pallas_check, pallas_rng, data):
    sizes = np.array([3, 0, 17], np.int32)
    lhs, rhs = draw(pallas_rng, (23, 32), data), draw(pallas_rng, (32, 19), data)
    pallas_check(tgmm, lhs, rhs, sizes, reference=tgmm_reference, tuning=TILES)


@pytest.mark.parametrize("data", DATA, ids="-".join)
def test_gradient(pallas_check, pallas_rng, data):
    sizes = np.array(GROUPS["straddling"], np.int32)
    lhs, rhs = draw(pallas_rng, (32, 16), data), draw(pallas_rng, (3, 16, 16), data)

    def kernel(lhs, rhs, sizes):
        return differentiable_gmm(lhs, rhs, sizes, tiling=(8, 16, 16))

    pallas_check(
        kernel,
        lhs,
        rhs,
        sizes,
        reference=gmm_reference,
        differentiable=(0, 1),
        checks=("forward", "gradient"),
    )
