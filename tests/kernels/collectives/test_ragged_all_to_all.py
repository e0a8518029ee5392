"""What ``ragged_all_to_all`` refuses, and what it promises beyond what its spec draws."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses
from pallas_test_support.several_devices import five_times, mesh_of, numbers, operations, same_bits

from reference_kernels import _mesh
from reference_kernels.collectives import ragged_all_to_all, ragged_all_to_all_on_mesh

NAMES = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def i32(values: Any) -> Any:
    return np.array(values, np.int32)


def call(changed: dict[str, Any] | None = None, devices: int = 2, **options: Any) -> Any:
    options = {"mesh": mesh_of(x=devices), "axis_name": "x", **options}
    zeros = i32(np.zeros((devices, 2)))
    operands = {"operand": f32(devices, 3, 1, 4), "output": f32(devices, 5, 1, 4)}
    operands |= dict.fromkeys(NAMES, zeros) | (changed or {})
    return lambda: ragged_all_to_all_on_mesh(**operands, **options)


def test_arrays() -> None:
    refuses(call(axis_name="y"), "mesh must have an axis 'y'", "('x',)")
    refuses(call({"operand": f32(2, 3)}), "operand must have three axes", "(3,)")
    refuses(call({"output": f32(2, 0, 1, 4)}), "output must have three axes", "(0, 1, 4)")
    refuses(call({"output": f32(2, 5, 1, 3)}), "output must have rows like those", "(1, 3)")
    refuses(
        call({"output": i32(f32(2, 5, 1, 4))}), "output must have the dtype of operand, float32"
    )
    refuses(call({"operand": f32(3, 3, 1, 4)}), "operand must have one shard for each of the 2")


@pytest.mark.parametrize("name", NAMES)
def test_numbers(name: str) -> None:
    refuses(call({name: f32(2, 2)}), f"{name} must have the dtype int32", "float32")
    refuses(call({name: i32([0, 0])}), f"{name} must have one axis", "()")


def test_runs() -> None:
    three = dict.fromkeys(NAMES, i32(np.zeros((2, 3))))
    refuses(call(three), "send_sizes must have a multiple of 2 elements", "it has 3")
    none = dict.fromkeys(NAMES, i32(np.zeros((2, 0))))
    refuses(call(none), "send_sizes must have a multiple of 2 elements", "it has 0")
    refuses(
        call({"recv_sizes": i32(np.zeros((2, 4)))}),
        "recv_sizes must have as many elements as send_sizes, 2, but it has 4",
    )


@pytest.mark.pallas(backends=["tpu-sim"])
def test_the_example_of_lax(pallas_run: Any) -> None:
    """The CPU has no ``jax.lax.ragged_all_to_all``; these are the numbers of its documentation."""
    ours = pallas_run(
        ragged_all_to_all_on_mesh,
        i32([[1, 2, 2], [3, 4, 0]]).reshape(2, 3, 1, 1),
        i32(np.zeros((2, 4, 1, 1))),
        i32([[0, 1], [0, 1]]),
        i32([[1, 2], [1, 1]]),
        i32([[0, 0], [1, 2]]),
        i32([[1, 1], [2, 1]]),
        mesh=mesh_of(x=2),
        axis_name="x",
    )
    same_bits(ours[..., 0, 0], i32([[1, 3, 0, 0], [2, 2, 4, 0]]))


@pytest.mark.pallas(backends=["tpu-sim"])
def test_everything_goes_to_one_of_eight(pallas_run: Any) -> None:
    operand, output = 1 + numbers(8, 1, 1, 4), f32(8, 8, 1, 4)
    only = np.eye(8, dtype=np.int32)[3]  # one row to device 3
    sizes = np.tile(only, (8, 1))
    places = np.arange(8, dtype=np.int32)[::-1, None] * only
    ours = pallas_run(
        ragged_all_to_all_on_mesh,
        operand,
        output,
        0 * sizes,
        sizes,
        places,
        sizes.T.copy(),
        mesh=mesh_of(x=8),
        axis_name="x",
    )
    expected = output.copy()
    expected[3] = operand[::-1, 0]
    same_bits(ours, expected)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_nobody_sends_anything(pallas_run: Any) -> None:
    operands = {"output": numbers(2, 5, 1, 4)}
    zeros = dict.fromkeys(NAMES, i32(np.zeros((2, 2))))
    ours = pallas_run(
        lambda: ragged_all_to_all_on_mesh(
            f32(2, 3, 1, 4), **operands, **zeros, mesh=mesh_of(x=2), axis_name="x"
        )
    )
    same_bits(ours, operands["output"])


@pytest.mark.pallas(backends=["tpu-sim"])
def test_many_calls(pallas_run: Any) -> None:
    """Device 0 gets nothing and waits for nobody; it must not run ahead into the next call."""
    x = numbers(3, 2, 1, 4)
    # 1 sends a row to 2, and 2 one to 1; they lie where they were.
    sizes = i32([[0, 0, 0], [0, 0, 1], [0, 1, 0]])
    zeros = 0 * sizes

    def many(x: jax.Array, sizes: jax.Array, zeros: jax.Array) -> jax.Array:
        def step(y: jax.Array) -> jax.Array:
            return ragged_all_to_all(y, y, zeros, sizes, zeros, sizes, axis_name="x")

        return five_times(step)(x)

    ours = pallas_run(
        lambda *args: _mesh.on_each_device(
            many, mesh_of(x=3), **dict(zip(("x", "sizes", "zeros"), args, strict=True))
        ),
        x,
        sizes,
        zeros,
    )
    expected = x.copy()
    expected[[1, 2], 0] = x[[2, 1], 0]
    same_bits(ours, expected)


def test_a_single_device_sends_nothing() -> None:
    found = operations(call(devices=1))
    assert "dma_start" in found
    assert not {"send", "semaphore_signal", "get_barrier_semaphore"} & {*found}


def test_a_device_sends_before_it_waits() -> None:
    found = operations(call(devices=2))
    assert found.index("send") < found.index("dma_wait")
