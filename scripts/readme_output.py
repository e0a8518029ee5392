"""Put real output into the README: run its commands and fill the blocks that they belong to.

    uv run python scripts/readme_output.py

A block follows a comment ``<!-- output: NAME -->``. Run it when output changes; a test compares
what does not depend on the machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]


def run(*options: str, folder: Path = ROOT) -> str:
    """What pytest prints, without the environment's own lines."""
    done = subprocess.run([*PYTEST, *options], cwd=folder, capture_output=True, text=True)
    return re.sub(
        r"(?m)^(platform|rootdir|plugins|configfile|testpaths|cachedir).*\n",
        "",
        done.stdout + done.stderr,
    )


def from_line(text: str, pattern: str) -> str:
    """The text from the first line that matches."""
    lines = text.strip().splitlines()
    first = next(i for i, line in enumerate(lines) if re.search(pattern, line))
    return "\n".join(lines[first:])


def softmax() -> str:
    """The explanation of the README's own example."""
    block = re.search(r"```python\n# test_softmax.py\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "test_softmax.py").write_text(block.group(1))
        text = run("--pallas-backend=tpu-interpret", folder=Path(name))
    lines = [line for line in text.splitlines() if re.match(r"E  |replay:", line)]
    return "\n".join(lines)


def command(*options: str) -> str:
    """A command as one types it, and what it prints."""
    return "$ uv run pytest " + " ".join(options) + "\n" + run(*options).strip()


def main() -> None:
    """Fill every block."""
    outputs = {
        "main": from_line(run("--pallas-suite=reference_kernels"), r"^=+ pallas =+$"),
        "softmax": softmax(),
        "matmul": command(
            "--pallas-backend=tpu-interpret:v6e", "--pallas-suite=reference_kernels", "-k matmul"
        ),
        "tpu": command("--pallas-backend=tpu") + "\n$ echo $?\n4",
        "downstream": from_line(run(folder=ROOT / "examples/downstream"), r"^=+ pallas =+$"),
    }
    text = README.read_text()
    for name, output in outputs.items():
        pattern = rf"(<!-- output: {name} -->\n```\w+\n).*?(```)"
        text, count = re.subn(
            pattern, lambda m, o=output: m[1] + o + "\n" + m[2], text, flags=re.DOTALL
        )
        assert count == 1, name
    README.write_text(text)


if __name__ == "__main__":
    main()
