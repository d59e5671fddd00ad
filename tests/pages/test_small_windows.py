"""The page in a low or narrow window: all can be reached, and what is told is in view."""

from typing import Any

import pytest

from tests.pages.canned import Canned
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA

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
