"""What JAX says when a device fails, and what is made of it."""

import logging
from types import SimpleNamespace

import jax
import pytest

from pytest_pallas.backends import statuses
from pytest_pallas.errors import CapacityError, DeviceLostError

KERNELS = (SimpleNamespace(located_name="body at kernel.py:3"),)

#: As XLA says it (JAX 0.11.2 on an H200).
LAUNCH = (
    "INTERNAL: CUDA error: Failed to synchronize CUDA stream: CUDA_ERROR_LAUNCH_FAILED: "
    "unspecified launch failure"
)
SHARED = (
    "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 263296, available: 232448"
)


@pytest.fixture(autouse=True)
def _process(monkeypatch):
    """A process in which no device has failed, and no plugin."""
    monkeypatch.setattr(statuses, "_lost", [])
    monkeypatch.setattr(statuses, "_failures", {})


def raised(text):
    return jax.errors.JaxRuntimeError(text)


def test_a_launch_failure_names_status_and_kernel():
    error = statuses.readable(raised(LAUNCH), KERNELS)
    assert isinstance(error, DeviceLostError)
    assert "CUDA_ERROR_LAUNCH_FAILED (the kernel did what the GPU cannot do" in str(error)
    assert "under body at kernel.py:3" in str(error)
    assert error.timed_out  # it is not tried again
    assert statuses.lost()


def test_a_later_failure_names_the_first_kernel():
    statuses.readable(raised(LAUNCH), KERNELS)
    later = (SimpleNamespace(located_name="other at other.py:9"),)
    error = statuses.readable(raised(LAUNCH), later)
    assert "It failed before in this process, under body at kernel.py:3" in str(error)


@pytest.mark.parametrize("status", [*statuses.STICKY])
def test_every_status_that_lasts_is_known(status):
    assert isinstance(statuses.readable(raised(f"INTERNAL: {status}: x"), ()), DeviceLostError)


@pytest.mark.parametrize(
    "text", [SHARED, "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes"]
)
def test_too_little_memory_spoils_nothing(text):
    error = statuses.readable(raised(text), KERNELS)
    assert isinstance(error, CapacityError)
    assert text in str(error)
    assert not statuses.lost()


def test_any_other_error_is_that_of_the_kernel():
    error = ValueError("no block divides 7 rows")
    assert statuses.readable(error, KERNELS) is error
    assert not statuses.lost()


def test_a_failure_that_a_test_has_wrapped_is_noticed():
    try:
        try:
            raise raised(LAUNCH)
        except jax.errors.JaxRuntimeError as error:
            raise AssertionError("wrong") from error
    except AssertionError as error:
        statuses.note(error)
    assert statuses.lost()


def test_why_a_plugin_does_not_start():
    """JAX logs it, and goes on without the GPU."""

    def start():
        text = "Found CUDA version 12000, but JAX was built against version 13000"
        try:
            raise RuntimeError(text)
        except RuntimeError:
            logging.getLogger("jax._src.xla_bridge").exception("Jax plugin configuration error")
        raise LookupError("so there is no GPU")

    with pytest.raises(LookupError), statuses.plugin_errors("gpu"):
        start()
    reason = statuses.why_no_device("gpu", RuntimeError("Unknown backend gpu"))
    assert reason.startswith("JAX cannot open the GPU: Found CUDA version 12000")
    assert "Update its driver" in reason


def test_why_a_device_cannot_be_opened():
    text = "Backend 'tpu' failed to initialize: The TPU is already in use by process with pid 7"
    assert "in use by process with pid 7" in statuses.why_no_device("tpu", RuntimeError(text))


def test_where_there_is_no_device():
    reason = statuses.why_no_device("gpu", RuntimeError("Unknown backend gpu"))
    assert reason.startswith("jax.devices('gpu') finds no GPU, only cpu")
