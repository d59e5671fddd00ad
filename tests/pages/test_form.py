"""What the form at / takes and sends: keys, pastes, drops, numbers."""

import httpx
import pytest

from tests.e2e.running import REPO, RunningServer
from tests.pages.canned import Canned
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ask, drawn, ended

pytestmark = pytest.mark.pages

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
        programs = {
            "curl": "curl -sS", "Python": "import base64", "JavaScript": "// Save as chat.mjs",
            "OpenAI Python": "pip install openai", "OpenAI JavaScript": "npm install openai",
        }  # fmt: skip
        for name, words in programs.items():
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


def test_parameters_show_their_defaults_and_bounds(demo: RunningServer, opened: Open) -> None:
    """Those of the document that the server gives; what lies beyond is marked, and the server judges it."""
    schemas = httpx.get(f"{demo.url}/openapi.json", timeout=60).json()["components"]["schemas"]
    fields = schemas["NativeParameters"]["properties"]
    window = httpx.get(f"{demo.url}/v1/models").json()["data"][0]["max_model_len"]
    with opened(f"{demo.url}/llm/", expected=("400",)) as page:
        page.locator("#more summary").click()
        page.locator("#temperature-range", has_text="0 or more; above 2 is noise").wait_for()
        for name in ("temperature", "top_p", "top_k"):
            assert page.get_attribute(f"#{name}", "placeholder") == f"{fields[name]['default']:g}"
        assert page.get_attribute("#max_tokens", "placeholder") == f"the rest of {window}"
        ranges = {name: page.inner_text(f"#{name}-range") for name in ("max_tokens", "top_p", "top_k", "seed")}
        assert ranges == {
            "max_tokens": "1 or more", "top_p": "above 0, up to 1", "top_k": "-1 or more", "seed": "a whole number",
        }  # fmt: skip
        assert [page.get_attribute("#top_p", bound) for bound in ("min", "max")] == ["0", "1"]
        colour = "(one) => getComputedStyle(one).color"
        quiet = page.locator("#temperature-range").evaluate(colour)
        page.fill("#temperature", "9")
        assert page.locator("#temperature-range").evaluate(colour) != quiet
        page.fill("#top_p", "2")
        assert "parameters.top_p" in ask(page, "Hello").locator(".wrong").inner_text()
        page.locator("#language").click()
        assert page.inner_text("#temperature-range") == "不小于 0；大于 2 时输出为噪声"


def test_parameters_are_usable_without_their_document(canned: Canned, opened: Open) -> None:
    """A proxy may keep it from outside; it is asked for when the fold opens, and not before."""
    url, asked = canned
    with opened(url, expected=("404",)) as page:
        looks: list[str] = []
        page.on("request", lambda request: looks.append(request.url) if "openapi" in request.url else None)
        page.route("**/openapi.json", lambda route: route.fulfill(status=404))
        ask(page, "Hello")
        assert not looks
        page.locator("#more summary").click()
        page.fill("#temperature", "0.5")
        ask(page, "Hello", n=2)
        assert looks == [f"{url}openapi.json"] and asked[1]["parameters"] == {"temperature": 0.5}
        assert page.get_attribute("#top_p", "placeholder") == "the model's"


def test_a_system_prompt_has_lines(canned: Canned, opened: Open) -> None:
    """As it is pasted; Enter in it starts a line, and asks nothing."""
    url, asked = canned
    with opened(url) as page:
        page.locator("#more summary").click()
        page.focus("#system")
        page.keyboard.insert_text("Be brief.\nBe kind.")
        page.keyboard.press("Enter")
        ask(page, "Hello")
        assert [one["system"] for one in asked] == ["Be brief.\nBe kind.\n"]


def test_tokens_a_second_are_the_servers(canned: Canned, opened: Open) -> None:
    """All events of this answer come at once."""
    with opened(canned[0]) as page:
        ask(page, "Hello")
        assert "first after 0." in page.locator("li.model .facts").inner_text()
        assert page.locator("li.model .facts").inner_text().endswith("then 10.0 a second")


def test_what_the_model_takes_is_offered(canned: Canned, opened: Open) -> None:
    with opened(canned[0]) as page:
        page.locator("#samples button").first.wait_for()
        assert page.inner_text("#how") == "Drop, paste or add pictures and sounds, or take one of these:"
        assert page.get_attribute("#files", "accept") == "image/*,audio/*"


def test_the_keys_of_an_input_method_ask_nothing(canned: Canned, opened: Open) -> None:
    """Safari ends the composition before it tells the Enter that ended it; its keyCode is 229."""
    url, asked = canned
    with opened(url) as page:
        page.fill("#text", "ni")
        press = "(one) => one.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', keyCode: 229, bubbles: true}))"
        page.locator("#text").evaluate(press)
        drawn(page)
        assert not asked and page.locator("#turns > li").count() == 0 and page.input_value("#text") == "ni"
        page.keyboard.press("Enter")
        ended(page)
        assert len(asked) == 1


def test_a_sample_asks_once_and_takes_no_draft_along(canned: Canned, opened: Open) -> None:
    """Of a double click; and a server that is gone is said."""
    url, asked = canned
    with opened(url, expected=("404", "ERR_")) as page:
        page.set_input_files("#files", MEDIA / "number.png")
        page.locator("#samples button").first.dblclick()
        ended(page)
        assert len(asked) == 1 and [next(iter(part)) for part in asked[0]["inputs"]] == ["image", "text"]
        assert page.locator("#chosen li").count() == 0 and page.input_value("#text") == ""
        page.locator("#fresh").click()
        page.route("**/samples/*", lambda route: route.abort())
        page.locator("#samples button").first.click()
        page.locator("#trouble", has_text="cannot be reached").wait_for()
        assert page.locator("#chosen li").count() == 0


def test_the_focus_stays_where_hands_are(canned: Canned, opened: Open) -> None:
    """A sample and Retry go away under it: it stands on Stop, and then on the answer's Retry."""
    with opened(canned[0]) as page:
        page.locator("#samples button").first.focus()
        page.keyboard.press("Enter")
        ended(page)
        focused = "() => document.activeElement.textContent"
        assert page.evaluate(focused) == "Retry"
        with page.expect_response("**/chat"):
            page.keyboard.press("Enter")
        page.wait_for_function("() => document.activeElement.textContent === 'Retry'")


def test_many_pictures_leave_the_chat_in_view(canned: Canned, opened: Open) -> None:
    with opened(canned[0], viewport={"width": 360, "height": 640}) as page:
        page.set_input_files("#files", [MEDIA / "shapes.png"] * 20)
        page.locator("#chosen li").nth(19).wait_for(state="attached")
        assert page.locator("#ask").bounding_box()["height"] < 0.75 * 640


def test_send_by_key_keeps_the_focus(canned: Canned, opened: Open) -> None:
    with opened(canned[0]) as page:
        page.fill("#text", "Hello")
        page.focus("#send")
        page.keyboard.press("Enter")
        ended(page)
        drawn(page)
        assert page.evaluate("() => document.activeElement.id") == "send"


def test_the_language_stays_that_was_chosen(canned: Canned, opened: Open) -> None:
    """In this tab, at the page's next loading."""
    with opened(canned[0]) as page:
        page.locator("#language").click()
        page.reload()
        assert page.inner_text("#send") == "发送"
        page.locator("#language").click()
        page.reload()
        assert page.inner_text("#send") == "Send"


FORBIDDEN = """
    Object.defineProperty(window, "sessionStorage", {get() { throw new DOMException("no", "SecurityError"); }});
"""


def test_a_browser_that_keeps_nothing_can_ask(canned: Canned, opened: Open) -> None:
    """By an address with a name and a password, as some proxies want it: no script may ask that one."""
    url, asked = canned
    named = url.replace("http://", "http://me:secret@")
    with opened(url, script=FORBIDDEN, expected=("asked http://me:secret@",)) as page:
        page.goto(named)
        page.locator("#model", has_text="canned").wait_for()
        answer = ask(page, "Hello")
        assert len(asked) == 1 and answer.locator(".wrong").count() == 0
        answer.get_by_role("button", name="curl").click()
        assert f"'{url}chat'" in page.locator(".code").inner_text()
        page.locator("#language").click()
        assert page.inner_text("#send") == "发送"
