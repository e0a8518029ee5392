"""``python -m pytest_pallas``: the same as the command ``pytest-pallas``."""

from __future__ import annotations

import sys

from pytest_pallas.scaffold.command import main

if __name__ == "__main__":
    sys.exit(main())
