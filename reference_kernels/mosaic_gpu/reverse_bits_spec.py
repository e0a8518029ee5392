"""Spec of ``reverse_bits``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.mosaic_gpu._claims import ANY
from reference_kernels.mosaic_gpu.reverse_bits import reference, reverse_bits

SPEC = KernelSpec(
    name="reverse_bits",
    kernel={"gpu": reverse_bits},
    backends=ANY,
    reference=reference,
    inputs=pst.arrays("m n", dtype=pst.dtypes("uint32"), dims={"m": [1, 3], "n": [1, 512, 700]}),
    relations=(Permuted({0: 0}, output=0, exact=True), Permuted({0: 1}, output=1, exact=True)),
    typical=(pst.shaped("n", dtype="uint32", dims={"n": 2**24}),),
)
