"""A chat and a draft are kept in one tab alone: what the page does so that a press does not lose them."""

from typing import Any

import pytest

from tests.e2e.running import RunningServer
from tests.pages.conftest import Open
from tests.pages.steps import ask

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
