"""Only what this repository's own tests need."""

from __future__ import annotations

import os

pytest_plugins = ["pytester"]

# Where CI is set, hypothesis takes another profile and pytest prints longer summaries. The tests of
# the plugin say what happens where it is not.
for _name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS"):
    os.environ.pop(_name, None)
