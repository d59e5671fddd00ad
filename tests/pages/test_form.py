"""What the form at / takes and sends: keys, pastes, drops, numbers. An answer that stands here does for a model's."""

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.e2e.running import REPO
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ask, ended

pytestmark = pytest.mark.pages

MODEL = {"data": [{"id": "canned", "architecture": {"input_modalities": ["text", "image", "audio"]}}]}
USAGE = {"prompt_tokens": 7, "completion_tokens": 21, "timings": {"prefill": 1.0, "decode": 2.0}}
EVENTS = [{"id": "chat-1", "text": "words", "finish_reason": "stop"}, {"id": "chat-1", "usage": USAGE}]
ANSWER = "".join(f"data: {json.dumps(event)}\n\n" for event in EVENTS) + "data: [DONE]\n\n"
COPY_BOTH = """async ([name, words]) => {
    const picture = await (await fetch(name)).blob();
    const types = words === null ? {} : {"text/plain": words};
    await navigator.clipboard.write([new ClipboardItem({...types, "image/png": picture})]);
}"""
PASTE_NAMED = """(words) => {
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File(["x"], "cat.png", {type: "image/png"}));
    clipboardData.setData("text/plain", words);
    document.dispatchEvent(new ClipboardEvent("paste", {clipboardData, cancelable: true}));
    return document.querySelectorAll("#chosen img").length;
}"""
WIDTH = "() => document.documentElement.scrollWidth"
URLS = """
    window.made = new Set();
    const [make, revoke] = [URL.createObjectURL, URL.revokeObjectURL];
    URL.createObjectURL = (one) => { const url = make(one); window.made.add(url); return url; };
    URL.revokeObjectURL = (url) => { window.made.delete(url); revoke(url); };
"""


class Handler(SimpleHTTPRequestHandler):
    """The files of the page, one model, and one answer to every question."""

    asked: list[dict[str, Any]]

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.answer(json.dumps(MODEL), "application/json")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        timed = self.headers["X-Pixelferry-Timings"] == "1"
        self.answer(ANSWER if timed else ANSWER.replace("timings", "nothing"), "text/event-stream")

    def answer(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def canned() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The page's address, and the bodies that it has sent."""
    asked: list[dict[str, Any]] = []
    kind = type("Recorder", (Handler,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=REPO / "server" / "http" / "page")) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", asked
        server.shutdown()
        thread.join()


Canned = tuple[str, list[dict[str, Any]]]


@pytest.mark.parametrize(("locale", "label"), [("en-US", "Copy the request as"), ("zh-CN", "复制请求为")])
def test_each_program_is_copied_by_keyboard(canned: Canned, opened: Open, locale: str, label: str) -> None:
    """On a screen of 360 pixels; nothing is copied before a key says so."""
    options = {"locale": locale, "viewport": {"width": 360, "height": 740}}
    with opened(canned[0], permissions=["clipboard-read", "clipboard-write"], **options) as page:
        answer = ask(page, "Hello")
        axe = (REPO / "build" / "pages" / "package" / "axe.min.js").read_text()
        page.evaluate(axe)
        found = page.evaluate("() => axe.run()")["violations"]
        assert not [one["id"] for one in found if one["impact"] in ("serious", "critical")]
        answer.get_by_role("button").first.focus()
        for name, words in (("curl", "curl -sS"), ("Python", "import base64"), ("JavaScript", "chat.mjs")):
            page.keyboard.press("Tab")
            assert page.locator(":focus").get_attribute("aria-label") == f"{label} {name}"
            before = page.locator(".code").all_inner_texts()
            assert not any(words in one for one in before)
            page.keyboard.press("Enter")
            page.locator(".code", has_text=words).wait_for()
            assert words in page.evaluate("() => navigator.clipboard.readText()")
            assert page.evaluate(WIDTH) <= 360


def test_a_paste_of_a_text_with_its_picture_is_the_text(canned: Canned, opened: Open) -> None:
    """A table of Excel comes with a picture of itself. A picture alone is taken; so is a file with its name."""
    with opened(canned[0], permissions=["clipboard-read", "clipboard-write"]) as page:
        page.evaluate(COPY_BOTH, ["samples/number.png", "a\tb"])
        page.focus("#text")
        page.keyboard.press("Control+V")
        page.wait_for_function("() => document.querySelector('#text').value === 'a\\tb'", timeout=10_000)
        assert page.locator("#chosen img").count() == 0
        page.evaluate(COPY_BOTH, ["samples/number.png", None])
        page.keyboard.press("Control+V")
        page.locator("#chosen img").wait_for()
        assert page.input_value("#text") == "a\tb"
        assert page.evaluate(PASTE_NAMED, "a cat") == 1
        assert page.evaluate(PASTE_NAMED, "/home/me/cat.png") == 2


def test_a_dragged_text_falls_into_the_question(canned: Canned, opened: Open) -> None:
    with opened(canned[0]) as page:
        heading = page.locator("#welcome h2")
        heading.click(click_count=3)
        box = heading.bounding_box()
        page.mouse.move(box["x"] + 40, box["y"] + box["height"] / 2)
        page.mouse.down()
        field = page.locator("#text").bounding_box()
        for step in range(5):
            page.mouse.move(field["x"] + 40 + step, field["y"] + 20)
        assert "over" not in (page.get_attribute("#ask", "class") or "")
        page.mouse.up()
        assert page.input_value("#text").strip() == "Show it something, and ask."


@pytest.mark.parametrize(
    ("name", "typed", "sentence"),
    [
        ("seed", "9007199254740993", "seed: whole numbers from -9007199254740991 to 9007199254740991 only."),
        ("top_k", "1.5", "top_k: whole numbers from -9007199254740991 to 9007199254740991 only."),
        ("max_tokens", "1e", "max_tokens: this is no number."),
        ("temperature", "1e", "temperature: this is no number."),
    ],
)
def test_a_number_is_sent_as_typed_or_not_at_all(
    canned: Canned, opened: Open, name: str, typed: str, sentence: str
) -> None:
    """By Enter, by Send with the parameters folded, and by Retry; the question stays."""
    url, asked = canned
    with opened(url) as page:
        ask(page, "Hello")
        page.locator("#more summary").click()
        page.locator(f"#{name}").press_sequentially(typed)
        page.locator("li.model button").first.click()
        assert page.inner_text("#trouble") == sentence
        page.locator("#more summary").click()
        page.fill("#text", "Again")
        page.locator("#send").click()
        assert page.inner_text("#trouble") == sentence and page.input_value("#text") == "Again"
        assert page.evaluate("() => document.activeElement.id") == name
        page.focus("#text")
        page.keyboard.press("Enter")
        assert page.inner_text("#trouble") == sentence and len(asked) == 1
        page.locator(f"#{name}").press("Control+A")
        page.keyboard.press("Delete")
        page.locator(f"#{name}").press_sequentially("1")
        page.locator("#send").click()
        ended(page, 2)
        assert asked[1]["parameters"] == {name: 1} and page.locator("#trouble").is_hidden()


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
        assert page.evaluate(made) == 1 and page.locator("#chosen img").count() == 1
        page.locator("#fresh").click()
        assert page.evaluate(made) == 0


def test_tokens_a_second_are_the_servers(canned: Canned, opened: Open) -> None:
    """All events of this answer come at once."""
    with opened(canned[0]) as page:
        ask(page, "Hello")
        assert "first after 0." in page.locator("li.model .facts").inner_text()
        assert page.locator("li.model .facts").inner_text().endswith("then 10.0 a second")
