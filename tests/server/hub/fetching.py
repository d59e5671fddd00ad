"""A process that fetches a model as `pixelferry serve` does before it serves; the libraries read its environment."""

import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
PROGRAM = """
import logging, sys
from server import commands as program
from configs.settings import load_config
async def serve(config, card, root, lines_dropped, sock):
    model = config.model
    print(model.path, model.wanted, model.served_name, card.name, "torch" in sys.modules, sep="\\n")
program.serve = serve
sys.exit(program.main(["serve", "--port", "0", "--model", *sys.argv[1:]]))
"""


def fetch(url: str, cache: Path, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The outcome: path, what was wanted, both names and whether torch is there on stdout, or an error on stderr."""
    env = {name: text for name, text in os.environ.items() if not name.startswith(("HF_", "MODELSCOPE_"))}
    env |= {"HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1"}
    env |= {"MODELSCOPE_ENDPOINT": url, "MODELSCOPE_CACHE": str(cache), "MODELSCOPE_HOME": str(cache / "home")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *args],
        cwd=REPO, env={**env, **variables}, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that it ended with."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0].removeprefix("error: ")


def files_under(root: Path) -> set[str]:
    """The files and links below a directory, by their paths in it."""
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}
