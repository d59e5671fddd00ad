"""What the page makes of an answer: its text, its boxes, its thoughts, its costs, and what follows a refusal."""

import json
from typing import Any

import pytest

from tests.pages.canned import MODEL, Canned, stream
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ask, ended, said

pytestmark = pytest.mark.pages

CATS = "<ref>cats</ref><box>(0,0),(500,500)</box>"
TWO = CATS + "<box>(500,500),(1000,1000)</box> and <ref>cats</ref><box>(1,1),(9,9)</box>"
ID = "0123456789abcdef01234567"
UNBOXED = "In HTML a <ref>name</ref> stands before <box>(1,2),(3,4)</box>."  # there was no picture
BOX = {"ref": None, "kind": "box", "points": [[0, 0], [1, 1]], "picture": 0}
REFUSED = {"error": {"message": "a key is asked for", "type": "authentication_error", "param": None, "code": "key"}}


def answer_with(page: Any, *bodies: str) -> None:
    """The next answers of /chat; the last one stands for all after it."""
    left = list(bodies)
    page.route(
        "**/chat",
        lambda route: route.fulfill(body=left.pop(0) if left[1:] else left[0], content_type="text/event-stream"),
    )


@pytest.mark.parametrize(
    ("text", "shown", "marks"),
    [
        ("Qwen-VL writes <ref> and <box>, in pairs.", "Qwen-VL writes <ref> and <box>, in pairs.", []),
        ("if a<box>b</box> then <", "if a<box>b</box> then <", []),
        ("<box>(1,2),(3", "<box>(1,2),(3", []),
        ("a <ref>dog<ref>red cat</ref><box>(1,2),(3,4)</box> sits", "a <ref>dogred cat sits", ["red cat"]),
        ("<quad>(1,2),(3,4),(5,6),(7,8)</quad>here", "here", []),
        (UNBOXED, UNBOXED, []),
        ("<ref>" + "x" * 400 + "</ref>", "<ref>" + "x" * 400 + "</ref>", []),
    ],
)
def test_what_is_no_region_is_text(canned: Canned, opened: Open, text: str, shown: str, marks: list[str]) -> None:
    """However the words come in pieces."""
    steps = (1, 7, 10_000)
    boxes = [] if text == shown else [BOX]
    with opened(canned[0]) as page:
        pieces = ([{"text": text[i : i + n]} for i in range(0, len(text), n)] for n in steps)
        answer_with(page, *(stream(*some, boxes=boxes) for some in pieces))
        for n in range(len(steps)):
            answer = ask(page, "Hello", n=n + 1)
            assert said(answer) == shown and answer.locator("mark").all_text_contents() == marks


def test_regions_of_an_answer_that_broke_off_are_text(canned: Canned, opened: Open) -> None:
    """Its boxes would have come at its end; in another language it is the same."""
    with opened(canned[0]) as page:
        answer_with(page, f"data: {json.dumps({'text': CATS})}\n\n")
        answer = ask(page, "Where are they?", MEDIA / "red-circle.png")
        assert said(answer) == CATS and "broke off" in answer.locator(".wrong").inner_text()
        assert "first token after 0." in answer.locator(".facts").inner_text()
        page.locator("#language").click()
        assert said(answer) == CATS


def test_a_word_lights_all_its_boxes(canned: Canned, opened: Open) -> None:
    """Two boxes behind one name, and one behind the same name again."""
    boxes = [
        {"ref": "cats", "kind": "box", "points": points, "picture": 0}
        for points in ([[0, 0], [160, 120]], [[160, 120], [320, 240]], [[1, 1], [9, 9]])
    ]
    with opened(canned[0]) as page:
        answer_with(page, stream({"text": TWO}, boxes=boxes))
        answer = ask(page, "Where are they?", MEDIA / "red-circle.png")
        page.locator("polygon").nth(2).wait_for(state="attached")
        lit = "(all) => all.map((one) => one.classList.contains('on'))"
        answer.locator("mark").nth(0).hover()
        assert page.locator(".picture g").evaluate_all(lit) == [True, True, False]
        answer.locator("mark").nth(1).hover()
        assert page.locator(".picture g").evaluate_all(lit) == [False, False, True]
        page.locator(".picture g").nth(1).dispatch_event("mouseenter")
        assert answer.locator("mark").evaluate_all(lit) == [True, True]


@pytest.mark.parametrize("left", [5, 250])
def test_a_label_stays_within_its_picture(canned: Canned, opened: Open, left: int) -> None:
    """Of a box at either side: all of a name that fits is shown, and of a longer one the beginning."""
    names = ("a person with a dog", "a person with a dog and a long coat and a hat on the head")
    boxes = [{"ref": name, "kind": "box", "points": [[left, 9], [left + 60, 90]], "picture": 0} for name in names]
    with opened(canned[0]) as page:
        answer_with(page, stream({"text": CATS}, boxes=boxes))
        ask(page, "Where are they?", MEDIA / "red-circle.png")
        page.locator(".label").nth(1).wait_for()
        picture = page.locator(".picture img").bounding_box()
        for label in page.locator(".label").all():
            box = label.bounding_box()
            assert box["x"] >= picture["x"] and box["x"] + box["width"] <= picture["x"] + picture["width"] + 0.1
        cut = "(all) => all.map((one) => one.scrollWidth > one.clientWidth)"
        assert page.locator(".label").evaluate_all(cut) == [False, True]


def test_thoughts_are_shown_and_a_turn_without_words_is_told_of(canned: Canned, opened: Open) -> None:
    url, _ = canned
    with opened(url) as page:
        thought = stream({"reasoning": "It is <b>"}, {"reasoning": "round.", "finish_reason": "length"})
        answer_with(page, thought, stream(), stream({"text": "red"}))
        answer = ask(page, "What is it?", MEDIA / "red-circle.png")
        assert answer.locator("summary").inner_text() == "Thoughts"
        answer.locator("summary").click()
        assert answer.locator("details div").inner_text() == "It is <b>round."
        facts = answer.locator(".facts").inner_text()
        assert "(no words)" in facts and "the next questions leave this one out" in facts
        page.locator("#language").click()
        assert page.locator("li.model summary").inner_text() == "思考过程"
        page.locator("#language").click()
        facts = ask(page, "Hello", n=2).locator(".facts").inner_text()
        assert "first after 0." in facts, "an answer whose only event is its last has a time, too"
        with page.expect_request("**/chat") as asking:
            facts = ask(page, "And?", n=3).locator(".facts").inner_text()
        assert "leave this one out" not in facts and asking.value.post_data_json["inputs"] == [{"text": "And?"}]


def test_a_fault_of_the_server_tells_the_requests_id_once(canned: Canned, opened: Open) -> None:
    """As it begins, and within a stream."""
    fault = {"error": {"message": f"the engine ended (request {ID})", "param": None}}
    with opened(canned[0], expected=("503",)) as page:
        left: list[dict[str, Any]] = [
            {"status": 503, "body": json.dumps(fault)}, {"body": f"data: {json.dumps(fault)}\n\n"},
        ]  # fmt: skip
        page.route("**/chat", lambda route: route.fulfill(headers={"X-Request-Id": ID}, **left.pop(0)))
        for n in (1, 2):
            told = ask(page, "Hello", n=n).locator(".wrong").inner_text()
            assert told == f"the engine ended (request: {ID})"


def test_a_gateways_word_is_told(canned: Canned, opened: Open) -> None:
    with opened(canned[0], expected=("502",)) as page:
        page.route("**/chat", lambda route: route.fulfill(status=502, json={"error": "Bad gateway"}))
        assert ask(page, "Hello").locator(".wrong").inner_text() == "Bad gateway"


def test_a_server_that_comes_back_may_serve_another_model(canned: Canned, opened: Open) -> None:
    other = {"data": [{"id": "other", "architecture": {"input_modalities": ["text"]}}]}
    with opened(canned[0], expected=("ERR_",)) as page:
        page.locator("#samples button").first.wait_for()
        assert page.inner_text("#welcome h2") == "Show it something, and ask."
        page.route("**/v1/models", lambda route: route.fulfill(json=other))
        page.route("**/chat", lambda route: route.abort())
        assert "cannot be reached" in ask(page, "Hello").locator(".wrong").inner_text()
        page.locator("#model", has_text="other").wait_for()
        assert page.locator("#add").is_hidden()
        page.locator("#fresh").click()
        assert page.inner_text("#welcome h2") == "Ask something.", "there is nothing to show it"


def test_costs_stand_under_the_pictures_that_the_window_kept(canned: Canned, opened: Open) -> None:
    cost = {"kind": "image", "tokens": 99, "width": 8, "height": 8}
    with opened(canned[0]) as page:
        first = stream({"text": "words"}, media=[{**cost, "tokens": 1}])
        answer_with(page, first, stream({"text": "words"}, media=[cost]))
        ask(page, "This?", MEDIA / "red-circle.png")
        ask(page, "And this?", MEDIA / "shapes.png", n=2)
        captions = page.locator("figcaption").all_inner_texts()
        assert "· 1 tokens" in captions[0] and "· 99 tokens" in captions[1]


def test_a_key_that_comes_late_mends_the_page(canned: Canned, opened: Open) -> None:
    """The model is read again, the question is asked again, and nothing else is, whatever was done between."""
    url, asked = canned

    def guarded(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer sk-right":
            route.continue_()
        else:
            route.fulfill(status=401, body=json.dumps(REFUSED), content_type="application/json")

    with opened(url, expected=("401",)) as page:
        page.route("**/chat", guarded)
        page.route("**/v1/models", guarded)
        page.reload()
        page.locator("#keys").wait_for()
        assert page.locator("#samples li").count() == 0 and page.locator("#add").is_hidden()
        ask(page, "Hello")
        for key, words in (("sk-…", "letters, digits and signs of ASCII"), ("sk-wrong", "does not know this API key")):
            page.fill("#key", key)
            page.keyboard.press("Enter")
            page.locator("#trouble", has_text=words).wait_for()
            assert page.locator("#keys").is_visible()
        ended(page)
        page.locator("#fresh").click()
        page.fill("#key", "sk-right")
        page.locator("#take-key").click()
        page.locator("#model", has_text="canned").wait_for()
        assert page.locator("#samples li").count() == 5 and not asked and page.locator("#turns > li").count() == 0
        assert page.locator("#trouble").is_hidden()


def test_the_model_is_asked_for_until_it_is_told(canned: Canned, opened: Open) -> None:
    with opened(canned[0], expected=("503",)) as page:
        later = {"error": {"message": f"the model is being downloaded: 1 of 2 bytes (request {ID})", "param": None}}
        left = [(503, later), (200, MODEL)]

        def answer(route: Any) -> None:
            status, body = left.pop(0)
            route.fulfill(status=status, body=json.dumps(body), headers={"X-Request-Id": ID})

        page.route("**/v1/models", answer)
        page.reload()
        page.locator("#trouble", has_text="downloaded").wait_for()
        assert page.inner_text("#trouble") == "the model is being downloaded: 1 of 2 bytes", "no id is read out"
        page.locator("#model", has_text="canned").wait_for()
        assert page.locator("#trouble").is_hidden() and page.locator("#samples li").count() == 5
