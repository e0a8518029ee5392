"""What XLA compiles for the CPU, the same on every processor, for tests that compare with its bits.

On processors with AVX512-FP16, XLA computes float16 natively and contracts ``a * b + c`` to one
rounding; elsewhere it rounds each operation. The widest instructions are therefore pinned to those
that every processor of the last decade has. The pin is a variable, which processes inherit.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

#: Instruction sets are names of x86; XLA for ARM has no native float16 arithmetic to choose.
PIN = "--xla_cpu_max_isa=AVX2" if platform.machine() in ("x86_64", "AMD64") else ""


def pinned(flags: str = "") -> str:
    """``XLA_FLAGS`` with these flags and the pin."""
    return " ".join(word for word in (*flags.split(), PIN) if word)


def pin_xla() -> None:
    """Pin what XLA compiles in this process, and in those that it starts. Call before JAX starts.

    A caller of pytest who chose instructions keeps them.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_max_isa" not in given:
        os.environ["XLA_FLAGS"] = pinned(given)


def require_pin(environ: Mapping[str, str] = os.environ) -> None:
    """Fail where XLA may use other instructions than on other processors.

    Raises:
      AssertionError: ``XLA_FLAGS`` lacks the pin; the message says how to set it.
    """
    flags = environ.get("XLA_FLAGS", "")
    assert not PIN or "xla_cpu_max_isa" in flags, (
        f"XLA_FLAGS={flags!r} does not pin the instructions of XLA's CPU compiler, whose bits this "
        "test compares with: run it with the conftest.py of the repository, and set XLA_FLAGS to "
        "pinned_xla.pinned(...)"
    )
