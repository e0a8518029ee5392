"""``pytest-pallas`` and ``python -m pytest_pallas``: commands beside pytest."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pallas_sim.errors import OptionError
from pytest_pallas import __version__, barriers, examine, mcp_server, scaffold
from pytest_pallas.candidates import command as verify
from pytest_pallas.distribute import merge


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
      arguments: the words after the name of the program; by default those of this process.

    Returns:
      The exit status: that of the command, or 2 for arguments that cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="pytest-pallas", description="Tests for JAX Pallas kernels; run them with pytest."
    )
    parser.add_argument("--version", action="version", version=f"pytest-pallas {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (scaffold, merge, examine, barriers, verify, mcp_server):
        command.add_parser(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except OptionError as error:
        print(f"pytest-pallas: {error}", file=sys.stderr)  # noqa: T201
        return 2


if __name__ == "__main__":
    sys.exit(main())
