"""Draw docs/failure.svg: a terminal in which pytest prints the failure of docs/start.md.

    uv run python scripts/failure_picture.py

It runs the test of the page, and draws what is printed. Run it when a message changes; a test
compares the text in the picture with what is printed today.
"""

from __future__ import annotations

import html
import io
import os
import re
import subprocess
import tempfile
from pathlib import Path

from readme_output import PYTEST, ROOT, block
from rich.console import Console
from rich.text import Text

PICTURE = ROOT / "docs/failure.svg"
PAGE = ROOT / "docs/start.md"
FILE = "test_double.py"
COMMAND = f"$ pytest {FILE}"
COLUMNS = 100

#: Of rich's own, without its font, which would come from the web.
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
  <style>
  .{unique_id}-matrix {{
      font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
      font-size: {char_height}px;
      line-height: {line_height}px;
      font-variant-east-asian: full-width;
  }}
  {styles}
  </style>
  <defs>
  <clipPath id="{unique_id}-clip-terminal">
    <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
  </clipPath>
  {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
  {backgrounds}
  <g class="{unique_id}-matrix">
  {matrix}
  </g>
  </g>
</svg>
"""


def printed(folder: Path) -> str:
    """What pytest prints of the test, in colors: its code, what is wrong, how to replay it."""
    (folder / FILE).write_text(block(PAGE, FILE))
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PY_COLORS": "1"}
    command = [*PYTEST, "-p", "no:cacheprovider", "--pallas-backend=tpu-sim", FILE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    text = done.stdout.replace(f"{folder.resolve()}/", "")
    code = text[text.index("\n    ", text.index("pallas_check = ")) :].partition("\n\n")[0]
    replay = re.search(r"(?m)^replay: .*$", text)
    assert replay is not None, text
    return f"{code.strip(chr(10))}\n\n{replay[0]}"


def draw(text: str) -> str:
    """A terminal with the command and this text, as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text(COMMAND, style="bold"))
    console.print(Text.from_ansi(text))
    console.print()  # or the last line is cut off
    return console.export_svg(title="pytest-pallas", code_format=FRAME, unique_id="failure")


def text_of(picture: str) -> str:
    """The text that a picture shows, without any spaces: lines are broken there."""
    shown = re.findall(r"<text[^>]*failure-line[^>]*>(.*?)</text>", picture)
    return without_spaces(html.unescape("".join(shown)))


def without_spaces(text: str) -> str:
    """A text without spaces and colors."""
    return re.sub(r"\s|\x1b\[[\d;]*m", "", text)


def main() -> None:
    """Draw it."""
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(draw(printed(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
