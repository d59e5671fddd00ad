"""The subcommands of `pixelferry`: a server, what it can serve, tests of a machine and of load."""

import json
import logging
import os
import signal
import sys
from functools import partial

import uvloop

from configs.checkpoint import CheckpointError
from configs.logs import LogConfig
from configs.nearest import FlagParser, did_you_mean
from configs.serve import ServeConfig
from configs.setting import SettingsError
from configs.settings import load_config
from configs.version import build, version
from server import model_table
from server.children.parent_watch import watch_parent
from server.children.supervisor import StartFailed
from server.defaults import with_own_pixels
from server.doctor.command import doctor, look
from server.http.health import DownloadProgress
from server.hub.client import HubError
from server.hub.fetch import with_checkpoint
from server.listening import listen
from server.logs.setup import complain, set_up
from server.logs.stderr import queued_stderr
from server.plan import plan
from server.requests.model_card import ModelCard, read_model_card
from server.run import serve, while_downloading
from server.selftest.command import selftest
from shm import OwnerError, default_root, private_root

log = logging.getLogger("pixelferry")

USAGE = """usage: pixelferry COMMAND

  serve     serve one checkpoint over HTTP (serve --help lists its settings)
  models    list the architectures that can be served, by config.json's first entry of "architectures", and the
            families that serve them: what each takes, and on which devices (models --help)
  plan      say what a model needs on 1, 2, 4 and 8 devices, without its weights and without a device (plan --help)
  selftest  try a device without a model: right or wrong, how fast, a file to send back (selftest --help)
  loadtest  send requests to a server and measure its answers (loadtest --help lists its flags)
  openapi   print the OpenAPI document of the routes of `serve`, without a server
  doctor    say what this machine lacks for `serve` with the same settings (doctor --help)

  --version   print the version of Pixelferry
"""
_MODELS = (
    'List the architectures that can be served, by config.json\'s first entry of "architectures", and the families '
    "that serve them: what each takes, and on which devices."
)
_OPENAPI = "Print the OpenAPI document of the routes of `serve`, without a server and without a model."
COMMANDS = ("serve", "models", "plan", "selftest", "loadtest", "openapi", "doctor")


def main(args: list[str]) -> int:
    """Run one subcommand; its exit code: 0 good, 1 could not start or failed, 2 wrong usage."""
    command, rest = (args[0], args[1:]) if args else ("", [])
    if command == "serve":
        return run_server(rest)
    if command == "selftest":
        return selftest(rest, look)
    if command == "loadtest":
        from server.loadtest.command import loadtest  # it draws pictures; the process that serves must not

        return loadtest(rest)
    if command == "doctor":
        return doctor(rest)
    if command == "plan":
        return plan(rest)
    if command == "models":
        return models(rest)
    if command == "openapi":
        FlagParser(prog="pixelferry openapi", description=_OPENAPI, allow_abbrev=False).parse_args(rest)
        from server.http.openapi.document import openapi_document  # as add_document_routes: no start waits for it

        return listed(json.dumps(openapi_document(version()), indent=2, ensure_ascii=False))
    if command == "--version" and not rest:
        print(f"pixelferry {build()}")
        return 0
    asked_for = command in ("-h", "--help", "help")
    print(USAGE, end="", file=sys.stdout if asked_for else sys.stderr)
    if command not in ("", "--version") and not asked_for:
        print(f"\nerror: {meant(command)}", file=sys.stderr)
    return 0 if asked_for else 2


def models(argv: list[str]) -> int:
    """`models`: as text, or as JSON for programs."""
    parser = FlagParser(prog="pixelferry models", description=_MODELS, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with a row for each medium")
    return listed(model_table.as_json() if parser.parse_args(argv).json else model_table.as_text())


def listed(text: str) -> int:
    """Print what a command answers; its exit code. Whoever reads no further, as `head`, has what it wanted."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        with open(os.devnull, "w") as nobody:  # Python writes once more when it ends
            os.dup2(nobody.fileno(), sys.stdout.fileno())
    return 0


def meant(word: str) -> str:
    """What to type instead of a first word that is no command. Of a flag with a value its name alone is shown."""
    if word.startswith("-"):
        return f"a command comes first, as in `pixelferry serve {word.partition('=')[0]}`"
    if "/" in word:
        return f"to serve a model, type `pixelferry serve {word}`"
    return f"there is no command {word!r}{did_you_mean(word, COMMANDS)}"


def run_server(argv: list[str]) -> int:
    """`serve`: everything that a user can put right is one line on stderr."""
    try:
        config = load_config(argv)
    except SettingsError as error:
        complain(error, LogConfig())
        return 2
    with queued_stderr() as stderr:
        set_up(config.log, "server")
        try:
            if config.parent_descriptor is not None:
                watch_parent(config.parent_descriptor)
            root = default_root() if config.shm.root is None else private_root(config.shm.root)
            read, sock = partial(with_model, config), None
            if config.model.wanted is None:
                config, card = read(DownloadProgress())
            else:
                sock = listen(config.http.host, config.http.port)
                config, card = uvloop.run(while_downloading(config, sock, read))
            uvloop.run(serve(config, card, root, lambda: stderr.dropped, sock))
        except (CheckpointError, HubError, OwnerError, StartFailed) as error:
            complain(error, config.log)
            return 1
        except (KeyboardInterrupt, SystemExit) as ended:  # before the server decides itself what a signal means
            number = signal.SIGINT if isinstance(ended, KeyboardInterrupt) else signal.SIGTERM
            if config.model.wanted is None:
                return 128 + number
            log.info("interrupted: the next start goes on with what is missing of %s", config.model.wanted)
        else:
            return 0
    # An exit would wait for threads of a hub's client, and these for their files.
    os._exit(128 + number)


def with_model(config: ServeConfig, progress: DownloadProgress) -> tuple[ServeConfig, ModelCard]:
    """What is served, downloaded where it is named on a hub. Raises CheckpointError, HubError."""
    config = with_own_pixels(with_checkpoint(config, progress))
    return config, read_model_card(config)
