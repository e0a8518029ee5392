"""A compiler that takes memory without end."""

import time

from pallas_test_support.fake_compilers import (
    environment,
    flags,
    good_reply,
    is_of_hang_here,
    version,
)

__all__ = ["ENTRY", "compile_payload", "environment", "flags", "version"]

ENTRY = "pallas_test_support.fake_compilers.hogs:compile_payload"


def compile_payload(payload: bytes) -> bytes:
    """Take memory, or accept."""
    taken: list[bytearray] = []
    while is_of_hang_here(payload):
        taken.append(bytearray(b"x" * 2**25))
        time.sleep(0.01)
    return good_reply()
