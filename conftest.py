"""Only what this repository's own tests need."""

from __future__ import annotations

import os

pytest_plugins = ["pytester"]

# Where CI is set, hypothesis takes another profile and pytest prints longer summaries. The tests of
# the plugin say what happens where it is not.
for _name in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS"):
    os.environ.pop(_name, None)

# The plugins of hypothesis that other packages bring (trio's, by way of selenium) take a tenth of a
# second in each of the hundreds of processes that the tests start, and no test draws from them.
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")
