"""A request that the page copies runs in any folder, or says which file it lacks."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import REPO, RunningServer, picture
from tests.pages.canned import Canned
from tests.pages.conftest import Open
from tests.pages.steps import MEDIA, ask, ended, said

pytestmark = pytest.mark.pages


COMMANDS = {
    "curl": ["sh", "-c"],
    "Python": [sys.executable, "-c"],
    "JavaScript": ["node", "--input-type=module", "-e"],
    "OpenAI Python": [sys.executable, "-c"],
    "OpenAI JavaScript": ["node", "--input-type=module", "-e"],
}
CLIPBOARD = ["clipboard-read", "clipboard-write"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty one, from which node finds the SDK of `make clients`."""
    (tmp_path / "node_modules").symlink_to(REPO / "build" / "clients" / "node" / "node_modules")
    made = tmp_path / "empty"
    made.mkdir()
    return made


def run(name: str, program: str, at: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMANDS[name], program], cwd=at, capture_output=True, text=True, timeout=60)


def copied(page: Any, answer: Any, name: str) -> str:
    answer.get_by_role("button", name=f"Copy the request as {name}", exact=True).click()
    answer.locator(".code").wait_for()
    program: str = page.evaluate("() => navigator.clipboard.readText()")
    return program


def words(name: str, done: "subprocess.CompletedProcess[str]") -> str:
    """What a program printed, as the page shows it."""
    assert done.returncode == 0 and not done.stderr, done.stderr
    texts = re.findall(r'"text":"((?:[^"\\]|\\.)*)"', done.stdout)
    text = json.loads(f'"{"".join(texts)}"') if name == "curl" else done.stdout.removesuffix("\n")
    return re.sub(r"</?ref>|<box>.*?</box>", "", text).strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_copied_request_runs_where_the_file_lies(demo: RunningServer, opened: Open, folder: Path, name: str) -> None:
    """Of a picture above 1 MB with an awkward name, and of a question that quotes in every way."""
    file = folder / 'it\'s "a" $HOME `x` ü 😀.bmp'
    file.write_bytes(picture(800, 600, kind="BMP"))
    with opened(f"{demo.url}/", permissions=CLIPBOARD) as page:
        page.locator("#more summary").click()
        page.fill("#temperature", "0")
        page.fill("#max_tokens", "9")
        page.fill("#top_k", "3")
        answer = ask(page, 'What\'s "this"? \\ $(touch x) `id` %s \n 什么 \u2028 </script> 😀', file)
        shown = page.locator("li.model .text").inner_text()
        program = copied(page, answer, name)
    assert len(program) < 4000
    assert words(name, run(name, program, folder)) == shown.strip()
    assert [path.name for path in folder.iterdir()] == [file.name], "nothing else was run"
    file.unlink()
    failed = run(name, program, folder)
    assert failed.returncode == 1 and not failed.stdout and failed.stderr.count("\n") == 1, failed.stderr
    assert file.name in failed.stderr and failed.stderr.endswith(": run this in the folder that holds it\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_copied_sample_runs_in_an_empty_folder(demo: RunningServer, opened: Open, folder: Path, name: str) -> None:
    """A sound and a chat about a picture; the server has the files, and nothing is left behind."""
    with opened(f"{demo.url}/llm/", permissions=CLIPBOARD) as page:
        page.locator("#samples button").nth(5).click()
        assert words(name, run(name, copied(page, ended(page), name), folder)) == "3"
        page.locator("#fresh").click()
        page.locator("#samples button").nth(1).click()
        ended(page)
        answer = ask(page, "What colour is it?", n=2)
        assert words(name, run(name, copied(page, answer, name), folder)) == said(answer) == "red"
    assert not [*folder.iterdir()]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_copied_request_sends_what_the_page_sent(canned: Canned, opened: Open, folder: Path, name: str) -> None:
    """Each turn, each parameter and the system's words, in the form of the program's route."""
    url, asked = canned
    typed = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": -7}
    with opened(url, permissions=CLIPBOARD) as page:
        page.locator("#more summary").click()
        for field, value in (*typed.items(), ("stop_text", "END"), ("system", "Be brief.")):
            page.fill(f"#{field}", str(value))
        ask(page, "What is this?", MEDIA / "number.png")
        program = copied(page, ask(page, "And now?", n=2), name)
    (folder / "number.png").write_bytes((MEDIA / "number.png").read_bytes())
    run(name, program, folder)
    if not name.startswith("OpenAI"):
        assert asked[2] == asked[1]
        return
    picture_url = {"url": asked[1]["history"][0]["inputs"][0]["image"]}
    first = [{"type": "image_url", "image_url": picture_url}, {"type": "text", "text": "What is this?"}]
    assert asked[2] == {
        "model": "canned", "stream": True, "stop": "END", **typed,
        "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": first},
            {"role": "assistant", "content": "words"}, {"role": "user", "content": "And now?"},
        ],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["Python", "JavaScript"])
def test_a_copied_request_fails_with_the_servers_sentence(
    canned: Canned, opened: Open, tmp_path: Path, name: str
) -> None:
    """Of a refusal, and of an error within the stream, behind the words that came before it."""
    with opened(canned[0]) as page:
        ask(page, "Hello").get_by_role("button", name=f"Copy the request as {name}", exact=True).click()
        program = page.locator(".code").inner_text()
    for path, before in (("refused", ""), ("broken", "some words")):
        done = run(name, program.replace("/chat", f"/{path}"), tmp_path)
        assert done.returncode == 1 and done.stdout.strip() == before and "it went wrong" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["OpenAI Python", "OpenAI JavaScript"])
def test_a_copied_request_of_the_sdk_fails_with_the_servers_sentence(
    demo: RunningServer, opened: Open, folder: Path, name: str
) -> None:
    with opened(f"{demo.url}/", permissions=CLIPBOARD) as page:
        program = copied(page, ask(page, "Hello"), name)
    done = run(name, program.replace('"pixelferry-demo"', '"another"'), folder)
    assert done.returncode == 1 and "no such model" in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout and " at " not in done.stderr, "a sentence, and no stack"
