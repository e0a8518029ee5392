"""A compiler that ends its process, as LLVM does."""

import os
import sys

from pallas_test_support.fake_compilers import (
    environment,
    flags,
    good_reply,
    is_of_hang_here,
    version,
)

__all__ = ["ENTRY", "compile_payload", "environment", "flags", "version"]

ENTRY = "pallas_test_support.fake_compilers.aborts:compile_payload"


def compile_payload(payload: bytes) -> bytes:
    """Abort, or accept."""
    if is_of_hang_here(payload):
        sys.stderr.write("LLVM ERROR: Cannot select: intrinsic %llvm.nvvm.elect.sync\n")
        sys.stderr.flush()
        os.abort()
    return good_reply()
