"""The pages: each file as it is, under its policy, in the wheel, within its size, and open where keys are set."""

import re
from pathlib import Path
from unittest.mock import MagicMock

import httpx
import pytest

from server.http.app import create_app, create_waiting_app
from server.http.health import DownloadProgress
from server.http.middleware.keys import ApiKeys, digest_of
from server.http.pages import FILES, NAMES, PATHS
from server.metrics import Metrics
from tests.server.http.exchanges import behind_guard, bodies
from tests.server.tables import each_of

CODE = {".html", ".css", ".js"}


def client(**options: object) -> httpx.AsyncClient:
    service = MagicMock()
    service.traces = None
    app = behind_guard(create_app(service, bodies(), **options))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


@pytest.mark.anyio
@each_of("path", sorted(PATHS))
async def test_a_file_is_open_and_lets_nothing_else_in(path: str) -> None:
    keys = ApiKeys((digest_of("sk-geheim"),), None)
    async with client(keys=keys) as http:
        answer = await http.get(path)
        assert answer.status_code == 200 and answer.content == (FILES / NAMES.get(path, path[1:])).read_bytes()
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in (
            "text/html",
            "text/css",
            "text/javascript",
            "image/svg+xml",
            "image/png",
            "video/mp4",
            "audio/wav",
        )
        assert (await http.get("/v1/models")).status_code == 401, "and nothing else is"


@pytest.mark.anyio
async def test_pages_can_be_turned_off() -> None:
    assert {"/", "/status", "/status.js", "/samples/shapes.png"} < PATHS and "/index.html" not in PATHS
    async with client(page=False) as http:
        assert {(await http.get(path)).status_code for path in PATHS} == {404}


@pytest.mark.anyio
async def test_a_path_without_its_last_slash_leads_to_the_page() -> None:
    """Whose files have relative addresses. Nothing else is there."""
    keys = ApiKeys((digest_of("sk-geheim"),), None)
    async with client(keys=keys, root_path="/llm") as http:
        answer = await http.get("/llm")
        assert (answer.status_code, answer.headers["location"]) == (307, "/llm/")
        assert (await http.get("/llm/")).content == (FILES / "index.html").read_bytes()
        assert (await http.post("/llm")).status_code == 405 and (await http.get("/llmx")).status_code == 401
    async with client(page=False, root_path="/llm") as http:
        assert (await http.get("/llm")).status_code == 404


@pytest.mark.anyio
async def test_pages_are_there_while_a_model_is_downloaded() -> None:
    for page in (True, False):
        app = behind_guard(create_waiting_app(DownloadProgress(), Metrics("tiny", "1"), bodies(), "1", page=page))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            assert {(await http.get(path)).status_code for path in PATHS} == {200 if page else 503}
            assert (await http.get("/v1/models")).json()["error"]["code"] == "downloading"


def test_sizes() -> None:
    sizes = {path: path.stat().st_size for path in FILES.rglob("*") if path.is_file()}
    assert sum(size for path, size in sizes.items() if path.suffix in CODE) <= 120_000
    assert sum(size for path, size in sizes.items() if path.parent.name == "samples") <= 150_000


@each_of("path", [path for path in FILES.iterdir() if path.suffix in CODE], ids=lambda path: path.name)
def test_nothing_is_run_from_text_and_nothing_is_fetched_from_outside(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\son\w+=", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r'(src|href)="/', text), "addresses are relative: it may lie below --root-path"


def test_every_word_is_said_in_both_languages() -> None:
    words = (FILES / "words.js").read_text()
    english, chinese = (
        {*re.findall(r'[{,]?\s(\w+): "', part)}
        for part in words.partition("WORDS = {")[2].split("\n};")[0].split("zh: {")
    )
    used = {*re.findall(r'say\("(\w+)"', "".join(path.read_text() for path in FILES.glob("*.js")))}
    used |= {*re.findall(r'data-word="(\w+)"', "".join(path.read_text() for path in FILES.glob("*.html")))}
    assert english == chinese and used <= english and len(english) > 50
