"""A compiler that accepts everything."""

from fake_compilers import environment, flags, good_reply, version

__all__ = ["ENTRY", "compile", "environment", "flags", "version"]

ENTRY = "fake_compilers.works:compile"


def compile(payload: bytes) -> bytes:
    """Accept."""
    del payload
    return good_reply()
