"""A server whose model is split over two processes answers as one whose model is in one."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import REPO, RunningServer, running

pytestmark = pytest.mark.ranks
MEDIA = REPO / "examples" / "media"
KINDS = {"png": "image/png", "jpg": "image/jpeg", "mp4": "video/mp4", "wav": "audio/wav"}
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 3}
DRAWN = {"max_tokens": 10, "temperature": 0.8, "seed": 7, "n": 2, "logprobs": True, "repetition_penalty": 1.1}
FORM = {
    "messages": [{"role": "user", "content": "Give me JSON."}], "max_tokens": 24, "temperature": 0,
    "response_format": {"type": "json_object"},
}  # fmt: skip


def medium(kind: str, name: str) -> dict[str, str]:
    file = MEDIA / name
    content = base64.b64encode(file.read_bytes()).decode()
    return {kind: f"data:{KINDS[file.suffix[1:]]};base64,{content}"}


ASKED: dict[str, tuple[list[dict[str, str]], dict[str, Any]]] = {
    "text": ([{"text": "What is 2 + 3?"}], GREEDY),
    "image": ([medium("image", "shapes.png"), {"text": "Which shapes are there?"}], GREEDY),
    "large image": ([medium("image", "ferry.jpg"), {"text": "What is in it?"}], GREEDY),
    "video": ([medium("video", "moving-right.mp4"), {"text": "What moves?"}], GREEDY),
    "audio": ([medium("audio", "three-beeps.wav"), {"text": "How many beeps do you hear?"}], GREEDY),
    "several": ([medium("image", "red-circle.png"), medium("image", "number.png"), {"text": "What are they?"}], GREEDY),
    "videos": (
        [medium("video", "moving-right.mp4"), medium("video", "moving-left-two-beeps.mp4"), {"text": "And?"}],
        GREEDY,
    ),
    "two answers": ([medium("image", "red-circle.png"), {"text": "Say something."}], DRAWN),
    "long": ([{"text": "one two three four " * 120}], GREEDY),
}


@pytest.fixture(scope="module")
def servers(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RunningServer]]:
    """By their number of ranks."""
    with ExitStack() as kept:
        found = {}
        for n in (1, 2):
            root, logs = shm_root.with_name(f"{shm_root.name}-ranks-{n}"), tmp_path_factory.mktemp(f"ranks-{n}")
            flags = ["--tensor-parallel", str(n), "--dtype", "float32", "--workers", "1"]
            found[n] = kept.enter_context(running(None, root, logs, *flags, wait=False))
        for server in found.values():
            server.wait_ready()
        yield found


def answer(server: RunningServer, name: str) -> Any:
    inputs, parameters = ASKED[name]
    found = server.chat(*inputs, **parameters)
    assert found.status_code == 200, found.text
    return found.json()


def assert_alike(one: Any, two: Any) -> None:
    """Texts and tokens are the same, log-probabilities nearly: sums of parts are rounded elsewhere."""
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one.keys() - {"id", "created", "usage", "seconds"}:
            assert_alike(one[key], two[key])
    elif isinstance(one, list):
        assert len(one) == len(two)
        for mine, theirs in zip(one, two, strict=True):
            assert_alike(mine, theirs)
    elif isinstance(one, float):
        assert one == pytest.approx(two, abs=1e-3)
    else:
        assert one == two


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_that_of_one_process(servers: dict[int, RunningServer], name: str) -> None:
    one, two = (answer(servers[n], name) for n in (1, 2))
    assert_alike(one, two)
    for server in servers.values():
        server.assert_nothing_held()


def test_answers_beside_each_other_are_those_of_one_process(servers: dict[int, RunningServer]) -> None:
    """All at once, three times: mixed batches, chunks of prompts, embeddings that are there already."""
    expected = {name: answer(servers[1], name) for name in ASKED}
    with ThreadPoolExecutor(len(ASKED)) as pool:
        for _ in range(3):
            for name, found in zip(ASKED, pool.map(lambda name: answer(servers[2], name), ASKED), strict=True):
                assert_alike(expected[name], found)
    servers[2].assert_nothing_held()


def test_a_form_is_held_and_a_client_may_leave(servers: dict[int, RunningServer]) -> None:
    found = [servers[n].http.post("/v1/chat/completions", json=FORM).json() for n in (1, 2)]
    one, two = (body["choices"][0]["message"]["content"] for body in found)
    assert one == two and one.lstrip().startswith("{")
    inputs = [{"text": "Hi"}]
    with servers[2].http.stream(
        "POST", "/chat", json={"inputs": inputs, "parameters": {"max_tokens": 3000, "ignore_eos": True}, "stream": True}
    ) as stream:
        next(stream.iter_text())
    servers[2].assert_nothing_held()
    assert_alike(answer(servers[1], "text"), answer(servers[2], "text"))


def test_embeddings_are_those_of_one_process_whoever_made_them(
    servers: dict[int, RunningServer], shm_root: Path, tmp_path: Path
) -> None:
    """Where every rank makes all of them."""
    root = shm_root.with_name(f"{shm_root.name}-ranks-replicated")
    flags = ["--tensor-parallel", "2", "--encoder-parallel", "replicated", "--dtype", "float32", "--workers", "1"]
    with running(None, root, tmp_path, *flags) as server:
        for name in ("several", "audio"):
            assert_alike(answer(servers[1], name), answer(server, name))


def test_both_ranks_are_shown_and_ready(servers: dict[int, RunningServer]) -> None:
    server = servers[2]
    assert len(server.children("engine")) == 2
    assert "2 ranks from cpu on" in server.out and "2 processes, each with a part of the model, " in server.out
    assert "--tensor-parallel" not in servers[1].out
    for index in (0, 1):
        assert server.metric(f'child_state{{index="{index}",role="engine",state="up"}}') == 1
    assert server.metric('children_up{role="engine"}') == server.metric('children{role="engine"}') == 2
    assert "MiB of --embedding-mib" in server.out and "--embedding-mib / 2" in server.out
