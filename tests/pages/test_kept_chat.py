"""A chat and a draft are kept in one tab alone: what the page does so that a press does not lose them."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import RunningServer, picture
from tests.pages.canned import MANY, Canned
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ask, ended, said

pytestmark = pytest.mark.pages

ANSWER_OF = "(n) => { turns.at(-1).said = 'x'.repeat(n); }"


def test_status_opens_beside_a_chat_with_its_key_and_leads_back(demo: RunningServer, opened: Open) -> None:
    with opened(f"{demo.url}/llm/") as page:
        page.evaluate("() => sessionStorage.setItem('pixelferry-key', 'sk-right')")
        assert page.evaluate("() => getComputedStyle(document.documentElement).overscrollBehaviorY") == "contain"
        page.reload()
        ask(page, "Hello")
        with page.expect_popup() as popup:
            page.locator("#to-status").click()
        status = popup.value
        status.locator("#shown").wait_for()
        assert status.evaluate("() => sessionStorage.getItem('pixelferry-key')") == "sk-right"
        with status.expect_event("close"):
            status.locator("#to-chat").click()
        assert page.locator("#turns > li").count() == 2
        page.locator("#fresh").click()
        assert page.get_attribute("#to-status", "target") in ("", None)


def shown(page: Any) -> dict[str, Any]:
    """What a reader sees of a chat, and the places of its boxes on their pictures."""
    page.wait_for_function("() => [...document.querySelectorAll('#turns img')].every((one) => one.naturalWidth)")
    text: dict[str, Any] = page.evaluate("""() => ({
        turns: document.querySelector("#turns").innerText,
        boxes: Array.from(document.querySelectorAll("polygon"), (one) => one.getAttribute("points")),
        fields: Array.from(document.querySelectorAll("#more input, #system"), (one) => one.value),
    })""")
    return text


def reloaded(page: Any) -> list[str]:
    """Loads it again, whatever it asks before; the kinds of what it asked."""
    asked: list[str] = []

    def leave(dialog: Any) -> None:
        asked.append(dialog.type)
        dialog.accept()

    page.locator("header img").click()  # a browser asks about a page only where somebody used it
    page.on("dialog", leave)
    page.reload()
    page.remove_listener("dialog", leave)
    return asked


def test_a_chat_stands_over_a_reload(demo: RunningServer, opened: Open) -> None:
    """With its pictures, boxes, costs and parameters, in both languages; it goes on, and is copied, as before."""
    with opened(f"{demo.url}/llm/") as page:
        page.locator("#more summary").click()
        page.fill("#max_tokens", "60")
        page.fill("#system", "Be brief.")
        ask(page, "Where is the red circle?", MEDIA / "red-circle.png")
        ask(page, "How many beeps are there?", MEDIA / "three-beeps.wav", n=2)
        before = shown(page)
        assert before["boxes"] and "48 tokens" in before["turns"]
        assert not reloaded(page) and shown(page) == before
        page.locator("#language").click()
        page.locator("#language").click()
        assert not reloaded(page) and shown(page) == before
        ended(page, 2).get_by_role("button", name="curl").click()
        assert "base64 < './three-beeps.wav'" in page.locator(".code").inner_text()
        with page.expect_request("**/chat") as sent:
            assert said(ask(page, "Which colour has the circle?", n=3)) == "red"
        body = sent.value.post_data_json
        assert [*body["history"][0]["inputs"][0], *body["history"][1]["inputs"][0]] == ["image", "audio"]
        assert body["system"] == "Be brief." and body["parameters"] == {"max_tokens": 60}
        sent_again = base64.b64decode(body["history"][0]["inputs"][0]["image"].partition(",")[2])
        assert sent_again == (MEDIA / "red-circle.png").read_bytes()
        page.locator("li.model").nth(1).get_by_role("button", name="Retry").click()
        page.locator("li.model").nth(1).get_by_role("button", name="Drop the 1 after it?").click()
        ended(page, 2)
        assert not reloaded(page) and page.locator("#turns > li").count() == 4
        assert page.locator("li.model .wrong").count() == 0


def test_it_stays_in_its_tab_and_goes_with_a_new_chat(canned: Canned, opened: Open) -> None:
    """Nothing of it is kept elsewhere, and the key stays apart from it."""
    url, _ = canned
    with opened(url, script="sessionStorage.setItem('pixelferry-key', 'sk-secret')") as page:
        ask(page, "Hello", MEDIA / "shapes.png")
        kept = page.evaluate("() => ({...sessionStorage})")
        assert sorted(kept) == ["pixelferry-chat-1 /", "pixelferry-chat-1 / 1", "pixelferry-key"]
        assert "sk-secret" not in kept["pixelferry-chat-1 /"] and page.evaluate("() => localStorage.length") == 0
        other = page.context.new_page()
        other.goto(url)
        assert other.locator("#turns > li").count() == 0
        page.locator("#fresh").click()
        assert page.evaluate("() => Object.keys(sessionStorage)") == ["pixelferry-key"]
        assert not reloaded(page) and page.locator("#turns > li").count() == 0


def test_what_would_be_lost_is_asked_about(canned: Canned, opened: Open) -> None:
    """A text, a file and an edit that are not sent; a stream, of which the words that came stay."""
    url, _ = canned
    with opened(url) as page:
        assert not reloaded(page)
        page.fill("#text", "half a thought")
        assert reloaded(page) == ["beforeunload"] and page.input_value("#text") == ""
        page.set_input_files("#files", MEDIA / "shapes.png")
        assert reloaded(page) == ["beforeunload"] and page.locator("#chosen li").count() == 0
        ask(page, "Hello")
        page.locator("li.user").get_by_role("button", name="Edit").click()
        assert reloaded(page) == ["beforeunload"] and page.locator("#turns > li").count() == 2
        page.locator("#more summary").click()
        page.fill("#max_tokens", str(MANY))
        page.fill("#text", "More")
        page.keyboard.press("Enter")
        page.locator("li.model .text", has_text="word 9").wait_for()
        assert reloaded(page) == ["beforeunload"]
        last = ended(page, 2)
        assert "word 9" in said(last) and "stopped" in last.locator(".facts").inner_text()
        assert not reloaded(page)


def test_media_without_room_are_named_and_not_asked_about(canned: Canned, opened: Open, tmp_path: Path) -> None:
    """A picture of 6 MB beside a small one: leaving asks, nothing is sent without it, and it can be added again."""
    url, asked = canned
    large = tmp_path / "large.bmp"
    large.write_bytes(picture(1500, 1400, kind="BMP"))
    with opened(url) as page:
        ask(page, "These?", MEDIA / "number.png", large)
        assert reloaded(page) == ["beforeunload"]
        assert page.inner_text(".lost") == "large.bmp: gone with the reload, because it was too large to keep."
        page.wait_for_function("() => document.querySelector('#turns img').naturalWidth")
        assert not reloaded(page), "what is gone is asked about once"
        page.fill("#text", "And?")
        page.keyboard.press("Enter")
        said_why = "A reload took large.bmp. Add it again where it stood"
        assert said_why in page.inner_text("#trouble") and page.input_value("#text") == "And?"
        page.locator("li.model").get_by_role("button", name="Retry").click()
        assert said_why in page.inner_text("#trouble") and len(asked) == 1
        page.set_input_files("#turns input", MEDIA / "three-beeps.wav")
        assert "is none of the pictures" in page.inner_text("#trouble")
        page.set_input_files("#turns input", large)
        assert page.locator(".lost").count() == 0 and page.locator("#trouble").is_hidden()
        ask(page, "And?", n=2)
        assert asked[1]["history"][0]["inputs"] == asked[0]["inputs"]


def test_a_chat_goes_before_its_media(canned: Canned, opened: Open, tmp_path: Path) -> None:
    """Where the storage is full, a picture makes room for words; words without room are asked about."""
    url, _ = canned
    (tmp_path / "some.bmp").write_bytes(picture(1000, 1000, kind="BMP"))
    with opened(url) as page:
        ask(page, "This?", tmp_path / "some.bmp")
        assert page.evaluate("() => Object.keys(sessionStorage).length") == 2
        page.evaluate(ANSWER_OF, 1_500_000)
        ask(page, "And?", n=2)
        assert page.evaluate("() => Object.keys(sessionStorage)") == ["pixelferry-chat-1 /"]
        assert reloaded(page) == ["beforeunload"] and page.locator("#turns > li").count() == 4
        assert page.inner_text(".lost").startswith("some.bmp: gone")
        page.evaluate(ANSWER_OF, 6_000_000)
        assert reloaded(page) == ["beforeunload"] and page.locator("#turns > li").count() == 0


def test_an_edited_question_goes_when_it_is_sent(canned: Canned, opened: Open) -> None:
    """Until then all turns stay, and the draft comes back with its picture, by Escape, by Cancel and at last."""
    url, asked = canned

    def as_it_was(turns: int) -> None:
        assert page.locator("#turns > li").count() == turns and page.input_value("#text") == "half a thought"
        page.wait_for_function("() => document.querySelector('#chosen img').naturalWidth === 480")
        assert page.locator("#editing").is_hidden() and page.locator(".edited").count() == 0

    with opened(url) as page:
        ask(page, "This?", MEDIA / "number.png")
        ask(page, "And?", n=2)
        page.set_input_files("#files", MEDIA / "shapes.png")
        page.fill("#text", "half a thought")
        edits = page.locator("li.user").get_by_role("button", name="Edit")
        edits.last.click()
        edits.first.click()
        assert page.input_value("#text") == "This?" and page.locator("#turns > li").count() == 4
        assert "drops what stands after it" in page.inner_text("#editing")
        page.keyboard.press("Escape")
        as_it_was(4)
        edits.last.click()
        page.locator("#cancel").click()
        as_it_was(4)
        edits.first.click()
        ask(page, "What is this?")
        as_it_was(2)
        page.wait_for_function("() => document.querySelector('#turns img').naturalWidth")
        assert "history" not in asked[2] and [next(iter(part)) for part in asked[2]["inputs"]] == ["image", "text"]


def test_retry_of_an_early_answer_asks_before_it_drops_later_ones(canned: Canned, opened: Open) -> None:
    """A double click is one press; the question is taken back after four seconds."""
    url, asked = canned
    with opened(url) as page:
        for n in (1, 2, 3):
            ask(page, "Hello", n=n)
        page.clock.install()
        button = page.locator("li.model").first.locator("button").first
        button.dblclick()
        assert button.inner_text() == "Drop the 2 after it?" and page.locator("#turns > li").count() == 6
        page.clock.fast_forward(4100)
        assert button.inner_text() == "Retry"
        button.click()
        assert button.inner_text() == "Drop the 2 after it?" and len(asked) == 3
        button.click()
        ended(page)
        assert page.locator("#turns > li").count() == 2 and len(asked) == 4


def test_send_takes_the_voice_along_that_is_being_recorded(canned: Canned, opened: Open) -> None:
    url, asked = canned
    with opened(url, permissions=["microphone"]) as page:
        page.locator("#record").click()
        page.locator("#record", has_text="Stop recording").wait_for()
        page.wait_for_timeout(300)
        ask(page, "What do I say?")
        assert [next(iter(part)) for part in asked[0]["inputs"]] == ["audio", "text"] and len(asked) == 1
        assert page.inner_text("#record") == "Record" and page.locator("#chosen li").count() == 0


def test_a_file_that_went_away_is_named(canned: Canned, opened: Open, tmp_path: Path) -> None:
    """It was no fault of the server, and nothing was sent. What else there is can be asked without it."""
    url, asked = canned
    file = tmp_path / "went.png"
    file.write_bytes((MEDIA / "shapes.png").read_bytes())
    with opened(url, expected=("ERR_",)) as page:
        page.set_input_files("#files", file)
        file.unlink()
        answer = ask(page, "What is this?")
        assert answer.locator(".wrong").inner_text() == "went.png can no longer be read, or is too large."
        assert not asked
        ask(page, "Hello", n=2)
        assert asked[0]["inputs"] == [{"text": "Hello"}]


SLOW_READ = """
    FileReader.prototype.readAsDataURL = function () { window.read = this; };
    FileReader.prototype.abort = function () { this.onabort(); };
"""


def test_stop_ends_the_reading_of_a_file(canned: Canned, opened: Open) -> None:
    url, asked = canned
    with opened(url, script=SLOW_READ) as page:
        page.set_input_files("#files", MEDIA / "shapes.png")
        page.fill("#text", "What is this?")
        page.keyboard.press("Enter")
        page.wait_for_function("() => window.read")
        page.click("#stop")
        assert "stopped" in ended(page).locator(".facts").inner_text() and not asked
