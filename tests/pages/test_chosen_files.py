"""Files that are chosen or recorded for a question: their kinds, names and previews, and the microphone."""

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.pages.canned import Canned
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ask

pytestmark = pytest.mark.pages

URLS = """
    window.made = new Set();
    const [make, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
    URL.createObjectURL = (one) => { const url = make(one); window.made.add(url); return url; };
    URL.revokeObjectURL = (url) => { window.made.delete(url); revoke(url); };
"""
BOTH = {"data": [{"id": "both", "architecture": {"input_modalities": ["text", "image", "video", "audio"]}}]}
LOADED = "() => [...document.querySelectorAll('#chosen video')].every((one) => one.readyState || one.error)"
CHOOSE = """(given) => {
    const transfer = new DataTransfer();
    for (const [words, name, type, lastModified] of given) {
        transfer.items.add(new File([words], name, {type, lastModified}));
    }
    document.querySelector("#files").files = transfer.files;
    document.querySelector("#files").dispatchEvent(new Event("change"));
}"""


def test_previews_are_released_and_earlier_ones_stay(canned: Canned, opened: Open) -> None:
    made = "() => window.made.size"
    with opened(canned[0], script=URLS) as page:
        ask(page, "What is this?", MEDIA / "red-circle.png")
        page.set_input_files("#files", [MEDIA / "shapes.png", MEDIA / "number.png"])
        assert page.evaluate(made) == 3
        page.locator("#chosen button").first.click()
        assert page.evaluate(made) == 2
        ask(page, "And this?", n=2)
        page.locator("#language").click()
        shown = page.locator("#turns img")
        page.wait_for_function("() => [...document.querySelectorAll('#turns img')].every((one) => one.naturalWidth)")
        assert shown.count() == 2 and page.evaluate(made) == 2
        page.locator("li.user button").first.click()
        assert page.evaluate(made) == 2 and page.locator("#chosen img").count() == 1
        page.keyboard.press("Enter")
        assert page.evaluate(made) == 1 and page.locator("#chosen img").count() == 0
        page.wait_for_function("() => document.querySelector('#turns img').naturalWidth")
        page.locator("#fresh").click()
        assert page.evaluate(made) == 0


def test_sounds_in_files_of_clips_are_sounds(canned: Canned, opened: Open) -> None:
    """For a model that takes no clips; Firefox calls each .ogg a video. One that takes both looks at the file."""
    url, asked = canned
    with opened(url) as page:
        page.locator("#samples button").first.wait_for()
        page.evaluate(CHOOSE, [["a", "voice.webm", "video/webm", 1], ["b", "voice.ogg", "video/ogg", 1]])
        ask(page, "Who speaks?")
        assert [next(iter(part)) for part in asked[0]["inputs"]] == ["audio", "audio", "text"]
        page.route("**/v1/models", lambda route: route.fulfill(json=BOTH))
        page.reload()
        page.locator("#model", has_text="both").wait_for()
        page.evaluate(RECORD)
        page.locator("#chosen audio").wait_for()


RECORD = """async () => {
    const context = new AudioContext();
    const sink = context.createMediaStreamDestination();
    const tone = context.createOscillator();
    tone.connect(sink);
    tone.start();
    const parts = [];
    const recorder = new MediaRecorder(sink.stream, {mimeType: "audio/webm"});
    recorder.ondataavailable = (event) => parts.push(event.data);
    const ended = new Promise((resolve) => { recorder.onstop = resolve; });
    recorder.start();
    await new Promise((resolve) => setTimeout(resolve, 300));
    recorder.stop();
    await ended;
    const transfer = new DataTransfer();
    transfer.items.add(new File(parts, "voice.webm", {type: "video/webm"}));
    document.querySelector("#files").files = transfer.files;
    document.querySelector("#files").dispatchEvent(new Event("change"));
}"""


def clip(kind: str, pictures: str, sound: str) -> bytes:
    """Three pictures and a silence."""
    sink = io.BytesIO()
    with av.open(sink, "w", format=kind) as out:
        streams: list[Any] = [out.add_stream(pictures, rate=5), out.add_stream(sound, rate=48000)]
        video, audio = streams
        video.width = video.height = 64
        video.pix_fmt, audio.layout = "yuv420p", "mono"
        for _ in range(3):
            out.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 19200), np.int16), format="s16", layout="mono")
        silence.sample_rate = 48000
        out.mux(audio.encode(silence))
        for stream in streams:
            out.mux(stream.encode(None))
    return sink.getvalue()


def test_a_clip_that_the_browser_cannot_show_stays_a_clip(canned: Canned, opened: Open, tmp_path: Path) -> None:
    """A phone's HEVC, and a .webm of a codec that is none: a server may read what a browser does not."""
    (tmp_path / "phone.mov").write_bytes(clip("mov", "libx265", "aac"))
    (tmp_path / "new.webm").write_bytes(clip("webm", "libvpx-vp9", "libopus").replace(b"V_VP9", b"V_VP7"))
    url, asked = canned
    with opened(url) as page:
        page.route("**/v1/models", lambda route: route.fulfill(json=BOTH))
        page.reload()
        page.locator("#model", has_text="both").wait_for()
        page.set_input_files("#files", [tmp_path / "phone.mov", tmp_path / "new.webm"])
        page.wait_for_function(LOADED)
        assert page.locator("#chosen video").evaluate_all("(all) => all.map((one) => one.videoWidth)") == [0, 0]
        ask(page, "What is this?")
        assert [next(iter(part)) for part in asked[0]["inputs"]] == ["video", "video", "text"]


def test_files_of_one_name_have_names_of_their_own(canned: Canned, opened: Open) -> None:
    """A copied request finds them by name. The same file again keeps its own."""
    with opened(canned[0]) as page:
        page.evaluate(CHOOSE, [["a", "image.png", "image/png", 1], ["bb", "image.png", "image/png", 2]])
        page.evaluate(CHOOSE, [["ccc", "image.png", "image/png", 3], ["a", "image.png", "image/png", 1]])
        answer = ask(page, "What is this?")
        names = page.locator("figcaption a").evaluate_all("(all) => all.map((one) => one.download)")
        assert names == ["image.png", "image-2.png", "image-3.png", "image.png"]
        answer.get_by_role("button", name="curl").click()
        program = page.locator(".code").inner_text()
        assert [program.count(f"base64 < './{name}'") for name in names] == [2, 1, 1, 2]


def test_a_microphone_is_let_go(canned: Canned, opened: Open) -> None:
    """Asked twice while the browser asks whether it may; and the button keeps its word in another language."""
    slow = """
        window.given = [];
        const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
        navigator.mediaDevices.getUserMedia = async (wish) => {
            await new Promise((resolve) => setTimeout(resolve, 200));
            const sound = await ask(wish);
            window.given.push(...sound.getTracks());
            return sound;
        };
    """
    with opened(canned[0], permissions=["microphone"], script=slow) as page:
        page.locator("#record").dblclick()
        page.locator("#record", has_text="Stop recording").wait_for()
        page.locator("#language").click()
        assert page.inner_text("#record") == "停止录音"
        page.locator("#record").click()
        page.locator("#chosen audio").wait_for()
        assert page.inner_text("#record") == "录音"
        assert page.evaluate("() => window.given.map((one) => one.readyState)") == ["ended"]
