"""``python -m handfast``: looks at machines, errors and nodes, as the program ``handfast`` does, and
shell variables for programs that import ``mooncake.engine``."""

from __future__ import annotations

import argparse
import os
import pathlib
import shlex
import signal
import sys

import handfast
from handfast import _handfast

OVERLAY = str(pathlib.Path(handfast.__file__).parent / "_overlay")


def paths(undo: bool) -> list[str]:
    """Return PYTHONPATH with the overlay in front, or without it."""
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    others = [path for path in known if path != OVERLAY]
    return others if undo else [OVERLAY, *others]


#: Commands of the program ``handfast``, with its options and exit codes.
TOOLS = {
    "doctor": "find obstacles to transfers on this machine, or between it and another",
    "explain": "explain an error: its meaning, the side at fault and the remedy",
    "top": "show the traffic of a node, peer by peer",
}


def main() -> None:
    if sys.argv[1:] and sys.argv[1] in TOOLS:
        # Ends the process at once, as it ends the program.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit(_handfast.run_tool(sys.argv[1:]))
    parser = argparse.ArgumentParser(prog="python -m handfast")
    commands = parser.add_subparsers(dest="command", required=True)
    for tool, help in TOOLS.items():
        commands.add_parser(tool, help=help, add_help=False)
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
