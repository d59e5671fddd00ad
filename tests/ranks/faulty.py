"""Faults that are planted in one rank of an engine, at the edge of what it calls: a file says when."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from model.engine.messages import StartEngine

_FOLDER = "TEST_FAULTS"  # names a directory: a file RANK-PLACE in it lets the next call at that place fail there
SAID = "planted in this rank"


def faulty(folder: Path) -> dict[str, str]:
    """The environment of a server whose ranks have such places. They look into `folder`."""
    repo = Path(__file__).parents[2]
    (folder / "sitecustomize.py").write_text("from tests.ranks.faulty import install\n\ninstall()\n")
    return {"PYTHONPATH": f"{folder}:{repo}", _FOLDER: str(folder)}


def plant(folder: Path, rank: int, place: str, fault: str) -> None:
    """fault: "error", or the name of a signal that the rank sends itself."""
    (folder / f"{rank}-{place}").write_text(fault)


def install() -> None:
    """What every Python process runs before its own program: in an engine alone it does something."""
    if "engine" not in sys.orig_argv:
        return
    from model.engine import loop
    from model.engine.ranks import part
    from model.engine.runner import Runner
    from model.net.multimodal import MultimodalLM
    from model.ops.collectives import Ranks

    rank = [0]
    run = loop.run

    def begun(channel: Any, start: StartEngine, *rest: Any) -> None:
        rank[0] = start.rank
        run(channel, start, *rest)

    def failing(place: str, call: Any) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            file = Path(os.environ[_FOLDER], f"{rank[0]}-{place}")
            if file.exists():
                fault = file.read_text()
                file.unlink()
                if fault == "error":
                    raise AssertionError(SAID)
                os.kill(os.getpid(), signal.Signals[fault])
            return call(*args, **options)

        return called

    loop.run = begun  # type: ignore[assignment]
    part.load_ops = failing("load", part.load_ops)  # type: ignore[attr-defined]
    Runner.launch = failing("decode", Runner.launch)  # type: ignore[method-assign]
    MultimodalLM.encode = failing("encode", MultimodalLM.encode)  # type: ignore[method-assign]
    Ranks.all_reduce = failing("collective", Ranks.all_reduce)  # type: ignore[method-assign]
