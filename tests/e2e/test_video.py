"""Real clips through both routes of a running server, for two families that take them."""

from typing import Any

import pytest

from tests.e2e.running import RunningServer, data_url, picture, uncached
from tests.samples.damaged_videos import mjpeg_clip
from tests.samples.videos import B_FRAMES, make_clip, make_jpeg

pytestmark = pytest.mark.process

GREEDY: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
FEW = {"min_pixels": 3136, "max_pixels": 28 * 28 * 16}
QUESTION = "what is in it?"


@pytest.fixture(params=["server", "omni"])
def viewer(request: pytest.FixtureRequest) -> RunningServer:
    """A server of each of two families, which are everybody's; tests/e2e/test_layouts.py serves that between them."""
    found: RunningServer = request.getfixturevalue(request.param)
    return found


def native(server: RunningServer, *parts: dict[str, Any]) -> dict[str, Any]:
    answer = server.http.post("/chat", json={"inputs": [*parts, {"text": QUESTION}], "parameters": GREEDY})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def openai(server: RunningServer, *parts: dict[str, Any]) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], **GREEDY}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def video_url(content: bytes, kind: str = "mp4") -> str:
    return data_url(content).replace("image/png", f"video/{kind}", 1)


def video_tokens(body: dict[str, Any]) -> int:
    tokens: int = body["usage"]["prompt_tokens_details"]["video_tokens"]
    return tokens


PHONE = make_clip(90, size=(96, 160), options=B_FRAMES, turn=(-90.0, False))  # three seconds, held upright
CLIPS = {
    "phone": (PHONE, "mp4"),
    "webm": (make_clip(45, codec="libvpx", container="webm", rate=15), "webm"),
    "gif": (make_clip(30, codec="gif", container="gif", pixels="rgb8", rate=10), "gif"),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clips_are_answered_alike_on_both_routes(viewer: RunningServer, name: str) -> None:
    url = video_url(*CLIPS[name])
    for options in ({}, {"fps": 1.5, **FEW}, {"num_frames": 4, **FEW}):
        said = native(viewer, {"video": url, **options})
        body = openai(viewer, {"type": "video_url", "video_url": {"url": url, **options}})
        assert said["text"] == body["choices"][0]["message"]["content"] != ""
        assert uncached(said["usage"]) == uncached(body["usage"]) and video_tokens(body) > 0
        assert body["usage"]["prompt_tokens_details"]["image_tokens"] == 0
    viewer.assert_nothing_held()


def test_frames_size_and_time_follow_the_options(viewer: RunningServer) -> None:
    url = video_url(PHONE)
    assert video_tokens(native(viewer, {"video": url, "fps": 4, **FEW})) == 6 * 15  # 5 x 3 tokens: it stands upright
    assert video_tokens(native(viewer, {"video": url, "num_frames": 2, **FEW})) == 15
    assert video_tokens(native(viewer, {"video": url})) == 3 * 15 * 9  # at least 128 tokens a frame, rounded up


def test_a_picture_and_a_video_in_either_order(viewer: RunningServer) -> None:
    image, video = {"image": data_url(picture(120, 90))}, {"video": video_url(PHONE), **FEW}
    for parts in ((image, video), (video, image)):
        usage = native(viewer, *parts)["usage"]
        assert usage["prompt_tokens_details"].items() >= {"image_tokens": 12, "video_tokens": 45}.items()
    viewer.assert_nothing_held()


def test_a_video_as_frames(viewer: RunningServer) -> None:
    pictures = [make_jpeg(number) for number in (3, 9, 20)]
    joined = "data:video/jpeg;base64," + ",".join(data_url(p).partition(",")[2] for p in pictures)
    listed = [data_url(p, "jpeg") for p in pictures]
    answers = [native(viewer, {"video": video, "fps": 1, **FEW}) for video in (joined, listed)]
    part = {"type": "video_url", "video_url": {"url": listed, "fps": 1, **FEW}}
    assert answers[0]["text"] == answers[1]["text"] == openai(viewer, part)["choices"][0]["message"]["content"]
    assert video_tokens(answers[0]) == video_tokens(answers[1]) == 2 * 15
    viewer.assert_nothing_held()


def test_a_damaged_end_gives_the_frames_before_it(viewer: RunningServer) -> None:
    image = {"image": data_url(picture(120, 90))}

    def ask(content: bytes, n: int) -> dict[str, Any]:
        return native(viewer, image, {"video": video_url(content, "x-msvideo"), "num_frames": n, **FEW})

    damaged = ask(mjpeg_clip(empty=range(40, 60)), 6)
    assert video_tokens(damaged) == 2 * video_tokens(ask(mjpeg_clip(), 6)) // 3
    answer = viewer.http.post("/chat", json=[image, {"video": video_url(mjpeg_clip(empty=range(60)), "x-msvideo")}])
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "inputs[1].video"
    viewer.assert_nothing_held()


def test_what_cannot_be_served_is_a_400_that_names_the_field(viewer: RunningServer) -> None:
    url = video_url(PHONE)
    for part, param in (
        ({"video": url, "fps": -1}, "inputs[0].fps"),
        ({"video": url, "num_frames": 1}, "inputs[0].video"),
        ({"video": data_url(picture(60, 60))[:-40]}, "inputs[0].video"),
        ({"video": video_url(PHONE[:2000])}, "inputs[0].video"),
        ({"image": data_url(picture(60, 60)), "fps": 2}, "inputs[0].fps"),
    ):
        answer = viewer.http.post("/chat", json=[part])
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
    viewer.assert_nothing_held()


def test_counting_says_what_a_video_costs(viewer: RunningServer) -> None:
    video = {"video": video_url(PHONE), "fps": 4, **FEW}
    counted = viewer.http.post("/tokenize", json={"inputs": [video, {"text": QUESTION}]}).json()
    assert counted["media"] == [{"kind": "video", "tokens": 90}]
    assert counted["count"] == native(viewer, video)["usage"]["prompt_tokens"]
