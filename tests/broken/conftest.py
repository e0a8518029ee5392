"""Makes ``wrong_kernels`` importable here by the name that it has in the projects under test."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
