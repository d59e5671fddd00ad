"""A server whose model is split over two processes answers as one whose model is in one: both are short of memory."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import REPO, RunningServer, running

pytestmark = [pytest.mark.ranks, pytest.mark.network]
MEDIA = REPO / "examples" / "media"
KINDS = {"png": "image/png", "jpg": "image/jpeg", "mp4": "video/mp4", "wav": "audio/wav"}
GREEDY: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 3}
DRAWN = {"max_tokens": 10, "temperature": 0.8, "seed": 7, "n": 2, "logprobs": True, "repetition_penalty": 1.1}
COLOURS = {"type": "object", "required": ["colour"], "additionalProperties": False, "properties": {
    "colour": {"enum": ["red", "green", "blue"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99},
}}  # fmt: skip
FORMS = {
    "any object": {"type": "json_object"},
    "a schema": {"type": "json_schema", "json_schema": {"name": "colours", "schema": COLOURS}},
}
CHUNK, ROOM = 64, 1536  # tokens of a step, and of the cache
FLAGS = (
    "--dtype", "float32", "--workers", "1", "--kv-cache-mib", "3", "--max-model-len", "1024",
    "--max-batched-tokens", str(CHUNK), "--max-encoder-tokens", "1024",
)  # fmt: skip


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
            found[n] = kept.enter_context(running(None, root, logs, "--tensor-parallel", str(n), *FLAGS, wait=False))
        for server in found.values():
            server.wait_ready()
        yield found


def answer(server: RunningServer, name: str) -> Any:
    inputs, parameters = ASKED[name]
    found = server.chat(*inputs, **parameters)
    assert found.status_code == 200, found.text
    return found.json()


def posted(server: RunningServer, route: str, body: dict[str, Any]) -> Any:
    found = server.http.post(route, json=body)
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


def test_prompts_are_scored_part_by_part(servers: dict[int, RunningServer]) -> None:
    """Echoed with their log-probabilities: one of several chunks, and one of a few tokens beside it."""
    body = {"prompt": ["seven of " * 90, "red, green"], "echo": True, "logprobs": 2, "max_tokens": 3, "temperature": 0}
    one, two = (posted(servers[n], "/v1/completions", body) for n in (1, 2))
    assert_alike(one, two)
    scored = [choice["logprobs"]["token_logprobs"] for choice in two["choices"]]
    assert len(scored[0]) > 2 * CHUNK > len(scored[1]) > 4
    assert [logprobs[0] for logprobs in scored] == [None, None] and all(p < 0 for p in scored[0][1:])


def test_who_gave_up_its_cache_gets_the_same_answer(servers: dict[int, RunningServer]) -> None:
    """Six prompts that fit together, whose answers do not; one of them has a picture, one has two answers."""
    asked: list[tuple[list[dict[str, str]], dict[str, Any]]] = [
        ([{"text": f"{i} " + "one two three " * (ROOM // 6 // 4)}], {**GREEDY, "max_tokens": 60, "ignore_eos": True})
        for i in range(6)
    ]
    asked[1][0].insert(0, medium("image", "shapes.png"))
    asked[2][1].update(n=2, temperature=0.7, seed=3)
    expected = [servers[1].chat(*inputs, **parameters).json() for inputs, parameters in asked]
    before = servers[2].metric("num_preemptions_total")
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda one: servers[2].chat(*one[0], **one[1]).json(), asked))
    assert servers[2].metric("num_preemptions_total") > before
    for one, two in zip(expected, found, strict=True):
        assert_alike(one, two)
    servers[2].assert_nothing_held()


def test_what_caches_keep_is_found_again(servers: dict[int, RunningServer]) -> None:
    """A prompt that comes twice, and a picture behind other words: both counted alike, and answered alike."""
    cat, said = medium("image", "number.png"), [[], [], [{"text": "Now, what about this one: "}]]
    words = ("prefix_cache_hits_total", "mm_cache_hits_total", 'engine_step_seconds_count{stage="encode"}')
    seen = dict[int, list[Any]]()
    for n, server in servers.items():
        seen[n] = []
        for before in said:
            counted = [server.metric(word) for word in words]
            found = server.chat(*before, cat, {"text": "Which number is it, in one word?"}, **GREEDY).json()
            more = [server.metric(word) - was for word, was in zip(words, counted, strict=True)]
            seen[n].append((found, more))
    for (one, counted_one), (two, counted_two) in zip(seen[1], seen[2], strict=True):
        assert_alike(one, two)
        assert counted_one == counted_two
    _, (_, again), (_, elsewhere) = seen[2]
    assert again[0] > 0 and again[2] == 0, "from the cache of the prompt"
    assert elsewhere[1:] == [1, 0], "its embeddings alone"


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_held(servers: dict[int, RunningServer], name: str) -> None:
    body = {
        "messages": [{"role": "user", "content": "Give me a colour."}], "max_tokens": 40, "temperature": 0,
        "response_format": FORMS[name],
    }  # fmt: skip
    one, two = (posted(servers[n], "/v1/chat/completions", body)["choices"][0]["message"]["content"] for n in (1, 2))
    assert one == two and one.lstrip().startswith("{")
    if name == "a schema":
        assert json.loads(two)["colour"] in ("red", "green", "blue")


def test_a_client_may_leave(servers: dict[int, RunningServer]) -> None:
    inputs = [{"text": "Hi"}]
    with servers[2].http.stream(
        "POST", "/chat", json={"inputs": inputs, "parameters": {"max_tokens": 900, "ignore_eos": True}, "stream": True}
    ) as stream:
        next(stream.iter_text())
    servers[2].assert_nothing_held()
    assert_alike(answer(servers[1], "text"), answer(servers[2], "text"))


def test_embeddings_are_those_of_one_process_whoever_made_them(
    servers: dict[int, RunningServer], shm_root: Path, tmp_path: Path
) -> None:
    """Where every rank makes all of them."""
    root = shm_root.with_name(f"{shm_root.name}-ranks-replicated")
    with running(None, root, tmp_path, "--tensor-parallel", "2", "--encoder-parallel", "replicated", *FLAGS) as server:
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
