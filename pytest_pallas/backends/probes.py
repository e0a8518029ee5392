"""What can be asked of a run besides its answer."""

from __future__ import annotations

from typing import Literal

#: ``"outputs"``: what each kernel returned. ``"separate"``: nothing, but outputs that are aliased
#: to an input get memory of their own. ``"late"``: nothing, but blocks are fetched just before the
#: body that reads them. ``"loads"``: what each load and copy read.
Probe = Literal["", "outputs", "separate", "late", "loads"]
