"""The page in a low or narrow window: all can be reached, and what is told is in view."""

from typing import Any

import pytest

from tests.pages.canned import Canned
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ended

pytestmark = pytest.mark.pages


def in_view(page: Any, selector: str) -> bool:
    box, window = page.locator(selector).bounding_box(), page.viewport_size
    return bool(box["y"] >= 0 and box["y"] + box["height"] <= window["height"] and box["x"] >= 0)


def test_a_low_window_holds_the_form(canned: Canned, opened: Open) -> None:
    """A phone that lies on its side, with pictures and parameters: Send is reached, and an error is in view."""
    with opened(canned[0], viewport={"width": 640, "height": 300}) as page:
        page.set_input_files("#files", [MEDIA / "shapes.png"] * 20)
        page.locator("#more summary").click()
        page.fill("#top_k", "1.5")
        page.locator("#send").scroll_into_view_if_needed()
        assert page.locator("#ask").bounding_box()["height"] <= 300 and in_view(page, "#send")
        page.locator("#send").click()
        assert in_view(page, "#trouble") and in_view(page, "#top_k"), "the sentence, and the field that it speaks of"


def test_enter_starts_a_line_on_a_phone(canned: Canned, opened: Open) -> None:
    """Its keyboard has no Shift+Enter."""
    url, asked = canned
    with opened(url, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as page:
        assert page.get_attribute("#text", "placeholder") == "Ask something."
        page.fill("#text", "One")
        page.keyboard.press("Enter")
        page.keyboard.type("Two")
        assert not asked
        page.locator("#send").tap()
        ended(page)
        assert asked[0]["inputs"] == [{"text": "One\nTwo"}]


def test_with_reduced_motion_an_answer_is_waited_for_in_sight(canned: Canned, opened: Open) -> None:
    with opened(canned[0], reduced_motion="reduce") as page:
        page.route("**/chat", lambda route: None)
        page.fill("#text", "Hello")
        page.keyboard.press("Enter")
        page.locator(".waiting").wait_for(state="attached")
        style = "(one) => [getComputedStyle(one, '::after').content, getComputedStyle(one, '::after').animationName]"
        assert page.locator(".waiting").evaluate(style) == ['"▍"', "none"]


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_a_phone_has_one_row_of_header_and_send_beside_the_text(canned: Canned, opened: Open, locale: str) -> None:
    with opened(canned[0], viewport={"width": 390, "height": 844}, locale=locale) as page:
        page.locator("#samples button").first.wait_for()
        middles = [middle(page, name) for name in ("header img", "#model", "#fresh", "#to-status", "#language")]
        assert max(middles) - min(middles) < 4 and page.locator("header").bounding_box()["height"] < 60
        assert page.locator("#model").bounding_box()["width"] > 60 and "canned" in page.inner_text("#model")
        text, send = page.locator("#text").bounding_box(), page.locator("#send").bounding_box()
        assert send["x"] >= text["x"] + text["width"] and 390 - 20 < send["x"] + send["width"] <= 390
        assert text["y"] <= send["y"] < text["y"] + text["height"]
        below = [page.locator(name).bounding_box()["y"] for name in ("#add", "#record", "#more")]
        assert max(below) - min(below) < 4 and min(below) >= text["y"] + text["height"], "one row"
        assert page.get_by_role("heading", name="Pixelferry").count() == 1, "a screen reader reads the name"


def middle(page: Any, selector: str) -> float:
    box = page.locator(selector).bounding_box()
    return float(box["y"] + box["height"] / 2)
