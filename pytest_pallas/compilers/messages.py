"""What a session and its compiler workers say to each other: plain JSON and the module's bytes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from pytest_pallas.analysis.machine_code import Cost


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a worker is to compile.

    Attributes:
      target: name of the chip, such as ``"v6e"`` or ``"h100"``.
      module: a program exported and serialized with ``jax.export``, lowered for that chip.
      devices: how many devices the program runs on.
      dump: folder to keep the compiler's intermediate and final code in, or "".
    """

    target: str
    module: bytes
    devices: int = 1
    dump: str = ""

    def encode(self) -> bytes:
        """As bytes: a line of JSON, then the module."""
        head = {"target": self.target, "devices": self.devices, "dump": self.dump}
        return json.dumps(head).encode() + b"\n" + self.module

    @staticmethod
    def decode(data: bytes) -> Request:
        """From bytes."""
        head, _, module = data.partition(b"\n")
        return Request(module=module, **json.loads(head))


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the compiler made of it.

    Attributes:
      compiled: whether it compiled.
      message: what the compiler said if it did not, in full.
      kernels: what each kernel's machine code costs, in the order of the program.
      code_bytes: size of the whole executable's code.
      kernel_calls: Pallas custom calls in the executable.
    """

    compiled: bool
    message: str = ""
    kernels: tuple[Cost, ...] = ()
    code_bytes: int | None = None
    kernel_calls: int = 0

    def encode(self) -> bytes:
        """As bytes of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @staticmethod
    def decode(data: bytes) -> Reply:
        """From bytes."""
        plain: dict[str, Any] = json.loads(data)
        plain["kernels"] = tuple(cost_from(kernel) for kernel in plain["kernels"])
        return Reply(**plain)


def cost_from(plain: dict[str, Any]) -> Cost:
    """A ``Cost`` from its JSON form."""
    fields: dict[str, Any] = {**plain, "warnings": tuple(plain.get("warnings", ()))}
    return Cost(**fields)
