"""How pytest-xdist shares the files of tests out: those that use one running server go to one process together."""

from importlib import import_module
from typing import Any

import pytest

E2E = "tests/e2e/"
APART = f"{E2E}test_layouts.py"  # a server for each test: none is shared
# Where servers of session scope are asked for: by the file's name, the server that most of its tests use.
SERVERS = {
    **dict.fromkeys(("test_audio.py", "test_audio_refused.py", "test_families.py", "test_parity.py"), "omni"),
    **dict.fromkeys(
        ("test_chat.py", "test_errors.py", "test_grounding.py", "test_sampling.py", "test_process_maps.py"), "server"
    ),
    **dict.fromkeys(
        ("test_agents.py", "test_completions.py", "test_container.py", "test_logs.py", "test_streams.py"), "server"
    ),
    **dict.fromkeys(
        ("test_hostile_bodies.py", "test_loadtest.py", "test_proxy.py", "test_surface.py", "test_video.py"), "server"
    ),
}


def scheduling(config: pytest.Config, log: Any) -> Any:
    """What `--dist loadfile` does, but files of one server count as one, and all begin in the order of collection.

    xdist's own order is by the number of tests, and a file of few tests may be the longest. Its groups (`--dist
    loadgroup`) do nothing under pytest 9.2, where a plugin cannot change a node id any more.
    """
    config.option.loadscopereorder = False
    found = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    found._split_scope = group_of
    return found


def group_of(nodeid: str) -> str:
    """The name of a shared server, or a file, or one test of a file whose tests share nothing."""
    path = nodeid.partition("::")[0]
    if path == APART:
        return nodeid
    return SERVERS.get(path.removeprefix(E2E), path)


def put_long_first(items: list[pytest.Item]) -> None:
    """Move tests of running servers to the front: the longest files must not begin when all else is done."""
    items.sort(key=lambda item: not item.nodeid.startswith(E2E))
