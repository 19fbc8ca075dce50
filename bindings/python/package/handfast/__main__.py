"""``python -m handfast``: shell variables for programs that import ``mooncake.engine``."""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex

import handfast

OVERLAY = str(pathlib.Path(handfast.__file__).parent / "_overlay")


def paths(undo: bool) -> list[str]:
    """Return PYTHONPATH with the overlay in front, or without it."""
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    others = [path for path in known if path != OVERLAY]
    return others if undo else [OVERLAY, *others]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m handfast")
    commands = parser.add_subparsers(dest="command", required=True)
    environment = commands.add_parser(
        "mooncake-env",
        help="print the variables under which mooncake.engine is handfast's",
        description='Use: eval "$(python -m handfast mooncake-env)"',
    )
    environment.add_argument("--undo", action="store_true", help="print them without handfast")
    commands.add_parser("topology", help="print the RDMA devices near each memory, as JSON")
    commands.add_parser("version", help="print the version")
    arguments = parser.parse_args()
    if arguments.command == "mooncake-env":
        value = os.pathsep.join(paths(arguments.undo))
        print(f"export PYTHONPATH={shlex.quote(value)}" if value else "unset PYTHONPATH")
    elif arguments.command == "topology":
        print(handfast.topology())
    else:
        print(handfast.__version__)


if __name__ == "__main__":
    main()
