"""`pixelferry`, or `python -m pixelferry`: the rooms come first on this process's path, then `server` runs."""

import sys

from pixelferry import ROOT


def main() -> int:
    """The exit code of the subcommand. What else is installed under a room's name is not ours, and comes behind."""
    sys.path.insert(0, str(ROOT))
    from server.__main__ import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
