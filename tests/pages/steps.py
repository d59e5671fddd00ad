"""What a stranger does with the page at /, and what it then shows."""

from pathlib import Path
from typing import Any

from tests.e2e.running import REPO

MEDIA = REPO / "examples" / "media"


def ended(page: Any, n: int = 1) -> Any:
    """The n-th answer, once it has ended."""
    page.locator("li.model .acts button:last-child").nth(n - 1).wait_for(timeout=60_000)
    return page.locator("li.model").nth(n - 1)


def drawn(page: Any) -> None:
    """Two frames later: what a change leads to by scrolling, by sizes and by promises has run."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def ask(page: Any, text: str, *files: Path, n: int = 1) -> Any:
    if files:
        page.set_input_files("#files", files)
    page.fill("#text", text)
    page.keyboard.press("Enter")
    return ended(page, n)


def said(answer: Any) -> str:
    text: str = answer.locator(".text").text_content()  # also where it is out of sight
    return text
