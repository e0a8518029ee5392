"""Compilers that misbehave: what a worker runs in place of libtpu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_pallas.compile.service import CompileRequest, compiled_report
from pytest_pallas.decoding import decode, json_of, parse

CUSTOM_CALLS = ("tpu_custom_call",)


def environment(
    scratch: Any, *, target: str, everything: bool = False, costs: bool = True
) -> Mapping[str, str]:
    """Nothing to set."""
    del scratch, target, everything, costs
    return {}


def version() -> str:
    """The version that is part of a cache key."""
    return "fake 1"


def flags() -> str:
    """The flags that are part of a cache key."""
    return ""


def good_reply() -> bytes:
    """What a compiler answers that found nothing wrong."""
    return json_of(compiled_report("v6e", (), kernel_calls=1, code_bytes=1000))


def is_of_hang_here(payload: bytes) -> bool:
    """Whether a program with a kernel called hang_here is to be compiled."""
    return b"hang_here" in decode(CompileRequest, parse(payload)).module
