"""A compiler that notes each program, and does with it what the program says."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pallas_test_support.fake_compilers import flags, good_reply, version
from pytest_pallas.compile.service import CompileReport, CompileRequest
from pytest_pallas.decoding import decode, json_of, parse

__all__ = ["ENTRY", "compile_payload", "environment", "flags", "version"]

ENTRY = "pallas_test_support.fake_compilers.counts:compile_payload"


def environment(
    scratch: Any, *, target: str, everything: bool = False, costs: bool = True
) -> Mapping[str, str]:
    """Where to note it."""
    return {"FAKE_NOTES": str(scratch), "FAKE_EVERYTHING": str(everything)}


def compile_payload(payload: bytes) -> bytes:
    """Note it in a file named by the process; refuse, abort or accept."""
    request = decode(CompileRequest, parse(payload))
    with Path(os.environ["FAKE_NOTES"], str(os.getpid())).open("a") as notes:
        notes.write(f"{request.module.decode()} {request.target} {request.devices}\n")
    if request.dump:
        Path(request.dump, "code").write_text(os.environ["FAKE_EVERYTHING"])
    match request.module:
        case b"refuse":
            report = CompileReport(
                target=request.target, status="refused", text="no such instruction"
            )
            return json_of(report)
        case b"abort":
            os.abort()
        case b"raise":
            raise RuntimeError("this is no program")
        case _:
            return good_reply()
