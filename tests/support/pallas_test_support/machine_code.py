"""The machine code of a kernel for a chip that is not there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallas_sim.chips import TARGETS
from pallas_test_support.compile_service import compile_service
from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.compile.backends import Compiler, Lowering
from pytest_pallas.compile.machine_code import split_bundles


def bundles_of(function: Callable[..., Any], *args: Any, target: str) -> list[str]:
    """The bundles of the longest kernel of a program; skips the test without the compiler."""
    lowering = Lowering("tpu")
    compiler = Compiler("tpu-compile", "tpu", compile_service, lambda: lowering, TARGETS[target])
    if (missing := compiler.available()) is not None:
        pytest.skip(missing)
    with tempfile.TemporaryDirectory() as folder:
        outcome = compiler.run(
            Call(function=function, args=args, settings=RunSettings(dump=folder, timeout=300.0))
        )
        if outcome.error is not None:
            raise outcome.error
        dumps = list(Path(folder).glob("*/*-final_bundles.txt"))
        texts = [path.read_text() for path in dumps if "schedule-analysis" not in path.name]
    return max(map(split_bundles, texts), key=len)


def places(bundles: list[str], word: str) -> list[int]:
    """The numbers of the bundles with an operation whose name begins with ``word``."""
    return [number for number, bundle in enumerate(bundles) if f" = {word}" in bundle]
