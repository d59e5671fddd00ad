"""The page by keyboard, in both languages, on a small screen, for a screen reader, and in a long chat."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import REPO, RunningServer, picture
from tests.pages.canned import MANY, Canned
from tests.pages.conftest import Open
from tests.pages.steps import ask, ended, said

pytestmark = pytest.mark.pages


def test_by_keyboard_alone(demo: RunningServer, opened: Open) -> None:
    """Every control can be reached by Tab, and used."""
    with opened(f"{demo.url}/") as page:
        page.locator("#samples button").first.wait_for()
        reached = []
        for _ in range(20):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.textContent"))
        assert {"fresh", "language", "text", "files", "record", "send"} <= {*reached}
        page.locator("#samples button").first.focus()
        page.keyboard.press("Enter")
        assert said(ended(page)) == "red circle"
        assert page.locator("#told").inner_text() == "Answer: red circle"
        page.locator("#language").focus()
        page.keyboard.press("Space")
        assert (
            page.locator("#send").inner_text() == "发送"
            and page.evaluate("() => document.documentElement.lang") == "zh-CN"
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/"])
def test_accessibility(demo: RunningServer, opened: Open, scheme: str, path: str) -> None:
    """axe-core finds nothing serious or critical; nothing is wider than 360 pixels."""
    axe = (REPO / "build" / "pages" / "package" / "axe.min.js").read_text()
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": scheme, "bypass_csp": True}
    with opened(f"{demo.url}{path}", **options) as page:
        page.locator("#samples button").nth(1).click()
        ended(page)
        page.locator("#more summary").click()
        page.evaluate(axe)
        found = page.evaluate("() => axe.run()")
        bad = [
            (one["id"], one["nodes"][0]["html"])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert not bad
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


def test_long_chats_stay_fluid(canned: Canned, opened: Open, chromium: Any, tmp_path: Path) -> None:
    """At 30 turns and 20 pictures no script task of a streamed token takes 50 ms of thread time, by a trace."""
    (tmp_path / "x.jpg").write_bytes(picture(1280, 960, kind="JPEG"))
    with opened(canned[0]) as page:
        page.locator("#more summary").click()
        for turn in range(29):
            ask(page, "What is this?", *([tmp_path / "x.jpg"] if turn < 20 else []), n=turn + 1)
        page.fill("#max_tokens", str(MANY))
        chromium.start_tracing(
            page=page, path=str(tmp_path / "trace.json"), categories=["devtools.timeline", "v8.execute", "toplevel"]
        )
        ask(page, "Hello", n=30)
        chromium.stop_tracing()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    first = min(one["ts"] for one in events if one["name"] == "ResourceReceivedData")
    main = next(one for one in events if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain")
    after = [
        one for one in events if one["ts"] > first and one.get("tid") == main["tid"] and "tdur" in one
    ]  # one that was cut off has none
    scripts = [spent(one) for one in after if one["name"] in ("RunMicrotasks", "FunctionCall")]
    tasks = [spent(one) for one in after if one["name"] == "ThreadControllerImpl::RunTask"]
    print(f"{len(scripts)} scripts of at most {max(scripts):.1f} ms; with its layout {max(tasks):.1f} ms at most")
    assert len(scripts) > 50 and max(scripts) < 50


def spent(event: dict[str, Any]) -> float:
    """Milliseconds of thread time; some events of a microsecond have none in the trace, and count with their time."""
    return float(event.get("tdur", event["dur"])) / 1000
