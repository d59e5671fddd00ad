"""Chromium over a server of the embedded model. A page that logs an error or asks another host fails its test."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import RunningServer, running
from tests.pages.canned import canned as canned

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
Open = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The machine's browser by Playwright, which `make pages` puts on the path; without one nothing is skipped."""
    playwright = pytest.importorskip("playwright.sync_api", reason="run by `make pages`")
    if CHROMIUM is None:
        pytest.exit("please install Chromium, as .ci/system-packages does (Debian's package is `chromium`)", 1)
    with playwright.sync_playwright() as running_playwright:
        browser = running_playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = Path(f"/dev/shm/pixelferry-pages-{os.getpid()}")
    with running(None, root, tmp_path_factory.mktemp("pages"), "--root-path", "/llm") as server:
        yield server
        server.assert_nothing_held()


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One that asks for a key, and takes bodies of 2 MiB."""
    root = Path(f"/dev/shm/pixelferry-keys-{os.getpid()}")
    flags = ("--api-key", "sk-geheim", "--max-body-mib", "2")
    with running(None, root, tmp_path_factory.mktemp("keyed"), *flags) as server:
        yield server


@pytest.fixture
def opened(chromium: Any) -> Open:
    """opened(url, **options of a context) -> a page; what it complains of fails the test, but for `expected` words."""

    @contextmanager
    def opened(url: str, *, expected: tuple[str, ...] = (), script: str = "", **options: Any) -> Iterator[Any]:
        context = chromium.new_context(**{"locale": "en-US", "viewport": {"width": 1100, "height": 900}, **options})
        complaints: list[str] = []
        page = context.new_page()
        if script:
            page.add_init_script(script)
        host = url.split("/")[2]
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("blob:", "data:")) or request.url.split("/")[2] == host
                else complaints.append(f"asked {request.url}")
            ),
        )
        page.goto(url)
        try:
            yield page
        finally:
            context.close()
        assert not [one for one in complaints if not any(word in one for word in expected)]

    return opened
