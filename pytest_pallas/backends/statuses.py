"""What JAX and XLA say when a device fails, read at this one place.

``readable`` makes an error of this package of a status, and ``lost`` says whether this process can
still launch kernels. Texts are those of CUDA's driver (``cuda.h``), of ROCm and of libtpu, inside
of what XLA says.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pallas_sim.errors import PallasError
from pytest_pallas.compat.settings import errors_of_plugins
from pytest_pallas.errors import CapacityError, DeviceLostError

#: Statuses after which a process can launch nothing more, and what each means. CUDA: "the process
#: must be terminated and relaunched".
STICKY: Mapping[str, str] = {
    "CUDA_ERROR_LAUNCH_FAILED": "the kernel did what the GPU cannot do, such as an access outside "
    "of shared memory",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "the kernel accessed memory that is not there",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "the kernel accessed memory at an address that is not aligned",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "an instruction accessed another kind of memory than its "
    "own",
    "CUDA_ERROR_INVALID_PC": "the kernel jumped to what is no code",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "the kernel has an instruction that the GPU cannot execute",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "the stack of the kernel overflowed, or was overwritten",
    "CUDA_ERROR_TENSOR_MEMORY_LEAK": "the kernel did not free the tensor memory that it took",
    "CUDA_ERROR_ASSERT": "an assertion of the kernel failed",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the driver ended the kernel, which took too long",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "the GPU's memory has an error that cannot be corrected",
    "CUDA_ERROR_NVLINK_UNCORRECTABLE": "the connection between GPUs has an error",
    "CUDA_ERROR_CONTAINED": "the GPU ended the process because of an error of its memory",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "the driver has ended what this process does on the GPU",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "the GPU is busy, or is gone",
    "CUDA_ERROR_NO_DEVICE": "the GPU is gone",
    "CUDA_ERROR_EXTERNAL_DEVICE": "another device that the GPU waits for has failed",
    "hipErrorLaunchFailure": "the kernel did what the GPU cannot do",
    "hipErrorIllegalAddress": "the kernel accessed memory that is not there",
    "halted unexpectedly": "the kernel stopped the TPU's core",
    "halted prematurely": "the kernel stopped the TPU's core",
}

#: The status of a call that asks for more memory than the device has, at once or at all.
NO_MEMORY = "RESOURCE_EXHAUSTED"

#: What JAX says of a platform whose plugin is installed and does not start.
NOT_STARTED = "failed to initialize"

_STATUS = re.compile("|".join(map(re.escape, (*STICKY, NO_MEMORY, NOT_STARTED))))

#: The kernels that ran when a device failed in this process, the first first.
_lost: list[str] = []


def status_of(error: BaseException) -> str:
    """Return the status that JAX has in the message of an error; "" if it is none of these."""
    status = _STATUS.search(str(error))
    return status.group() if status else ""


def lost() -> bool:
    """Return whether a device failed in this process, so that it can launch nothing more."""
    return bool(_lost)


def note(error: BaseException) -> None:
    """Record that a device failed, if an error or one of its causes says so."""
    if any(status_of(cause) in STICKY for cause in _causes(error)):
        _lost.append("a test")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def readable(error: Exception, kernels: Sequence[Any]) -> Exception:
    """Return the error of a call on a device, as what it means for the kernel and the process.

    Args:
      error: what the call raised; returned as it is if its status is no other than any error's.
      kernels: the traced kernels (``KernelCall``); () if tracing failed.
    """
    from pytest_pallas.backends.execution import brief

    if isinstance(error, PallasError):
        return error
    status = status_of(error)
    made: PallasError
    if status in STICKY:
        under = " and ".join(kernel.located_name for kernel in kernels)
        rest = "Every later launch of this process fails, too"
        if _lost:
            rest = f"It failed before in this process, under {_lost[0]}"
        _lost.append(under or "another kernel")
        made = DeviceLostError(
            f"the device failed with {status} ({STICKY[status]}) under {under or 'a kernel'}. "
            f"{rest}. XLA: {brief(str(error), lines=2)}"
        )
    elif status == NO_MEMORY:
        made = CapacityError(
            "the device has too little memory for this call: "
            f"{brief(str(error), lines=4)}\nTake smaller blocks or arrays. If another process "
            "holds the memory, end it, or run both with XLA_PYTHON_CLIENT_PREALLOCATE=false"
        )
    else:
        return error
    made.__cause__ = error
    return made


# Why JAX finds no device.


#: What the plugins of JAX said when they could not start, by the platform that was asked for.
_failures: dict[str, str] = {}


@contextmanager
def plugin_errors(platform: str) -> Generator[None]:
    """Keep why a plugin of JAX does not start, such as a driver that is too old for it."""
    with errors_of_plugins() as errors:
        try:
            yield
        finally:
            if errors:
                _failures[platform] = errors[-1]


#: What JAX raises if it finds no device: without any platform that starts, an assertion fails.
NO_DEVICE = (RuntimeError, AssertionError)


def why_no_device(platform: str, error: BaseException) -> str:
    """Return why JAX finds no device of a platform.

    Args:
      platform: ``"gpu"`` or ``"tpu"``.
      error: what JAX raised when it was asked for one.
    """
    import jax

    from pytest_pallas.backends.execution import brief

    chip, kinds = platform.upper(), list[str]()
    with suppress(*NO_DEVICE):
        kinds = sorted({device.device_kind for device in jax.devices()})
    cause = _failures.get(platform, "")
    if not cause and (status_of(error) == NOT_STARTED or not kinds):
        cause = str(error) or "no platform starts"
    if cause:
        return (
            f"JAX cannot open the {chip}: {brief(cause, lines=3)}. Update its driver, install what "
            "is missing, or end another process that holds it"
        )
    return (
        f"jax.devices({platform!r}) finds no {chip}, only {', '.join(kinds)}; it needs a {chip} "
        f"and pip install 'pytest-pallas[{platform}]'"
    )
