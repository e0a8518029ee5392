"""Python blocks of a page, by the file that their first comment names."""

import re
from pathlib import Path

# pytester forgets what its runs import, and JAX does not survive a second import.
import jax.experimental.pallas.mosaic_gpu
import jax.experimental.pallas.tpu  # noqa: F401
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def blocks():
    def find(page):
        text = (ROOT / page).read_text()
        found = []
        for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
            name = re.match(r"# (\w+\.py)\n", block)
            found.append((name.group(1) if name else "", block))
        return found

    return find
