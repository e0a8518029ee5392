"""A compiler that accepts everything."""

from pallas_test_support.fake_compilers import environment, flags, good_reply, version

__all__ = ["ENTRY", "compile_payload", "environment", "flags", "version"]

ENTRY = "pallas_test_support.fake_compilers.works:compile_payload"


def compile_payload(payload: bytes) -> bytes:
    """Accept."""
    del payload
    return good_reply()
