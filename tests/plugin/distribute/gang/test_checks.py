"""``pytest_pallas.check`` in a program of several processes."""

from __future__ import annotations

import pytest

from pytest_pallas.compile import libtpu

pytestmark = pytest.mark.processes

CASES = "gang_cases.py"


@pytest.mark.parametrize("program", ["two", "four"])
@pytest.mark.parametrize("name", ["doubled", "summed", "gathered", "shifted"])
def test_right_kernels_pass_on_all_processes(request, program, name):
    """``shifted`` copies to other devices, which the portable interpreter makes a collective."""
    request.getfixturevalue(program).values(CASES, "check", name)


def test_each_process_has_its_own_shards(two):
    first, second = two.values(CASES, "check", "doubled")
    assert first["shape"] == second["shape"] == [32, 128]
    assert [shard[0] for shard in first["shards"]] == [[0, 8], [8, 16]]
    assert [shard[0] for shard in second["shards"]] == [[16, 24], [24, 32]]


def test_wrong_in_one_process_fails_there_with_process_shard_and_place_in_the_whole(two):
    right, wrong = two.call(CASES, "check", "doubled_but_in_process_1")
    assert wrong.error == "MismatchError"
    for line in (
        "output, float32[32, 128]: wrong in 2 of 2048 elements of this process",
        "  wrong at  [23, 3] [31, 3]",
        "  process   1 of 2, on ",
    ):
        assert line in wrong.message
    [shard] = [line for line in wrong.message.splitlines() if line.startswith("  shard")]
    assert shard.split(maxsplit=1)[1].startswith(("[16:24, 0:128] on device ", "[24:32, 0:128] on"))
    assert right.error == "PeerError"
    assert right.message.startswith("process 1 failed, so this process stops here, too. Process 1")
    assert right.shared
    assert wrong.shared


def test_the_copy_of_one_process_is_judged(four):
    answers = four.call(CASES, "check", "summed_but_in_process_1")
    assert [answer.error for answer in answers] == [
        "PeerError",
        "MismatchError",
        "PeerError",
        "PeerError",
    ]


def test_each_copy_in_a_process_is_judged(two):
    """Device 3 is the second of process 1, and the copy of the first is right."""
    _, wrong = two.call(CASES, "check", "summed_but_on_device_3")
    assert wrong.error == "MismatchError"
    [shard] = [line for line in wrong.message.splitlines() if line.startswith("  shard")]
    assert "[0:8, 0:128] on device " in shard


def test_a_kernel_that_raises_in_one_process_stops_the_others(two):
    stopped, raised = two.call(CASES, "check", "raises_in_process_1")
    assert raised.error == "KernelError"
    assert stopped.error == "PeerError"
    assert stopped.shared
    assert raised.shared
    assert "no such tile here" in stopped.message


def test_after_a_failure_the_processes_go_on_together(two):
    two.call(CASES, "check", "raises_in_process_1")
    two.values(CASES, "check", "summed")


def test_outputs_that_are_spread_replicated_scalar_and_empty(two):
    for shapes in two.values(CASES, "outputs_of_many_kinds"):
        assert shapes == {
            "spread": [32, 128],
            "copies": [8, 128],
            "scalar": [],
            "empty": [0, 128],
            "other": [8, 128],
        }


def test_gradients_are_judged_by_shards(two):
    options = {"checks": ["gradient"], "differentiable": [0]}
    two.values(CASES, "check_with", "differentiable", options)
    right, wrong = two.call(CASES, "check_with", "wrong_gradient_in_process_1", options)
    assert (right.error, wrong.error) == ("PeerError", "MismatchError")
    assert "gradient by arguments (0,)" in wrong.message


@pytest.mark.parametrize(
    "check", ["determinism", "jit", "immutability", "dtype", "vmap", "memory", "oracle-strength"]
)
def test_checks_that_need_whole_outputs_have_them(two, check):
    for answer in two.values(CASES, "check_with", "doubled", {"checks": [check]}):
        assert "shards" not in answer


@pytest.mark.parametrize("backend", ["tpu-sim", "gpu-sim"])
def test_a_simulator_simulates_the_whole_mesh_in_every_process(two, backend):
    answers = two.values(CASES, "check", "doubled", backend)
    assert answers == [{"whole": [32, 128], "process": process} for process in range(2)]


def test_a_simulator_simulates_copies_to_the_devices_of_other_processes(two):
    two.values(CASES, "check", "shifted", "tpu-sim")


@pytest.mark.parametrize("backend", ["tpu-interpret", "gpu-interpret"])
def test_an_interpreter_of_one_process_refuses_the_mesh_and_does_not_hang(two, backend):
    for answer in two.call(CASES, "check", "doubled", backend):
        assert answer.error == "UnsupportedKernelError"
        assert "this mesh has devices of several processes" in answer.message


def test_without_a_mesh_each_process_uses_its_own_devices(two):
    assert two.values(CASES, "own_devices") == [
        {"whole": [8, 128], "process": process} for process in range(2)
    ]


def test_a_mesh_that_leaves_out_a_process_is_an_error(four):
    for message in four.values(CASES, "leave_out_a_process"):
        assert message.startswith("DeviceError: ")
        assert "leaves out process 2, 3 of 4" in message


def test_different_values_are_an_error_before_anything_runs(two):
    for message in two.values(CASES, "different_values"):
        assert message.startswith("GangError: ")
        assert "the processes of the program do different things" in message
        assert "process 0: run of doubled(float32[32,128]" in message


def test_a_process_that_does_not_come_is_named_after_the_time_limit(two):
    waiting, _ = two.values(CASES, "one_that_does_not_come")
    assert "process 1 did not come to the step `run` of doubled(" in waiting
    assert "within 1 s" in waiting


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float16"])
def test_the_collectives_of_jax_work_between_processes(two, dtype):
    """They are what the portable interpreter and jnp code need; no kernel is run."""
    names = ("psum", "psum_scatter", "all_gather", "all_to_all", "ppermute")
    for values in two.values(CASES, "collectives", dtype):
        assert values == dict.fromkeys(names, "")


def test_an_array_that_is_spread_already_is_run_and_not_checked(two):
    for message in two.values(CASES, "spread_argument"):
        assert message.startswith("OptionError: argument 0 is a jax.Array that is spread over")


@pytest.mark.skipif(libtpu.missing() is not None, reason=str(libtpu.missing()))
def test_a_compiler_compiles_in_every_process(two):
    two.values(CASES, "check", "doubled", "tpu-compile:v5e")
