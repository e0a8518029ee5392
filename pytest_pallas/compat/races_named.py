"""Private names of JAX: what its GPU interpreter says of a race.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

import re

from pytest_pallas.compat.bounds_named import SLICE, gpu_ref

_KEY = r"HostAllocationKey\(memory_space_id=(?P<space>\d+), device_id=(?P<device>\d+)[^)]*\)"
_THREAD = (
    r"Warp(?:group)?\(device_id=\d+, cluster_id=\d+, block_id=(?P<block>\d+), "
    r"warpgroup_id=(?P<group>\d+)(?:, warp_id=(?P<warp>\d+))?[^)]*\)"
)
_ACCESS = re.compile(
    rf"(?P<what>read|write) of {_KEY}\[(?P<range>.*?)\] from {_THREAD}, (?P<place>.*)"
)


def gpu_race_named(report: str) -> str:
    """A report of a race in words: ``write of a ref in SMEM[0:64] of device 0, block 0, ...``."""
    return _ACCESS.sub(_words, report) if "HostAllocationKey" in report else report


def _words(found: re.Match[str]) -> str:
    buffer = gpu_ref(int(found["space"])) or "a ref"
    part = SLICE.sub(r"\1:\2", found["range"]).strip("(),")
    where = f"[{part}]" if part else ""
    warp = f", warp {found['warp']}" if found["warp"] else ""
    thread = f"block {found['block']}, warpgroup {found['group']}{warp}"
    told = f"{found['what']} of {buffer}{where} of device {found['device']}"
    return f"{told}, {thread}, {found['place']}"
