"""Which code is this project's own: that of the plugin and that of the simulator."""

from __future__ import annotations

from pathlib import Path

import pallas_sim

#: The folders of both packages.
FOLDERS = (str(Path(__file__).parent), str(Path(pallas_sim.__file__).parent))


def is_own(file: str) -> bool:
    """Whether a file of source code is in one of the two packages."""
    return file.startswith(tuple(f"{folder}/" for folder in FOLDERS))
