"""The page at /status, as an operator looks at it: what it shows, of what it tells, and who may see it."""

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.ray.last_errors import merged_errors
from deploy.ray.metrics import merged
from tests.e2e.running import REPO, RunningServer, running, until
from tests.pages.conftest import Open

pytestmark = pytest.mark.pages


def rows(page: Any, table: str) -> list[list[str]]:
    """The texts of its cells."""
    script = "(body) => Array.from(body.rows, (row) => Array.from(row.cells, (cell) => cell.textContent))"
    found: list[list[str]] = page.locator(f"#{table}").evaluate(script)
    return found


def tile(page: Any, name: str) -> str:
    """What stands under a name that begins so."""
    text: str = page.locator("#tiles div", has=page.locator("dt", has_text=re.compile(f"^{name}"))).inner_text()
    return text


def seen(page: Any, what: str, true: Callable[[], Any]) -> None:
    """Wait until the page shows it; the page itself goes on meanwhile."""

    def look() -> Any:
        page.wait_for_timeout(100)
        return true()

    until(what, look, 60, said=lambda: page.locator("main").inner_text())


@contextmanager
def answering(server: RunningServer) -> Iterator[None]:
    """A request is inside the engine."""
    body = {"inputs": [{"text": "Hello"}], "parameters": {"max_tokens": 3000, "ignore_eos": True}, "stream": True}
    begun = threading.Event()

    def ask() -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"{server.url}/chat", json=body, timeout=60) as answer,
        ):
            for _ in answer.iter_lines():
                begun.set()

    thread = threading.Thread(target=ask)
    thread.start()
    assert begun.wait(60)
    yield
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_it_shows_the_server_as_it_is(demo: RunningServer, opened: Open, prefix: str) -> None:
    """Also below a path; the figures are those of /metrics."""
    with opened(f"{demo.url}{prefix}/") as page:
        page.locator("nav a").click()
        assert page.url == f"{demo.url}{prefix}/status"
        page.locator("#shown").wait_for()
        assert (
            page.title() == "Status · Pixelferry" and "pixelferry-demo · 0.1.0" in page.locator("#model").inner_text()
        )
        names = [row[0] for row in rows(page, "children")]
        expected = {"engine", "text_worker", "picture_worker"}
        assert expected < {*names} and all(re.fullmatch(r"worker( \d+)?", name) for name in {*names} - expected)
        assert {row[1] for row in rows(page, "children")} == {"up"}
        assert all(re.fullmatch(r"\d+ (s|min)", row[2]) for row in rows(page, "children"))
        assert tile(page, "ready").split("\n") == ["ready", "yes"]
        capacity = demo.metric("shm_bytes_capacity") / 2**30
        assert f"of {capacity:.2f} GiB" in tile(page, "shared memory held")
        seen(page, "a rate of no requests", lambda: "0.00" in tile(page, "requests a second"))
        assert page.locator("#tiles polyline").count() == 2 and page.locator("#several").is_hidden()
        assert demo.chat({"text": "Hello"}).status_code == 200
        seen(page, "a rate", lambda: "0.00" not in tile(page, "requests a second") + tile(page, "tokens a second"))
        page.locator("nav a").click()
        assert page.url == f"{demo.url}{prefix}/"


def test_what_dies_shows_as_replaced_and_its_error_appears(tmp_path: Path, opened: Open) -> None:
    root = Path(f"/dev/shm/pixelferry-status-{os.getpid()}")
    with running(None, root, tmp_path / "logs") as server, opened(f"{server.url}/status") as page:
        page.locator("#shown").wait_for()
        assert page.locator("#no-errors").is_visible() and page.locator("#some-errors").is_hidden()
        before = rows(page, "children")
        assert {row[3] for row in before} == {"–"}
        os.kill(server.children("worker")[0], signal.SIGKILL)
        seen(page, "a worker was replaced", lambda: [row[3] for row in rows(page, "children")].count("1") == 1)
        (worker,) = (row for row in rows(page, "children") if row[3] == "1")
        assert worker[0].startswith("worker")
        seen(page, "it is up", lambda: {row[1] for row in rows(page, "children")} == {"up"})
        assert tile(page, "restarts").split("\n") == ["restarts", "1"]
        with answering(server):
            seen(page, "an answer runs", lambda: tile(page, "answers running").split("\n")[1] == "1")
            os.kill(server.children("engine")[0], signal.SIGKILL)
        seen(page, "its error", lambda: rows(page, "errors"))
        (error,) = rows(page, "errors")
        assert error[1:5] == ["/chat", "200", "engine_died", "1"] and re.fullmatch("[0-9a-f]{24}", error[5])
        until("it leads to the line of the log", lambda: error[5] in server.err)
        (slow,) = rows(page, "slowest")
        assert slow[1:3] == ["/chat", "200"] and slow[6] == error[5], "the one that broke off is the slowest, too"
        assert re.match(r"prepare \d+\.\d\d( \(worker_queue \d+\.\d\d\))? · queue \d", slow[4])
        assert "engine_died" in page.locator("#told").inner_text(), "a screen reader hears of it"
        assert re.search(r"\n[1-9]\d* %", tile(page, "requests that failed")) is not None
        server.http.get("/geheim/geheim.txt", headers={"x-request-id": "geheim-1"})
        seen(page, "another error", lambda: len(rows(page, "errors")) == 2)
        assert rows(page, "errors")[0][1:4] == ["unmatched", "404", "route_not_found"]
        assert "geheim" not in page.content()


def test_behind_an_ingress_it_shows_all_replicas(demo: RunningServer, opened: Open) -> None:
    """What the ingress makes of two replicas' answers: rows of each, sums and means of both, no name twice."""
    first, second = "mhhyfbd4", "nw45wk8s"  # as Ray Serve names them
    key_values = {first: "0.5", second: "0.25"}
    starts = {first: "1", second: "2"}

    def metrics() -> str:
        text = httpx.get(f"{demo.url}/metrics").text
        text = re.sub(r'(?m)^(pixelferry:num_requests_waiting{.*place="engine".*}) .*', r"\1 2", text)
        pages = {
            replica: re.sub(
                r"(?m)^(process_start_time_seconds) .*", rf"\1 {starts[replica]}",
                re.sub(r"(?m)^(pixelferry:kv_cache_usage_perc\S*) .*", rf"\1 {key_values[replica]}", text),
            )
            for replica in key_values
        }  # fmt: skip
        return merged(pages)

    def error(second: int) -> dict[str, Any]:
        return {
            "time": f"2026-11-26T12:00:0{second}.000Z",
            "route": "/chat",
            "status": 400,
            "code": "c",
            "id": "d" * 24,
        }

    lists = {name: json.dumps({"errors": [error(n)]}).encode() for n, name in enumerate((first, second), 1)}
    with opened(f"{demo.url}/status") as page:
        page.route("**/metrics", lambda route: route.fulfill(body=metrics()))
        page.route("**/status/errors", lambda route: route.fulfill(body=json.dumps(merged_errors(lists))))
        page.reload()
        page.locator("#several").wait_for()
        assert [(row[0], row[1], *row[3:6]) for row in rows(page, "replicas")] == [
            (first, "yes", "0", "2", "50 %"), (second, "yes", "0", "2", "25 %")
        ]  # fmt: skip
        assert tile(page, "waiting").split("\n")[:2] == ["waiting", "4"]
        box = page.locator("#several .scroll")
        assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth"), "no column is cut"
        assert tile(page, "KV cache in use").split("\n")[1] == "38 %"
        names = [row[0] for row in rows(page, "children")]
        assert {f"{first} · engine", f"{second} · engine"} < {*names} and len({*names}) == len(names)
        assert [row[5] for row in rows(page, "errors")] == [f"{'d' * 24} · {second}", f"{'d' * 24} · {first}"]
        seen(page, "a rate", lambda: "0.00" in tile(page, "requests a second"))
        starts[second] = "3"
        del key_values[first]
        seen(page, "the one that is left", lambda: [row[0] for row in rows(page, "replicas")] == [second])
        assert {row[3] for row in rows(page, "children")} == {"–"}, "a replica that goes is no child that was replaced"


def test_without_a_key_it_is_empty(keyed: RunningServer, opened: Open) -> None:
    """A wrong one is tried once, whatever time passes; with the right one it goes on to ask."""
    asked: list[str] = []
    with opened(f"{keyed.url}/status", expected=("401", "ERR_", "Failed to load")) as page:
        page.locator("#key").wait_for()
        assert page.locator("#trouble").inner_text() == "This server asks for an API key."
        assert page.locator("#shown").is_hidden() and page.locator("#model").inner_text() == ""
        page.clock.install()
        page.on("request", lambda request: asked.append(request.url))
        page.fill("#key", "sk-falsch")
        with page.expect_response("**/metrics"):
            page.keyboard.press("Enter")
        page.locator("#key").wait_for()
        page.clock.run_for(60_000)
        assert page.locator("#shown").is_hidden() and len(asked) == 1, "it does not ask again and again"
        page.fill("#key", "sk-geheim")
        page.keyboard.press("Enter")
        page.locator("#shown").wait_for()
        assert page.locator("#trouble").is_hidden() and page.locator("#model").inner_text() != ""
        assert "sk-geheim" not in page.evaluate("() => JSON.stringify({...localStorage})")
        page.route("**/metrics", lambda route: route.abort())
        page.clock.run_for(60_000)
        page.locator("#trouble", has_text="cannot be reached").wait_for()
        assert page.locator("#shown").is_visible(), "what was seen last stays"


def test_a_proxy_that_says_no(demo: RunningServer, opened: Open) -> None:
    with opened(f"{demo.url}/status", expected=("403",)) as page:
        page.route("**/metrics", lambda route: route.fulfill(status=403, body="no"))
        page.locator("#trouble", has_text="metrics: HTTP 403").wait_for()
        page.unroute("**/metrics")
        page.locator("#trouble").wait_for(state="hidden")


def test_rates_reach_back_a_minute_and_another_server_begins_again(demo: RunningServer, opened: Open) -> None:
    """By figures that the test makes up, on a clock that it moves."""
    told = {"requests": 0.0, "start": 5.0}
    text = 'pixelferry:request_success_total{{finished_reason="stop"}} {requests}\nprocess_start_time_seconds {start}\n'
    with opened(f"{demo.url}/") as page:
        page.clock.install()
        page.route("**/metrics", lambda route: route.fulfill(body=text.format(**told)))
        page.goto(f"{demo.url}/status")
        page.locator("#shown").wait_for()
        page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)
        assert "–" in tile(page, "requests a second"), "one look is no rate"

        def after(seconds: int, requests: float) -> str:
            told["requests"] = requests
            page.locator("#tiles > :first-child").evaluate("(one) => { one.id = 'old'; }")
            page.clock.fast_forward(seconds * 1000)
            page.locator("#old").wait_for(state="detached")  # each look draws all of them anew
            return tile(page, "requests a second").split("\n")[1]

        assert float(after(20, 100)) == pytest.approx(5.0, rel=0.1)
        assert float(after(20, 100)) == pytest.approx(2.5, rel=0.1)
        assert after(30, 100) == "0.00", "the first 20 seconds are more than a minute ago"
        told["start"] = 6.0
        assert after(10, 3) == "–"
        assert float(after(10, 23)) == pytest.approx(2.0, rel=0.1)


def test_both_languages_and_the_keyboard(demo: RunningServer, opened: Open) -> None:
    with opened(f"{demo.url}/status", locale="zh-CN") as page:
        page.locator("#shown").wait_for()
        assert page.title() == "状态 · Pixelferry" and {row[1] for row in rows(page, "children")} == {"正常"}
        assert tile(page, "就绪").split("\n") == ["就绪", "是"]
        demo.http.get("/nothing")
        page.locator("#some-errors").wait_for()
        reached = []
        for _ in range(5):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.textContent"))
        assert reached[:2] == ["to-chat", "language"] and "some-errors" in reached[3:], "what scrolls can be reached"
        page.locator("#language").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.documentElement.lang") == "en"
        assert {row[1] for row in rows(page, "children")} == {"up"} and tile(page, "ready").split("\n")[1] == "yes"
        assert page.locator("thead").last.inner_text().split() == ["time", "route", "status", "code", "times", "id"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(demo: RunningServer, opened: Open, scheme: str) -> None:
    """axe-core finds nothing serious or critical; nothing is wider than 360 pixels."""
    axe = (REPO / "build" / "pages" / "package" / "axe.min.js").read_text()
    demo.http.get("/nothing")
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": scheme, "bypass_csp": True}
    with opened(f"{demo.url}/status", **options) as page:
        page.locator("#some-errors").wait_for()
        page.evaluate(axe)
        found = page.evaluate("() => axe.run()")
        bad = [
            (one["id"], one["nodes"][0]["html"])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert not bad and len(found["passes"]) > 10
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


def test_on_a_phone_every_column_of_the_errors_is_in_view(demo: RunningServer, opened: Open) -> None:
    demo.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x " * 20_000}]})
    with opened(f"{demo.url}/status", viewport={"width": 390, "height": 844}) as page:
        page.locator("#some-errors").wait_for()
        edges = """(one) => [one.scrollWidth - one.clientWidth,
            one.querySelector("tr").lastElementChild.getBoundingClientRect().right]"""
        for region in page.locator("main .scroll:visible").all():
            more, right = region.evaluate(edges)
            assert more <= 0 and right <= 390
        assert page.locator("header").bounding_box()["height"] < 60


def test_a_route_with_awkward_words_is_text(demo: RunningServer, opened: Open) -> None:
    error = {
        "time": "2026-11-26T11:20:31.482Z", "route": "<img src=x onerror=alert(1)>", "status": 500,
        "code": "<b>bold</b>", "id": "0" * 24,
    }  # fmt: skip
    with opened(f"{demo.url}/") as page:
        page.on("dialog", lambda dialog: pytest.fail("something ran"))
        page.route("**/status/errors", lambda route: route.fulfill(body=json.dumps({"errors": [error]})))
        page.goto(f"{demo.url}/status")
        page.locator("#some-errors").wait_for()
        assert rows(page, "errors")[0][1:] == [error["route"], "500", error["code"], "1", error["id"]]
        assert page.locator("#errors img, #errors b").count() == 0
