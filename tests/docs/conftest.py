"""Python blocks of a page, by the file that their first comment names."""

import re
from pathlib import Path

import pytest
from pallas_test_support.imported import import_everything

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _imported():
    import_everything()


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
