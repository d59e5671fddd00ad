"""The report: one file that asks for nothing else, with every figure in it and no word of a server as markup."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from server.loadtest.results.client_load import ClientLoad
from server.loadtest.results.measures import Record, RequirementResult
from server.loadtest.results.page import page, stage_bars, write_page
from tests.server.loadtest.examples import CAPACITY, drawn, result_of

VOID = {"meta", "br", "img", "link", "path", "circle", "rect"}


class Balance(HTMLParser):
    """Fails where a tag is closed that is not the last one open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)


def test_a_page_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    records = [*drawn(30, kind="image"), Record(index=30, error="<script>alert(1)</script>")]
    result = replace(
        result_of([("4 streams", 4.0, records)], {"ttft": 0.5}),
        client=ClientLoad(warnings=["busy <b>"]), model="<m>",
        outcomes=[RequirementResult("ttft.p99<1ms", "4 streams", 0.5, False)],
    )  # fmt: skip
    write_page(result, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    balance = Balance()
    balance.feed(text)
    assert balance.open == [] and "svg" in balance.seen and not {"script", "link", "img", "iframe"} & balance.seen
    assert not re.search(r"(?:src|href|url\()", text), "no address that a browser would ask"
    for said in (
        "ttft",
        "prepare.image.decode",
        "busy &lt;b&gt;",
        "&lt;m&gt;",
        "4 streams: ttft.p99&lt;1ms",
        "leased",
        "type 7",
        "in flight",
        "Hit rates: tokens 25.0% (60 of 240), media unknown",
    ):
        assert said in text, said


def test_a_sweep_shows_its_curves_and_its_knee() -> None:
    swept = [("1 req/s", 1.0, drawn(9)), ("2 req/s", 2.0, drawn(9))]
    text = page(result_of(swept, {"ttft": 1.0}))
    assert "Sweep" in text and "highest load that was carried: 2 req/s" in text
    assert "ttft.p99, ms" in text and "Objectives by load" in text and "ttft objective" in text
    assert "Tiles: 2 req/s, the highest load that was carried" in text
    missed = page(result_of(swept, {"ttft": 0.001}))
    assert "Tiles: 2 req/s, the last step" in missed and "carried: none" in missed
    assert "carried" not in page(result_of(swept)), "without an objective nobody knows"
    assert "Sweep" not in page(result_of([("1 req/s", 1.0, drawn(9))]))


def test_a_search_shows_its_percentile_by_load_as_numbers_and_as_a_plot() -> None:
    repeats = [("7.1 req/s poisson, repeat 1", 7.1, drawn(9)), ("8.8 req/s poisson, repeat 1", 8.8, drawn(9))]
    text = page(replace(result_of(repeats), capacity=CAPACITY))
    balance = Balance()
    balance.feed(text)
    assert balance.open == [] and "Sweep" not in text
    for said in ("capacity for ttft.p99&lt;=1s: from 7.1 to 8.8 req/s", "640.0", "1400", "ttft.p99 by load",
                 "Tiles: 7.1 req/s poisson, repeat 1, the highest load that was carried"):  # fmt: skip
        assert said in text, said
    assert text.count("<h2>8.8 req/s") == 0, "its many repeats have no parts of their own"


def test_stages_inside_another_stage_are_no_bar_of_their_own() -> None:
    stages = {"queue": 0.1, "prepare": 0.3, "prepare.decode": 0.2}
    step = result_of([("x", 1.0, [replace(one, stages=stages) for one in drawn(3)])]).steps[0]
    bars = stage_bars(step)
    assert bars is not None and "queue" in bars and "prepare" in bars and "prepare.decode" not in bars


def test_a_run_without_an_answer_has_a_page_too() -> None:
    text = page(result_of([("x", 1.0, [Record(index=0, error="timeout")])]))
    assert "no request was answered" in text
    assert "no request was answered" in page(result_of([]))


STYLE = page(result_of([])).partition("<style>")[2].partition("</style>")[0]


def test_every_brace_is_closed_and_nothing_is_fetched() -> None:
    assert STYLE.count("{") == STYLE.count("}") and "url(" not in STYLE and "@import" not in STYLE


def test_every_variable_that_is_used_is_set_in_both_modes() -> None:
    used = set(re.findall(r"var\((--\w+)\)", STYLE))
    light, dark = STYLE.split("prefers-color-scheme:dark")
    for mode in (light, dark):
        assert used <= set(re.findall(r"(--\w+):", mode))
