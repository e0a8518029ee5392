"""Tables as text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


def rendered(table: RenderableType, *, width: int, color: bool) -> str:
    """A table, or lines, as text of at most ``width`` columns, without trailing blanks."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=max(width, 40), force_terminal=color, no_color=not color, highlight=False
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")
