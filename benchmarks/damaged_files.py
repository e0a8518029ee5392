"""Damaged and hostile files: 20,000 examples, goldens, results, journals and costs are read.

    python benchmarks/damaged_files.py [--files N]

Each is a right file with values of its JSON or bytes changed: pickles, names of modules, paths out
of the folder, 200,000 levels, 1e400, halves of characters, what a terminal obeys. A file is
accepted, or refused in one line; whatever else happens ends the run, with the kind and the number
of the file. Nothing may be executed or imported, and nothing written elsewhere: an audit hook sees
that.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from pallas_test_support.hostile_files import run


def main() -> None:
    """Read the files, and print how many were refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        began = time.perf_counter()
        found = run(Path(folder).resolve(), given.files)
        seconds = time.perf_counter() - began
    print("kind      accepted  refused")
    for kind, (accepted, refused) in found.items():
        print(f"{kind:<8}  {accepted:>8,}  {refused:>7,}")
    print(f"{given.files:,} files in {seconds:.0f} s")


if __name__ == "__main__":
    main()
