"""A compiler that does not finish for kernels called hang_here."""

import time

from pallas_test_support.fake_compilers import (
    environment,
    flags,
    good_reply,
    is_of_hang_here,
    version,
)

__all__ = ["ENTRY", "compile_payload", "environment", "flags", "version"]

ENTRY = "pallas_test_support.fake_compilers.hangs:compile_payload"


def compile_payload(payload: bytes) -> bytes:
    """Hang, or accept."""
    while is_of_hang_here(payload):
        time.sleep(1)
    return good_reply()
