"""How far from the oracle the kernels of this project may be."""

from pytest_pallas import Tolerance


def pytest_pallas_tolerance(kernel, check, dtypes):
    """Allow the bundled attention's gradient more than the plugin's twice the baseline's error.

    In bfloat16 it rounds the weights before it sums; the jnp reference keeps them in float32.
    Seen: 4 times the baseline's error (JAX 0.12.0.1). A mask that is off by one gives 500 times.
    """
    if kernel == "flash_attention_gradient" and check == "gradient" and "bfloat16" in dtypes:
        return Tolerance(factor=10)
    return None
