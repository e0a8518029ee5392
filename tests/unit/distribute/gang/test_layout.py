"""Which devices each process of a gang sees."""

import pytest

from pytest_pallas import GangError
from pytest_pallas.backends.devices import Accelerators
from pytest_pallas.compat.distributed import Place
from pytest_pallas.distribute.gang.hosts import PROCESS, of_cluster, on_this_host

FOUR_GPUS = Accelerators("gpu", ("0", "1", "2", "3"))
FOUR_TPUS = Accelerators("tpu", ("0", "1", "2", "3"))


def test_simulated_devices_are_divided():
    layout = on_this_host(2, 8, None, ["auto"])
    assert list(layout.processes) == [0, 1]
    assert layout.environments[1] == {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        PROCESS: "1",
    }
    assert layout.header == "2 processes with 4 simulated devices each"


@pytest.mark.parametrize(("count", "devices", "remedy"), [(3, 8, 9), (16, 8, 16), (5, 12, 10)])
def test_devices_that_cannot_be_divided(count, devices, remedy):
    with pytest.raises(GangError, match=f"give --pallas-devices={remedy}$"):
        on_this_host(count, devices, None, ["auto"])


def test_accelerators_are_divided():
    layout = on_this_host(2, 8, FOUR_GPUS, ["gpu"])
    seen = [environment["CUDA_VISIBLE_DEVICES"] for environment in layout.environments]
    assert seen == ["0,1", "2,3"]
    assert layout.header == "2 processes with 2 of 4 GPUs each"


def test_a_backend_without_the_accelerator_gets_simulated_devices():
    layout = on_this_host(2, 8, FOUR_GPUS, ["tpu-sim"])
    assert layout.environments[0]["JAX_PLATFORMS"] == "cpu"


def test_too_few_accelerators_are_an_error_only_if_they_are_named():
    with pytest.raises(GangError, match="8 processes cannot divide 4 GPUs"):
        on_this_host(8, 8, FOUR_GPUS, ["gpu:h100"])
    layout = on_this_host(8, 8, FOUR_GPUS, ["auto"])
    assert layout.environments[0]["JAX_PLATFORMS"] == "cpu"
    assert "(8 processes cannot divide 4 GPUs)" in layout.header


def test_tpu_processes_have_a_chip_each_and_know_each_other():
    layout = on_this_host(4, 8, FOUR_TPUS, ["tpu"])
    first, *_, last = layout.environments
    assert last["TPU_VISIBLE_DEVICES"] == "3"
    assert last["CLOUD_TPU_TASK_ID"] == "3"
    assert last["TPU_PROCESS_BOUNDS"] == "2,2,1"
    assert first["TPU_PROCESS_ADDRESSES"] == last["TPU_PROCESS_ADDRESSES"]
    assert last["TPU_PROCESS_PORT"] in last["TPU_PROCESS_ADDRESSES"].split(":")[-1]
    with pytest.raises(GangError, match="2 processes with 2 TPU chips each"):
        on_this_host(2, 8, FOUR_TPUS, ["tpu"])


def test_a_host_of_a_cluster_starts_one_process():
    position = Place("node0:1234", 4, 2, (1,))
    layout = of_cluster(position, 8, {"JAX_PLATFORMS": "cpu"})
    assert (layout.host, layout.count, list(layout.processes)) == (2, 4, [2])
    assert layout.address == "node0"
    assert layout.devices == (1,)
    assert layout.environments[0]["JAX_NUM_CPU_DEVICES"] == "2"
    assert "JAX_PLATFORMS" not in of_cluster(position, 8, {}).environments[0]
