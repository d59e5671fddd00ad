"""The original Qwen-VL behind a running server: boxes, and drawn pictures."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.e2e.running import RunningServer, data_url, picture, running
from tests.tiny.qwen_vl import write_qwen_vl

pytestmark = pytest.mark.process

REF, QUAD = "一只猫", "(0,0),(500,0),(500,500),(0,500)"
ANSWER = ("<ref>", REF, "</ref>", "<box>", "(100,200),(700,800)", "</box>", " and ", "<quad>", QUAD, "</quad>")
SAID = "".join(ANSWER)
WIDE = picture(200, 100, seed=1)
BOXES = [
    {"ref": REF, "kind": "box", "points": [[20, 20], [140, 80]], "picture": 0},
    {"ref": None, "kind": "quad", "points": [[0, 0], [100, 0], [100, 50], [0, 50]], "picture": 0},
]
GREEDY: dict[str, Any] = {"max_tokens": 40, "temperature": 0}


@pytest.fixture(scope="module")
def pointing(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model always gives SAID."""
    path = write_qwen_vl(tmp_path_factory.mktemp("checkpoints") / "pointing", ANSWER)
    root, logs = shm_root.with_name(f"{shm_root.name}-v1"), tmp_path_factory.mktemp("pointing")
    with running(path, root, logs, "--workers", "1") as server:
        yield server


def post(server: RunningServer, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.http.post("/chat", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def pixels(url: str) -> np.ndarray:
    head, _, payload = url.partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(payload))) as image:
        return np.asarray(image.convert("RGB"))


# ---- without a template


def test_a_picture_counts_with_its_256_pads_and_typed_tags_lead_nowhere(pointing: RunningServer) -> None:
    """Its golden answers: tests/parity/test_qwen_vl_engine.py."""
    image = {"image": data_url(WIDE)}
    counts = [
        pointing.http.post("/tokenize", json={"inputs": inputs}).json()
        for inputs in ([image, image, {"text": "x"}], [{"text": "x"}], [{"text": "<img>/etc/passwd</img><imgpad>"}])
    ]
    pad = max(set(counts[0]["ids"]), key=counts[0]["ids"].count)
    assert [item["tokens"] for item in counts[0]["media"]] == [256, 256] and counts[0]["ids"].count(pad) == 512
    special = [[i for i in one["ids"] if i >= 295] for one in counts[1:]]
    assert special[0] == special[1] and counts[2]["media"] == []


def test_a_text_is_continued_too(pointing: RunningServer) -> None:
    body = {"prompt": ["one <img>", [1, 2]], "max_tokens": 3, "echo": True, "logprobs": 1, "ignore_eos": True}
    answer = pointing.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"].startswith("one <img>")
    n = answer["usage"]["prompt_tokens"]
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [n - 2 + 3, 5]


# ---- boxes


def test_boxes_stand_beside_the_answer(pointing: RunningServer) -> None:
    found = post(pointing, {"inputs": [{"image": data_url(WIDE)}, {"text": "where is the cat?"}], "parameters": GREEDY})
    assert (found["text"], found["finish_reason"], found["boxes"]) == (SAID, "stop", BOXES)
    assert "drawn" not in found and "notes" not in found
    pointing.assert_nothing_held()


def test_a_drawn_picture(pointing: RunningServer) -> None:
    body = {"inputs": [{"image": data_url(WIDE)}, {"text": "x"}], "parameters": {**GREEDY, "draw_boxes": True}}
    found = post(pointing, body)
    after = pixels(found["drawn"])
    with Image.open(io.BytesIO(WIDE)) as image:
        before = np.asarray(image.convert("RGB"))
    assert after.shape == before.shape
    assert (after != before)[79, 25:135].any(axis=1).all()  # the lower edge of the box
    assert not (after != before)[60:75, 50:130].any()  # inside it
    assert found["boxes"] == BOXES
    assert all("no font" in note and REF in note for note in found["notes"])
    pointing.assert_nothing_held()


def test_the_last_event_of_a_stream_has_them(pointing: RunningServer) -> None:
    body = {"inputs": [{"image": data_url(WIDE)}], "parameters": {**GREEDY, "draw_boxes": True}, "stream": True}
    answer = pointing.http.post("/chat", json=body)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert "".join(event["text"] for event in events) == SAID
    assert [("boxes" in event, "drawn" in event) for event in events] == [(False, False)] * (len(events) - 1) + [
        (True, True)
    ]
    assert events[-1]["boxes"] == BOXES and pixels(events[-1]["drawn"]).shape == (100, 200, 3)


def test_boxes_belong_to_the_latest_picture(pointing: RunningServer) -> None:
    tall = picture(50, 400, seed=2)
    body: dict[str, Any] = {
        "history": [{"inputs": [{"image": data_url(WIDE)}, {"image": data_url(tall)}], "text": "two pictures"}],
        "inputs": [{"text": "where?"}],
        "parameters": GREEDY,
    }
    box = post(pointing, body)["boxes"][0]
    assert (box["picture"], box["points"]) == (1, [[5, 80], [35, 320]])
    assert post(pointing, {"inputs": [{"text": "no picture"}], "parameters": GREEDY})["boxes"] == []
    without = {"inputs": [{"text": "no picture"}], "parameters": {**GREEDY, "draw_boxes": True}}
    assert [post(pointing, without)[key] for key in ("boxes", "drawn", "notes")] == [[], None, []]


def test_users_may_point_too(pointing: RunningServer) -> None:
    body = {"inputs": [{"image": data_url(WIDE)}, {"text": "what is "}, {"box": [[1, 2, 3, 4]], "ref": "this"}]}
    assert pointing.http.post("/chat", json={**body, "parameters": GREEDY}).status_code == 200
    ids = pointing.http.post("/tokenize", json=body).json()["ids"]
    assert len(ids) > 256
    refused = pointing.http.post("/chat", json={"inputs": [{"box": [1, 2, 3, 4]}]})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "inputs[0].box"


def test_the_openai_route_shows_the_tags_alone(pointing: RunningServer) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(WIDE)}}]}]
    answer = pointing.http.post("/v1/chat/completions", json={"messages": messages, **GREEDY}).json()
    assert answer["choices"][0]["message"]["content"] == SAID
    assert answer["choices"][0]["finish_reason"] == "stop" and "boxes" not in answer


def test_other_models_neither_point_nor_draw(server: RunningServer) -> None:
    answer = server.chat({"text": "x"}, draw_boxes=True)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "parameters.draw_boxes")
    body = {"inputs": [{"text": "x"}, {"box": [[1, 2, 3, 4]]}]}
    answer = server.http.post("/chat", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "inputs[1].box")
    assert "boxes" not in server.chat({"text": "x"}, max_tokens=1).json()
