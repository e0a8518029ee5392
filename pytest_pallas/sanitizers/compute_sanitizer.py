"""NVIDIA's compute-sanitizer: its command line, and what it says.

Formats as in NVIDIA's "Compute Sanitizer" user manual, 2025.3: sections "Memcheck tool" and
"Racecheck tool".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: The command, on the PATH.
COMMAND = "compute-sanitizer"

#: The tools that look for what a kernel does wrong, and not for what it leaves.
TOOLS = ("memcheck", "racecheck")

#: The exit status where the tool has found something.
FOUND = 86

_LINE = re.compile(r"^=========(.*)$", re.MULTILINE)

#: The first line of what is wrong: an access, or a hazard.
_HAZARD = re.compile(
    r"^ (?:Invalid __\w+__|Error: (?:Potential )?\w+ hazard|Error: Race reported"
    r"|Warning: Race reported|Misaligned|Invalid (?:read|write|atomic))"
)

#: What it says where it cannot watch.
_UNUSABLE = re.compile(
    r"^ (?:Error: )?((?:Device not supported|Unable to|Target application terminated before|"
    r"Internal Sanitizer Error|Failed to initialize|The application may have hit).*)$"
)

#: Lines of a finding that are shown, and findings.
_SHOWN_LINES, _SHOWN = 3, 4


@dataclass(frozen=True)
class Report:
    """What the tool says of one run.

    Attributes:
      hazards: what is wrong, one text each.
      unusable: why the tool cannot watch here, or "".
      failed: how the program failed otherwise, or "".
    """

    hazards: tuple[str, ...] = ()
    unusable: str = ""
    failed: str = ""


def command(tool: str, program: Sequence[str]) -> list[str]:
    """The command line that runs a program under a tool."""
    return [COMMAND, "--tool", tool, "--error-exitcode", str(FOUND), *program]


def parse(text: str, status: int) -> Report:
    """What a run's output and exit status say."""
    lines = _LINE.findall(text)
    found: list[list[str]] = []
    unusable = ""
    for line in lines:
        if _HAZARD.match(line):
            found.append([line.strip()])
        elif found and line.startswith("     ") and len(found[-1]) < _SHOWN_LINES:
            found[-1].append(line.strip())
        elif not unusable and (match := _UNUSABLE.match(line)):
            unusable = match[1].strip()
    hazards = list(dict.fromkeys("; ".join(each) for each in found))
    if len(hazards) > _SHOWN:
        hazards = [*hazards[:_SHOWN], f"and {len(hazards) - _SHOWN} more"]
    failed = ""
    if status and not hazards and not unusable:
        printed = [line for line in text.splitlines() if line and not line.startswith("=====")]
        failed = f"exit status {status}" + (f": {printed[-1]}" if printed else "")
    return Report(hazards=tuple(hazards), unusable=unusable, failed=failed)
