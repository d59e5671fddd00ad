"""A request that the page copies runs where its file lies."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.running import RunningServer, picture
from tests.pages.canned import Canned
from tests.pages.conftest import Open
from tests.pages.steps import ask

pytestmark = pytest.mark.pages


COMMANDS = {
    "curl": ["bash", "-c"],
    "Python": [sys.executable, "-c"],
    "JavaScript": ["node", "--input-type=module", "-e"],
}


def run(name: str, program: str, at: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMANDS[name], program], cwd=at, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["curl", "Python", "JavaScript"])
def test_a_copied_request_runs_where_the_file_lies(
    demo: RunningServer, opened: Open, tmp_path: Path, name: str
) -> None:
    """Of a picture above 1 MB with an awkward name, and of a question that quotes in every way."""
    file = tmp_path / 'it\'s "a" $HOME `x` ü 😀.bmp'
    file.write_bytes(picture(800, 600, kind="BMP"))
    with opened(f"{demo.url}/", permissions=["clipboard-read", "clipboard-write"]) as page:
        page.locator("#more summary").click()
        page.fill("#temperature", "0")
        page.fill("#max_tokens", "9")
        answer = ask(page, 'What\'s "this"? \\ $(touch x) `id` %s \n 什么 \u2028 </script> 😀', file)
        shown = page.locator("li.model .text").inner_text()
        answer.get_by_role("button", name=f"Copy the request as {name}").click()
        page.locator(".code").wait_for()
        program = page.evaluate("() => navigator.clipboard.readText()")
    assert len(program) < 4000
    done = run(name, program, tmp_path)
    assert done.returncode == 0 and not done.stderr, done.stderr
    texts = re.findall(r'"text":"((?:[^"\\]|\\.)*)"', done.stdout)
    said_again = json.loads(f'"{"".join(texts)}"') if name == "curl" else done.stdout.removesuffix("\n")
    assert re.sub(r"</?ref>|<box>.*?</box>", "", said_again).strip() == shown.strip()
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name], "nothing else was run"


@pytest.mark.parametrize("name", ["Python", "JavaScript"])
def test_a_copied_request_fails_with_the_servers_sentence(
    canned: Canned, opened: Open, tmp_path: Path, name: str
) -> None:
    """Of a refusal, and of an error within the stream, behind the words that came before it."""
    with opened(canned[0]) as page:
        ask(page, "Hello").get_by_role("button", name=f"Copy the request as {name}").click()
        program = page.locator(".code").inner_text()
    for path, said in (("refused", ""), ("broken", "some words")):
        done = run(name, program.replace("/chat", f"/{path}"), tmp_path)
        assert done.returncode == 1 and done.stdout.strip() == said and "it went wrong" in done.stderr
        assert "Traceback" not in done.stderr
