"""Only what this repository's own tests need."""

from __future__ import annotations

pytest_plugins = ["pytester"]
