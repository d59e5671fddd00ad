"""A server of four processes answers as one of one; a number that does not divide the model ends the start."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import RunningServer, data_url, picture, running, until
from tests.npu.families import write_family
from tests.ranks.test_answers import assert_alike

pytestmark = [pytest.mark.ranks, pytest.mark.network]
SHOWN: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 3, "ignore_eos": True}
PICTURES = [{"image": data_url(picture(90 + 40 * i, 120, seed=i))} for i in range(2)]
ASKED = {
    "text": [{"text": "one two three"}],
    "one picture": [PICTURES[0], {"text": "what is it?"}],
    "fewer pictures than ranks": [PICTURES[0], {"text": "and"}, PICTURES[1], {"text": "what are they?"}],
}


@pytest.fixture(scope="module")
def servers(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RunningServer]]:
    """Of a tiny Qwen2.5-VL, whose two heads of keys lie on two of four ranks each; by their number of ranks."""
    model = write_family("qwen2_5_vl", tmp_path_factory.mktemp("tiny"))
    with ExitStack() as kept:
        found = {}
        for n in (1, 4):
            root, logs = shm_root.with_name(f"{shm_root.name}-of-{n}"), tmp_path_factory.mktemp(f"of-{n}")
            flags = ["--tensor-parallel", str(n), "--workers", "1", "--max-model-len", "2048"]
            found[n] = kept.enter_context(running(model, root, logs, *flags, wait=False))
        for server in found.values():
            server.wait_ready(200)
        yield found


@pytest.mark.parametrize("name", ASKED)
def test_four_answer_as_one(servers: dict[int, RunningServer], name: str) -> None:
    one, four = (servers[n].chat(*ASKED[name], **SHOWN) for n in (1, 4))
    assert (one.status_code, four.status_code) == (200, 200), four.text
    assert_alike(one.json(), four.json())
    assert len(servers[4].children("engine")) == 4 and servers[4].metric('children_up{role="engine"}') == 4
    servers[4].assert_nothing_held()


def test_three_do_not_share_the_embedded_model(shm_root: Path, tmp_path: Path) -> None:
    """All of them find it out at once, and it is said once, with the numbers that work."""
    root = shm_root.with_name(f"{shm_root.name}-of-3")
    with running(None, root, tmp_path, "--tensor-parallel", "3", "--workers", "1", wait=False) as server:
        assert until("it ends", lambda: server.process.poll() is not None, 200)
        told = "config.json: 3 ranks do not share 2 heads of keys and values evenly (ranks that share all: 1, 2)"
        assert (server.out + server.err).count(told) == 1 and server.process.returncode == 1
        assert "Traceback" not in server.err and "ready" not in server.out
    assert not root.exists()
