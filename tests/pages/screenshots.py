"""Takes the README's screenshots of the page at /: the embedded model answers, and nothing is painted over.

    PYTHONPATH=build/pages .venv/bin/python -m tests.pages.screenshots docs

The browser needs a font with Chinese for its button (Debian's fonts-wqy-microhei).
"""

import importlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from tests.e2e.running import running
from tests.pages.conftest import CHROMIUM, FLAGS
from tests.pages.steps import ask
from tests.pages.table_photo import table_photo

SIZE = {"width": 860, "height": 800}
MOST_BYTES = 150_000


def chat(page: Any, photo: Path) -> None:
    ask(page, "Where is the red circle?", photo)
    ask(page, "Where is the blue square?", n=2)
    page.locator("polygon").nth(1).wait_for()
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")


def compressed(png: bytes) -> bytes:
    """The same in 256 colours."""
    sink = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(sink, "PNG", optimize=True)
    return sink.getvalue()


def main(to: Path) -> None:
    api = importlib.import_module("playwright.sync_api")  # of build/pages
    with tempfile.TemporaryDirectory() as name, api.sync_playwright() as playwright:
        photo = Path(name) / "table.jpg"
        photo.write_bytes(table_photo())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        root = Path(f"/dev/shm/pixelferry-screenshots-{os.getpid()}")
        with running(None, root, Path(name) / "logs") as server:
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport=SIZE, color_scheme=scheme, locale="en-US")
                page.goto(f"{server.url}/")
                chat(page, photo)
                png = compressed(page.screenshot())
                assert len(png) < MOST_BYTES, len(png)
                (to / f"page-{scheme}.png").write_bytes(png)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
