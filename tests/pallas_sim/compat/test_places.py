"""Which part of a reference an equation names."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from pallas_sim.compat.jaxprs import sub_jaxprs
from pallas_sim.compat.places import is_indexer, peer_in, place_in, transforms_in, transforms_of
from pallas_sim.transforms import (
    AxisSlice,
    Bitcast,
    Indexed,
    Operand,
    Peer,
    RefPart,
    Reshaped,
    Transposed,
    UnknownTransform,
)

X = jax.ShapeDtypeStruct((16, 128), jnp.float32)


def transforms(view, name="get"):
    """The transforms of the first equation of a name, in a body that reads a view of its input."""

    def body(x_ref, o_ref):
        o_ref[0, 0] = jnp.sum(view(x_ref)).astype(jnp.float32)

    call = pl.pallas_call(body, out_shape=X)
    (eqn,) = jax.make_jaxpr(call)(X).eqns
    (jaxpr,) = [each for each in sub_jaxprs(eqn) if each.eqns]
    found = next(each for each in jaxpr.eqns if each.primitive.name == name)
    return transforms_of(found.params["tree"], 1, len(found.invars) - 1)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (lambda ref: ref[...], ()),
        (lambda ref: ref[3], (Indexed((Operand(1), AxisSlice(0, 128, 1)), (16, 128), ()),)),
        (
            lambda ref: ref[pl.ds(1, 4, stride=2)],
            (Indexed((AxisSlice(1, 4, 2), AxisSlice(0, 128, 1)), (16, 128), ()),),
        ),
        (
            lambda ref: ref[pl.ds(jnp.int32(5), 4)],
            (Indexed((AxisSlice(Operand(1), 4, 1), AxisSlice(0, 128, 1)), (16, 128), ()),),
        ),
        (lambda ref: ref.reshape(2, 8, 128)[...], (Reshaped((2, 8, 128)),)),
        (lambda ref: ref.bitcast(jnp.int32)[...], (Bitcast(jnp.dtype("int32")),)),
        (lambda ref: ref.transpose((1, 0))[...], (Transposed((1, 0)),)),
    ],
    ids=["whole", "row", "slice", "traced slice", "reshape", "bitcast", "transpose"],
)
def test_transforms(view, expected):
    assert transforms(view) == expected


def test_what_is_unknown_says_its_name():
    class Rotated:
        pass

    assert transforms_in(Rotated()) == (UnknownTransform("Rotated"),)
    assert not is_indexer(Rotated())


def test_references_without_and_with_transforms():
    class TransformedRef:
        ref = Operand(2)
        transforms = ()

    assert place_in(Operand(1)) == RefPart(1)
    assert place_in(TransformedRef()) == RefPart(2)


@pytest.mark.parametrize(
    ("device", "kind", "expected"),
    [
        (Operand(3), "LOGICAL", Peer(number=3, core=9)),
        ((Operand(3), Operand(4)), "MESH", Peer(point=(3, 4), core=9)),
        ({"x": Operand(3)}, "MESH", Peer(axes=((("x",), 3),), core=9)),
        ({("x", "y"): Operand(3)}, "MESH", Peer(axes=((("x", "y"), 3),), core=9)),
        (None, "MESH", Peer(core=9)),
    ],
)
def test_names_of_devices(device, kind, expected):
    class Kind:
        name = kind

    assert peer_in(device, Operand(9), Kind) == expected
    assert peer_in(None, None, Kind) is None
