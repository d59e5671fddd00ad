"""Servers of hostile checkpoints: a start ends in one sentence within its bounds, a request is one refused answer."""

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, recovered
from tests.e2e.running import children_of
from tests.tokenization.test_template_proof import LOOP

pytestmark = pytest.mark.process

LIMIT_SECONDS = 120  # of three children with 5 s of processor time each, on a machine that others use
SERVER_BYTES = 256 << 20
PROVEN = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<|image_pad|>{% elif p.type == 'video' %}<|video_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"  # noqa: E501
BOOM = "{% if messages | length == 2 %}" + LOOP + "{% endif %}"
GROWS = "{% if messages | length > 4 %}{{ 'a' * 10 ** 10 }}{% endif %}"


def with_template(model: Path, path: Path, template: str) -> Path:
    shutil.copytree(model, path)
    (path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    return path


@pytest.mark.faults
@pytest.mark.parametrize(
    ("template", "said"),
    [
        (LOOP, "5 s of processor time"),
        ("{{ 3 ** (2 ** 26) }}", "5 s of processor time"),
        ("{{ 'a' * 10 ** 10 }}", "512 MiB"),
        ("{{ messages[0].role }}", "not exactly one place"),
    ],
)
def test_row_12_a_template_that_cannot_be_served_ends_the_start_in_one_sentence(
    start: Start, tiny_model: Path, tmp_path: Path, template: str, said: str
) -> None:
    begun, most = time.monotonic(), 0
    with start("--model", str(with_template(tiny_model, tmp_path / "model", template)), wait=False) as server:
        while server.process.poll() is None:
            assert time.monotonic() - begun < LIMIT_SECONDS
            fields = Path(f"/proc/{server.pid}/statm").read_text().split()
            most = max(most, int(fields[1]) * 4096 if len(fields) > 1 else 0)
            time.sleep(0.02)
        assert server.process.returncode == 1 and "Traceback" not in server.err
        (line,) = (line for line in server.err.splitlines() if "error: " in line)
        assert line.startswith("error: chat_template.json: the chat template") and said in line
        assert most < SERVER_BYTES, most
    print(f"ended after {time.monotonic() - begun:.1f} s, the server had {most >> 20} MiB")


@pytest.mark.faults
def test_row_12_a_template_that_turns_on_a_request_costs_that_request_alone(
    start: Start, tiny_model: Path, tmp_path: Path
) -> None:
    """It passes its proof, and then loops for chats of two messages and grows for those of five."""
    model = with_template(tiny_model, tmp_path / "tiny", PROVEN + BOOM + GROWS)
    say = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Yes"}]}
    with start("--model", str(model), "--step-seconds", "2") as server:
        loops = server.http.post(
            "/v1/chat/completions", json={"model": "tiny", "max_tokens": 4, "messages": [*say, *say]}, timeout=60
        )
        assert loops.status_code == 400 and loops.json()["error"]["code"] == "took_too_long", loops.text
        grows = server.http.post(
            "/v1/chat/completions",
            json={"model": "tiny", "max_tokens": 4, "messages": [*say, answer, *say, answer, *say]},
            timeout=60,
        )
        assert grows.status_code == 400 and grows.json()["error"]["code"] == "worker_memory", grows.text
        recovered(server)
        assert server.chat({"text": "Hi"}, **GREEDY).status_code == 200
        assert len(children_of(server.pid)) == 5
    print(loops.status_code, loops.json()["error"]["message"], grows.status_code, grows.json()["error"]["message"])
