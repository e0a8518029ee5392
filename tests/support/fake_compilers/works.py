"""A compiler that accepts everything."""

from fake_compilers import environment, flags, good_reply, version

__all__ = ["compile", "environment", "flags", "version"]


def compile(payload: bytes) -> bytes:
    """Accept."""
    del payload
    return good_reply()
