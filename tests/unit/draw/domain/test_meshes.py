import math

import pytest

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst


def meshes(drawn):
    return {tuple(mesh.items()) for mesh in drawn}


def test_every_mesh_of_two_axes(draws):
    drawn = draws(pst.device_meshes("x y"))
    assert {math.prod(mesh.values()) for mesh in drawn} == {1, 2, 3, 4, 6, 8}
    assert {tuple(mesh) for mesh in drawn} == {("x", "y")}
    assert meshes(drawn) >= {(("x", 8), ("y", 1)), (("x", 2), ("y", 4)), (("x", 1), ("y", 8))}


def test_axes_that_divide_a_dim(draws):
    drawn = draws(pst.device_meshes("x", divides={"x": 8}))
    assert meshes(drawn) == {(("x", size),) for size in (1, 2, 4, 8)}


def test_any_number_of_devices(draws):
    drawn = draws(pst.device_meshes(["x"], devices=range(2, 6)))
    assert {mesh["x"] for mesh in drawn} == {2, 3, 4, 5}


def test_shrinks_to_the_fewest_devices(shrunk):
    assert "args={'x': 1, 'y': 1}" in shrunk(pst.device_meshes("x y"), lambda _: True)
    text = shrunk(pst.device_meshes("x y"), lambda mesh: mesh["x"] > 1)
    assert "args={'x': 2, 'y': 1}" in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pst.device_meshes(""), "axes must name at least one axis"),
        (lambda: pst.device_meshes(["x", 3]), "axes must name"),
        (lambda: pst.device_meshes("x x"), "a name appears twice"),
        (lambda: pst.device_meshes("x", devices=[0]), "devices must be"),
        (lambda: pst.device_meshes("x", devices=[]), "no mesh of"),
        (lambda: pst.device_meshes("x", divides={"y": 2}), "there is no axis 'y'; valid: x"),
        (lambda: pst.device_meshes("x", divides={"x": 0}), r"divides\['x'\] must be"),
        (lambda: pst.device_meshes("x", devices=[8], divides={"x": 4}), "no mesh of"),
    ],
)
def test_arguments_are_checked_at_once(make, words):
    with pytest.raises(SpecError, match=words):
        make()
