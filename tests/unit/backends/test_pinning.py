"""One accelerator for each worker: what is found, what is decided, what a worker sees."""

from __future__ import annotations

import pytest

from pallas_sim.errors import DeviceError
from pytest_pallas import plugin
from pytest_pallas.backends.devices import (
    ANNOUNCED,
    Accelerators,
    accelerators,
    announce,
    pin,
    pinning,
)

GPUS = Accelerators("gpu", ("0", "1", "2", "3"))
TPUS = Accelerators("tpu", ("0", "1", "2", "3"))


def found(tmp_path, files=(), environ=(), installed=True):
    """The accelerators of a machine with these device files."""
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return accelerators(dict(environ), devices=tmp_path, installed=lambda package: installed)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ((), None),
        (("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"), Accelerators("gpu", ("0", "1"))),
        (("accel0", "accel1"), Accelerators("tpu", ("0", "1"))),
        (("vfio/0", "vfio/1", "vfio/vfio"), Accelerators("tpu", ("0", "1"))),
        (("nvidia0", "vfio/7"), Accelerators("gpu", ("0",))),
    ],
)
def test_devices_are_found_by_their_files(tmp_path, files, wanted):
    assert found(tmp_path, files) == wanted


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4, 6"}, Accelerators("gpu", ("4", "6"))),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, Accelerators("gpu", ("MIG-a", "MIG-b"))),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, None),
        ({"TPU_VISIBLE_DEVICES": "2,3"}, Accelerators("gpu", ("0", "1"))),
        (
            {"TPU_VISIBLE_DEVICES": "2,3", "JAX_PLATFORMS": "tpu,cpu"},
            TPUS.__class__("tpu", ("2", "3")),
        ),
        ({"JAX_PLATFORMS": "cpu"}, None),
        ({"JAX_PLATFORMS": "cuda"}, Accelerators("gpu", ("0", "1"))),
    ],
)
def test_variables_say_which_may_be_used(tmp_path, environ, wanted):
    assert found(tmp_path, ("nvidia0", "nvidia1"), environ) == wanted


def test_a_jax_that_cannot_use_them_has_none(tmp_path):
    assert found(tmp_path, ("nvidia0",), installed=False) is None


@pytest.mark.parametrize("backends", [("auto",), ("all",), ("gpu",), ("gpu:h100", "gpu-sim")])
def test_each_worker_has_one(backends):
    chosen = pinning(GPUS, 3, backends, {})
    assert (chosen.variable, chosen.values) == ("CUDA_VISIBLE_DEVICES", ("0", "1", "2"))
    assert chosen.text == "each of 3 workers has one of 4 GPUs (CUDA_VISIBLE_DEVICES)"


@pytest.mark.parametrize(
    ("chips", "workers", "backends"),
    [
        (None, 4, ("auto",)),
        (GPUS, 0, ("auto",)),
        (GPUS, 1, ("gpu",)),
        (GPUS, 4, ("gpu-sim", "gpu-compile:h100")),
        (GPUS, 4, ("tpu",)),
    ],
)
def test_workers_that_are_left_as_they_are(chips, workers, backends):
    assert pinning(chips, workers, backends, {}) is None


def test_gpus_are_shared_if_memory_is():
    chosen = pinning(GPUS, 6, ("gpu",), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    assert chosen.values == ("0", "1", "2", "3", "0", "1")
    assert chosen.text.startswith("6 workers share 4 GPUs")


@pytest.mark.parametrize(
    ("chips", "words"),
    [
        (GPUS, "5 workers run on the simulators (JAX_PLATFORMS=cpu): they are more than 4 GPUs"),
        (TPUS, "more than 4 TPUs, and one process at a time can open a TPU"),
    ],
)
def test_more_workers_than_chips_run_on_the_simulators(chips, words):
    chosen = pinning(chips, 5, ("auto",), {"CUDA_VISIBLE_DEVICES": "0"})
    assert (chosen.variable, set(chosen.values)) == ("JAX_PLATFORMS", {"cpu"})
    assert words in chosen.text


@pytest.mark.parametrize(
    ("chips", "backend", "words"),
    [
        (GPUS, "gpu", "5 workers are more than 4 GPUs, and JAX takes three quarters of a GPU's"),
        (GPUS, "gpu:h100", "give -n 4 or less, or set XLA_PYTHON_CLIENT_PREALLOCATE=false"),
        (TPUS, "tpu:v6e", "5 workers are more than 4 TPUs, and one process at a time can open"),
    ],
)
def test_more_workers_than_chips_of_a_named_backend_are_an_error(chips, backend, words):
    with pytest.raises(DeviceError) as caught:
        pinning(chips, 5, ("interpret", backend), {})
    assert words in str(caught.value)


def seen_by(worker, chosen, environ=()):
    """The environment of a worker after ``pin``."""
    told = dict(environ)
    announce(chosen, told)
    told["PYTEST_XDIST_WORKER"] = worker
    pin(told)
    return told


def test_a_worker_sees_its_own():
    chosen = pinning(GPUS, 3, ("auto",), {})
    assert [seen_by(f"gw{n}", chosen)["CUDA_VISIBLE_DEVICES"] for n in range(4)] == [
        *("0", "1", "2"),
        "0",  # a worker in place of one that crashed
    ]


def test_a_worker_with_a_tpu_has_no_neighbours():
    told = seen_by("gw1", pinning(TPUS, 2, ("tpu",), {}), {"TPU_VISIBLE_CHIPS": "0,1,2,3"})
    assert told["TPU_VISIBLE_DEVICES"] == "1"
    assert told["TPU_PROCESS_BOUNDS"] == told["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
    assert "TPU_VISIBLE_CHIPS" not in told


def test_what_a_worker_starts_is_not_a_worker():
    told = seen_by("gw1", pinning(GPUS, 2, ("auto",), {}))
    assert ANNOUNCED not in told
    again = dict(told)
    pin(again)
    assert again == told


def test_the_light_half_names_the_same_variable():
    assert plugin._ANNOUNCED == ANNOUNCED
