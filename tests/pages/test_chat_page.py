"""The page at /, as a stranger uses it: what it sends, what it shows, and what it copies."""

import json
import re
from pathlib import Path

import pytest

from tests.e2e.running import RunningServer, picture
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ask, drawn, ended, said

pytestmark = pytest.mark.pages

CORNERS = """(one) => Array.from(one.points, (point) => {
    const on = point.matrixTransform(one.getScreenCTM());
    return [on.x, on.y];
})"""  # of a polygon, in pixels of the window


def test_each_sample_is_answered(demo: RunningServer, opened: Open) -> None:
    """In both languages, as they are offered."""
    rights = ("red circle", "red circle", "3", "47", "right", "3")
    for language, words in (("en-US", rights), ("zh-CN", ("红色圆形", "红色圆形", "3", "47", "向右", "3"))):
        with opened(f"{demo.url}/", locale=language) as page:
            for i, right in enumerate(words):
                page.locator("#samples button").nth(i).click()
                assert said(ended(page)) == right
                page.locator("#fresh").click()


def test_files_of_each_kind_and_several_turns(demo: RunningServer, opened: Open) -> None:
    with opened(f"{demo.url}/llm/") as page:
        assert said(ask(page, "What is this?", MEDIA / "red-circle.png")) == "red circle"
        assert said(ask(page, "What colour is it?", n=2)) == "red"
        assert said(ask(page, "How many beeps are there?", MEDIA / "three-beeps.wav", n=3)) == "3"
        captions = page.locator("figcaption").all_inner_texts()
        assert "48 tokens · seen as 224 × 168" in captions[0] and re.search(r"\d+ tokens", captions[1])
        facts = page.locator(".facts").nth(1).inner_text()
        assert re.search(r"\d+ tokens read \([1-9]\d* from the cache\), 3 written", facts)


def test_the_end_of_an_answer_stays_in_view(demo: RunningServer, opened: Open) -> None:
    """Until somebody looks at what is above."""
    with opened(f"{demo.url}/", viewport={"width": 360, "height": 600}) as page:
        ask(page, "Where is the red circle?", MEDIA / "red-circle.png")
        last = ask(page, "Where is the red circle?", MEDIA / "red-circle.png", n=2)
        below = "(one) => one.getBoundingClientRect().bottom - innerHeight"
        page.wait_for_function("() => innerHeight + scrollY >= document.documentElement.scrollHeight - 40")
        assert last.evaluate(below) < 0 < page.evaluate("scrollY")
        page.evaluate("scrollTo(0, 0)")
        drawn(page)
        last.evaluate("(one) => one.append('more\\n'.repeat(50))")
        drawn(page)
        assert page.evaluate("scrollY") == 0


def test_boxes_lie_on_the_pixels(demo: RunningServer, opened: Open) -> None:
    """The box of the answer, in pixels of the picture, whatever size it is shown at; hovering its word lights it up."""
    with opened(f"{demo.url}/", viewport={"width": 360, "height": 700}) as page:
        with page.expect_response("**/chat") as waiting:
            page.fill("#text", "Where is the red circle?")
            page.set_input_files("#files", MEDIA / "red-circle.png")
            page.locator("#send").click()
        answer = ended(page)
        event = next(
            one for one in map(json.loads, re.findall(r"^data: (\{.*)$", waiting.value.text(), re.M)) if "boxes" in one
        )
        ((left, top), (right, bottom)) = event["boxes"][0]["points"]
        shown = page.locator(".picture img").bounding_box()
        scale = shown["width"] / 320
        assert scale < 1, "it is shown smaller than it is"
        corners = page.locator("polygon").evaluate(CORNERS)
        for x, y in ((left, top), (right, top), (right, bottom), (left, bottom)):
            found_x, found_y = corners.pop(0)
            assert abs(found_x - shown["x"] - x * scale) < 1 and abs(found_y - shown["y"] - y * scale) < 1
        assert said(answer) == "red circle" and page.locator(".label").inner_text() == "red circle"
        answer.locator("mark").hover()
        assert page.locator("g.on").count() == 1


def test_a_stream_grows_and_stops(demo: RunningServer, opened: Open) -> None:
    with opened(f"{demo.url}/") as page:
        page.route("**/chat", lambda route: route.continue_(post_data=endless(route.request.post_data)))
        page.fill("#text", "Hello")
        page.keyboard.press("Enter")
        text = page.locator("li.model .text")
        page.locator("li.model .text", has_text=re.compile(r"\S")).wait_for()
        before = len(text.inner_text())
        page.wait_for_function("n => document.querySelector('li.model .text').innerText.length > n", arg=before)
        page.keyboard.press("Escape")
        assert "stopped" in ended(page).locator(".facts").inner_text()
        page.unroute("**/chat")
        page.locator("li.model button").first.click()
        assert "stopped" not in ended(page).locator(".facts").inner_text()


def endless(body: str) -> str:
    asked = json.loads(body)
    return json.dumps(asked | {"parameters": {"max_tokens": 3900, "ignore_eos": True}})


def test_a_question_is_edited_and_its_picture_stays(demo: RunningServer, opened: Open) -> None:
    with opened(f"{demo.url}/") as page:
        ask(page, "How many shapes are there?", MEDIA / "shapes.png")
        page.locator("li.user button").click()
        assert page.locator("#turns > li").count() == 2 and page.locator("#chosen img").count() == 1
        assert said(ask(page, "Is there a star?")) == "no" and page.locator("#turns > li").count() == 2


def test_a_recorded_voice_is_heard(demo: RunningServer, opened: Open) -> None:
    """Chromium's webm, which tells no duration, of a device that beeps."""
    with opened(f"{demo.url}/", permissions=["microphone"]) as page:
        page.locator("#record").click()
        page.wait_for_timeout(1500)
        page.locator("#record").click()
        page.locator("#chosen audio").wait_for()
        answer = ask(page, "How many beeps are there?")
        assert answer.locator(".wrong").count() == 0 and re.fullmatch(r"\d+", said(answer))


# ---- what goes wrong is a sentence


def test_errors_name_field_and_request(demo: RunningServer, opened: Open, tmp_path: Path) -> None:
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n no picture")
    (tmp_path / "notes.txt").write_text("words")
    with opened(f"{demo.url}/", expected=("400", "ERR_")) as page:
        wrong = ask(page, "What is this?", tmp_path / "torn.png").locator(".wrong").inner_text()
        assert "inputs[0].image" in wrong and re.search(r"request: [0-9a-f]{24}", wrong)
        page.set_input_files("#files", tmp_path / "notes.txt")
        assert "notes.txt: this is no picture" in page.locator("#trouble").inner_text()
        page.locator("#more summary").click()
        page.fill("#top_p", "0")
        wrong = ask(page, "Hello", n=2).locator(".wrong").inner_text()
        assert "parameters.top_p" in wrong
        page.fill("#top_p", "")
        assert said(ask(page, "Hello", n=3)), "what failed is not told again"


def test_a_full_server_says_when_to_come_again(demo: RunningServer, opened: Open) -> None:
    full = {"error": {"message": "the server is full", "type": "rate_limit", "param": None, "code": "queue_full"}}
    with opened(f"{demo.url}/", expected=("429",)) as page:
        page.route(
            "**/chat",
            lambda route: route.fulfill(
                status=429, body=json.dumps(full), headers={"Retry-After": "3", "Content-Type": "application/json"}
            ),
        )
        assert ask(page, "Hello").locator(".wrong").inner_text() == "the server is full (in 3 s again)"


def test_keys_and_large_bodies(keyed: RunningServer, tmp_path: Path, opened: Open) -> None:
    (tmp_path / "noise.png").write_bytes(picture(1400, 1400, kind="BMP"))
    with opened(f"{keyed.url}/", expected=("401", "413", "ERR_", "Failed to load")) as page:
        page.fill("#key", "sk-geheim")
        page.keyboard.press("Enter")
        page.locator("#samples button").first.click()
        assert said(ended(page)) == "red circle"
        wrong = ask(page, "What is this?", tmp_path / "noise.png", n=2).locator(".wrong").inner_text()
        assert "2" in wrong and "request" in wrong, wrong
        assert "sk-geheim" not in page.evaluate("() => JSON.stringify({...localStorage})")
        page.get_by_role("button", name="Copy the request as curl").first.click()
        copied = page.locator(".code").inner_text()
        assert "sk-geheim" not in copied and "$PIXELFERRY_API_KEY" in copied


# ---- text is text


HOSTILE = "<script>alert(1)</script> [a](javascript:alert(2)) <img src=x onerror=alert(3)> " + "x" * 100_000


def test_words_of_both_are_never_run(demo: RunningServer, opened: Open) -> None:
    event = {"id": "chat-1", "text": HOSTILE + "<ref><b>bold</b></ref><box>(1,2),(3,4)</box>", "finish_reason": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    boxes = [{"ref": "<b>bold</b>", "kind": "box", "points": [[0, 0], [1, 1]], "picture": 0}]
    last = {"id": "chat-1", "text": "", "finish_reason": "stop", "usage": usage, "boxes": boxes}
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in (event, last)) + "data: [DONE]\n\n"
    with opened(f"{demo.url}/") as page:
        page.on("dialog", lambda dialog: pytest.fail("something ran"))
        page.route("**/chat", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
        answer = ask(page, HOSTILE)
        assert said(answer) == HOSTILE + "<b>bold</b>"
        assert page.locator("#turns script, #turns img, #turns a, #turns b").count() == 0
