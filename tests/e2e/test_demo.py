"""The embedded default, as it is shipped: a newcomer's first questions, and a short examination through the server.

The whole examination is `python -m demo evaluate`; what it found stands in docs/demo-model.md.
"""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from configs.settings import EMBEDDED_NAME
from demo.answers import COLOURS, SHAPES
from demo.exam import ROWS
from demo.examiner import Examiner
from server.commands import main
from server.report import size
from tests.e2e.running import REPO, RunningServer
from tests.samples.voices import firefox, safari
from tests.tables import each_of

pytestmark = pytest.mark.process

EACH = 4  # questions of a task
READMES = ("README.md", "README.zh.md")
PHOTO_QUESTIONS = (
    "What is in this picture?", "Describe this photo.", "What is in the photo?", "What colour is the boat?",
    "How many people are there?",
)  # fmt: skip
SEED = 7


def text_of(page: str) -> str:
    return (REPO / page).read_text(encoding="utf-8")


def test_it_says_what_it_is(embedded: RunningServer) -> None:
    assert "demo model, docs/demo-model.md" in embedded.out
    assert "importing torch" in embedded.err, "the longest silence of a start has a line"
    assert embedded.http.get("/v1/models").json()["data"][0]["id"] == EMBEDDED_NAME


def test_its_plan_says_what_it_has(embedded: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights and cache, which on a machine of any size is all that can be used; no more is said of a CPU at start."""
    assert main(["plan", "--device", "cpu", "--tensor-parallel", "1", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["tensor_parallel"]
    lines = dict(re.findall(r"^  (KV cache|weights) +(\S+ \S+)", embedded.out, re.MULTILINE))
    assert lines["weights"] == size(one["weight_bytes"])
    assert f"  {'KV cache':<22} {one['serve_kv_tokens']} tokens in " in embedded.out
    assert f"{size(one['serve_kv_tokens'] * one['kv_bytes_per_token']):<12} {one['serve_kv_bound']}\n" in embedded.out


@pytest.mark.parametrize(
    ("inputs", "answer"),
    [
        ([{"image": "examples/media/red-circle.png"}, {"text": "What is in this picture?"}], "red circle"),
        ([{"image": "examples/media/red-circle.png"}, {"text": "图中是什么？"}], "红色圆形"),
        ([{"video": "examples/media/moving-right.mp4"}, {"text": "Which way does it move?"}], "right"),
        ([{"audio": "examples/media/three-beeps.wav"}, {"text": "How many beeps do you hear?"}], "3"),
        ([{"image": "examples/media/ferry.jpg"}, {"text": "What is in the photo?"}], "I do not know."),
    ],
)
def test_the_first_questions_of_the_readme(embedded: RunningServer, inputs: list[dict[str, str]], answer: str) -> None:
    assert embedded.chat(*inputs, max_tokens=64).json()["text"] == answer


@each_of("page", (*READMES, "docs/api.md"))
def test_the_commands_of_a_page_give_what_it_prints(embedded: RunningServer, page: str) -> None:
    """But for an answer's id and time, and for what the shared server has in its cache."""
    pairs = re.findall(r"^(    curl http[^`]*?)\n\n    (\{.*?)\n\n", text_of(page), re.DOTALL | re.MULTILINE)
    assert pairs
    for command, printed in pairs:
        command = command.replace("http://127.0.0.1:8000", embedded.url).replace("curl ", "curl --silent ", 1)
        said = subprocess.run(["bash", "-c", command], cwd=REPO, check=True, capture_output=True, text=True).stdout
        answer, expected = json.loads(said), json.loads(printed)
        assert answer.keys() == expected.keys() and answer.get("error") == expected.get("error")
        assert answer.get("choices") == expected.get("choices")
        for one in (answer, expected):
            one.get("usage", {}).get("prompt_tokens_details", {}).pop("cached_tokens", None)
        assert answer.get("usage") == expected.get("usage")


def test_to_questions_about_a_photo_it_says_what_the_readmes_say(embedded: RunningServer) -> None:
    """Two answers as they are quoted there, and what kind of answer there is at all: words that it knows, or none."""
    known = re.compile(f"[0-9]+|({'|'.join(COLOURS)})( ({'|'.join(SHAPES)}))?")
    answers = {
        question: embedded.chat({"image": "examples/media/ferry.jpg"}, {"text": question}).json()["text"]
        for question in PHOTO_QUESTIONS
    }
    for answer in answers.values():
        assert answer == "I do not know." or all(known.fullmatch(one) for one in answer.split(", ")), answers
    for page in READMES:
        paragraph = next(one for one in text_of(page).split("\n\n") if "ferry.jpg" in one)
        spans = [span for span in re.findall(r"`([^`]*)`", paragraph) if "/" not in span]
        quoted = {span: spans[n + 1] for n, span in enumerate(spans) if span.endswith("?")}
        assert len(quoted) == 2 and quoted.items() <= answers.items(), (page, answers)


@pytest.mark.parametrize(("browser", "kind"), [(firefox, "audio/ogg"), (safari, "audio/mp4")])
def test_a_voice_that_a_browser_recorded_is_heard(
    embedded: RunningServer, browser: Callable[[Path], bytes], kind: str
) -> None:
    """As the page at / sends it; tests/samples/voices.py says what made the files."""
    voice = base64.b64encode(browser(REPO / "examples" / "media" / "three-beeps.wav")).decode()
    answer = embedded.chat(
        {"audio": f"data:{kind};base64,{voice}"}, {"text": "How many beeps are there?"}, max_tokens=8
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == "3" and [one["kind"] for one in answer.json()["media"]] == ["audio"]


def test_the_example_of_answers_in_a_form(embedded: RunningServer) -> None:
    command = [sys.executable, str(REPO / "examples" / "structured.py"), "--base-url", f"{embedded.url}/v1"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert re.fullmatch(r"shapes=\[(Shape\(colour='[a-z]+', shape='[a-z]+'\)(, )?){0,2}\]", said[0]), said[0]
    assert said[1:] == ["red circle", "red circle"]


def test_the_example_of_tools_runs(embedded: RunningServer) -> None:
    """A call is demanded, and held to its schema: this model was taught another tool."""
    script = [sys.executable, str(REPO / "examples" / "tools.py"), "--base-url", f"{embedded.url}/v1"]
    ran = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert re.match(r'paint\(\{"colour": "(red|green|blue)", "coats": [123]\}\): The wall has', ran.stdout), ran.stdout


def test_it_answers_what_it_was_trained_for(embedded: RunningServer) -> None:
    """Of the tasks with a goal, together: no goal is proved by so few questions, but a broken path shows."""
    rows = [row for row in ROWS if row.goal is not None]
    with closing(Examiner(embedded.url)) as examiner:
        results = [examiner.examine(row, EACH, SEED) for row in rows]
    shares = {result.row.name: result.right / result.asked for result in results}
    assert sum(shares.values()) / len(shares) > 0.75, shares
