"""What kernels are told of the GPU, where one stands in for it and where none does."""

import jax
import numpy as np
import pytest

from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.registry import FAMILIES, parse
from reference_kernels import _gpu

KNOWN = {family.name: family for family in FAMILIES}


@pytest.mark.parametrize(("target", "told"), [("a100", (108, 8)), ("h100", (132, 9))])
def test_the_target_of_a_backend_answers(target, told):
    def call(x):
        return x + np.asarray([_gpu.multiprocessors(), _gpu.capability()], np.int32)

    (chosen,) = parse(f"gpu-interpret:{target}", KNOWN)
    outcome = chosen.run(Call(function=call, args=(np.zeros(2, np.int32),), needs_kernel=False))
    assert outcome.error is None, outcome.error
    assert tuple(outcome.values) == told


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do():
    with pytest.raises(ValueError, match=r"needs a GPU to know its core_count.*gpu-interpret"):
        _gpu.multiprocessors()
