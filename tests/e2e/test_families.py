"""Families of the registry behind a running server: both routes, streams, what it lacks by name, nothing left.

Not all: of qwen2_5_vl, qwen2_audio and llava each part is another's, and tests/e2e/test_layouts.py serves them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from model.registry import families
from tests.e2e.audio_chats import IMAGE, SILENT, SOUND, refused
from tests.e2e.running import RunningServer, running
from tests.e2e.saying import BROKEN, SAID, Saying, read, read_stream, said
from tests.e2e.test_chat import events
from tests.layouts.templates import DATED_SYSTEM
from tests.tiny.families import NAMES, WRITERS
from tests.tiny.mistral3 import write_mistral3
from tests.tiny.said import made_to_say
from tokenization.chat.parts import Kind

pytestmark = pytest.mark.process

MEDIA: dict[Kind, dict[str, Any]] = {"image": IMAGE, "video": SILENT, "audio": SOUND}
GREEDY: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
QUESTION = {"text": "What is it?"}
# Servers that run for other tests, too.
SHARED = {"qwen2_vl": "server", "qwen2_5_omni": "omni_server", "mistral3": "mistral_server"}
NATIVE, OPENAI = "/chat", "/v1/chat/completions"


@pytest.fixture(scope="module")
def mistral(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saying]:
    """A checkpoint of mistral3 made to call tools in its family's form, whose mark is a special token."""
    folder = tmp_path_factory.mktemp("mistral")
    model, template = folder / "said", folder / "tools.jinja"
    texts = [*(said("mistral", *one) for one in SAID), BROKEN]
    first = made_to_say(write_mistral3(model), texts, "</s>", ["[TOOL_CALLS]"])
    template.write_text("{% if tools %}{{ tools | tojson }}{% endif %}" + DATED_SYSTEM)
    root = shm_root.with_name(f"{shm_root.name}-mistral3")
    with running(model, root, folder / "logs", "--workers", "1", "--chat-template", str(template)) as server:
        one = Saying(server, first)
        with one.client:
            yield one
    assert not root.exists()


@pytest.fixture
def mistral_server(mistral: Saying) -> RunningServer:
    return mistral.server


@contextmanager
def server_of(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    """A server of its tiny checkpoint, of whose root nothing is left in the end."""
    if name in SHARED:
        yield request.getfixturevalue(SHARED[name])
        return
    root: Path = request.getfixturevalue("shm_root")
    own = root.with_name(f"{root.name}-{name}")
    with running(WRITERS[name](tmp_path / name), own, tmp_path / "logs", "--workers", "1") as server:
        yield server
    assert not own.exists()


def parts_of(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts of the native list as OpenAI's clients write them."""
    found: list[dict[str, Any]] = []
    for part in parts:
        (kind, value), *options = part.items()
        medium = {f"{kind}_url": {"url": value, **dict(options)}}
        found.append({"type": "text", **part} if kind == "text" else {"type": f"{kind}_url", **medium})
    return found


def body_of(route: str, parts: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The same chat as each route spells it."""
    if route == NATIVE:
        return {"inputs": parts, "parameters": GREEDY, **fields}
    return {"messages": [{"role": "user", "content": parts_of(parts)}], **GREEDY, **fields}


def answer_of(server: RunningServer, route: str, parts: list[dict[str, Any]]) -> tuple[str, int]:
    """Text of the answer, which is the same streamed, and tokens of the prompt."""
    answer = server.http.post(route, json=body_of(route, parts))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    streamed = events(server.http.post(route, json=body_of(route, parts, stream=True)))
    if route == NATIVE:
        text, pieces = body["text"], [event.get("text") or "" for event in streamed]
    else:
        text = body["choices"][0]["message"]["content"]
        pieces = [choice["delta"].get("content") or "" for event in streamed for choice in event["choices"]]
    assert "".join(pieces) == text and len(streamed) > 1
    assert body["usage"]["completion_tokens"] == GREEDY["max_tokens"]
    return text, body["usage"]["prompt_tokens"]


SERVED = [name for name in NAMES if name not in ("qwen2_5_vl", "qwen2_audio", "llava")]  # others' tests serve those


@pytest.mark.parametrize(
    "name", [name if name == "mistral3" else pytest.param(name, marks=pytest.mark.matrix) for name in SERVED]
)
def test_a_family_behind_a_server(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (family,) = (family for family, _ in families() if family.name == name)
    with server_of(name, request, tmp_path) as server:
        card = server.http.get("/v1/models").json()["data"][0]["architecture"]
        assert card == {"family": name, "input_modalities": ["text", *sorted(family.modalities)]}
        lengths = []
        for parts in ([QUESTION], *([MEDIA[kind], QUESTION] for kind in family.modalities)):
            native, openai = (answer_of(server, route, parts) for route in (NATIVE, OPENAI))
            assert native == openai
            lengths.append(native[1])
        assert all(n > lengths[0] for n in lengths[1:]), "each medium has tokens"
        for kind in sorted(MEDIA.keys() - family.modalities.keys()):
            words, code = f"does not take {kind} (it takes text", "unsupported_modality"
            parts = [QUESTION, MEDIA[kind]]
            for more in ({}, {"stream": True}):
                refused(server.http.post(NATIVE, json=body_of(NATIVE, parts, **more)), f"inputs[1].{kind}", words, code)
                answer = server.http.post(OPENAI, json=body_of(OPENAI, parts, **more))
                refused(answer, "messages[0].content[1]", words, code)
        for kind, modality in family.modalities.items():
            if modality.most is not None:
                parts = [*[MEDIA[kind]] * (modality.most + 1), QUESTION]
                words = f"this model takes at most {modality.most}"
                refused(server.http.post(NATIVE, json=body_of(NATIVE, parts)), f"inputs[{modality.most}].{kind}", words)
        server.assert_nothing_held()


def test_calls_are_read_in_the_familys_own_form(mistral: Saying) -> None:
    """Words, calls, and what would be a call in the other form; tests/e2e/test_tools.py asks the rest of that one."""
    for i, (words, calls) in enumerate(SAID):
        expected = (words or None, calls, "tool_calls" if calls else "stop")
        assert read(mistral, i) == read_stream(mistral, i) == expected
    assert read(mistral, len(SAID)) == (BROKEN, [], "stop")
