"""A chat and a draft are kept in one tab alone: what the page does so that a press does not lose them."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import RunningServer
from tests.pages.canned import Canned
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ask, ended

pytestmark = pytest.mark.pages


def test_status_opens_beside_a_chat_with_its_key_and_leads_back(demo: RunningServer, opened: Open) -> None:
    """Leaving a chat is asked about, and so is loading it again; a page without one is left at once."""
    asked: list[str] = []

    def leave(dialog: Any) -> None:
        asked.append(dialog.type)
        dialog.accept()

    with opened(f"{demo.url}/llm/") as page:
        page.on("dialog", leave)
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
        assert page.locator("#turns > li").count() == 2 and not asked
        page.reload()
        assert asked == ["beforeunload"] and page.locator("#turns > li").count() == 0
        assert page.get_attribute("#to-status", "target") in ("", None)


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
