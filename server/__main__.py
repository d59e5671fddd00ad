"""`pixelferry`, or `python -m server`: the subcommands. `serve` runs the server, `models` lists what can be served."""

import logging
import sys

import uvloop

from configs.checkpoint import CheckpointError
from configs.settings import load_config
from configs.table import SettingsError
from configs.version import version
from model.registry import architectures
from server.children.supervisor import StartFailed
from server.defaults import with_own_pixels
from server.requests.model_card import read_model_card
from server.run import serve
from shm import OwnerError, default_root

USAGE = """usage: pixelferry COMMAND

  serve    serve one checkpoint over HTTP (serve --help lists its settings)
  models   list the architectures that can be served

  --version   print the version of Pixelferry
"""


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; its exit code: 0 good, 1 could not start or failed, 2 wrong usage."""
    args = sys.argv[1:] if argv is None else argv
    command, rest = (args[0], args[1:]) if args else ("", [])
    if command == "serve":
        return run_server(rest)
    if command == "models" and not rest:
        print("\n".join(architectures()))
        return 0
    if command == "--version" and not rest:
        print(f"pixelferry {version()}")
        return 0
    asked_for = command in ("-h", "--help", "help")
    print(USAGE, end="", file=sys.stdout if asked_for else sys.stderr)
    return 0 if asked_for else 2


def run_server(argv: list[str]) -> int:
    """`serve`: everything that a user can put right is one line on stderr."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        config = load_config(argv)
    except SettingsError as error:
        return complain(error, 2)
    try:
        config = with_own_pixels(config)
        uvloop.run(serve(config, read_model_card(config), config.shm.root or default_root()))
    except (CheckpointError, OwnerError, StartFailed) as error:
        return complain(error, 1)
    return 0


def complain(error: object, code: int) -> int:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
