"""What is not a chat: models, tokenize, health, metrics, the command line and what is printed at start."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from server.commands import main
from tests.e2e.conftest import Start
from tests.e2e.running import REPO, RunningServer, children_of, data_url, picture, stat_of, until
from tests.tiny.qwen2_vl import write_json

pytestmark = pytest.mark.process


def command(*args: str, cwd: Path = REPO) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "server", *args], cwd=cwd, capture_output=True, text=True, timeout=60)


def test_the_model_is_listed(server: RunningServer, tiny_model: Path) -> None:
    body = server.http.get("/v1/models").json()
    assert body["object"] == "list" and len(body["data"]) == 1
    card = body["data"][0]
    assert card["id"] == "tiny" and card["object"] == "model" and card["root"] == str(tiny_model)
    assert card["owned_by"] == "pixelferry" and card["created"] > 1.7e9 and card["max_model_len"] == 32768
    assert card["architecture"]["input_modalities"][0] == "text"
    assert "image" in card["architecture"]["input_modalities"]
    assert server.http.get("/v1/models/tiny").json() == card


def test_tokenize_counts_what_a_chat_will_use(server: RunningServer) -> None:
    image = data_url(picture(120, 90))
    counted = server.http.post("/tokenize", json={"inputs": [{"image": image}, {"text": "Hi"}]}).json()
    used = server.chat({"image": image}, {"text": "Hi"}, max_tokens=1).json()["usage"]
    assert counted["count"] == len(counted["ids"]) == used["prompt_tokens"]
    assert counted["media"] == [{"kind": "image", "tokens": 12}]
    assert all(0 <= token_id < 417 for token_id in counted["ids"])
    parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "Hi"}]
    messages = server.http.post("/tokenize", json={"model": "tiny", "messages": [{"role": "user", "content": parts}]})
    assert messages.json()["ids"] == counted["ids"]
    assert counted["max_model_len"] == 32768


def test_counting_takes_no_shared_memory(small: RunningServer) -> None:
    """The picture has more than there is of it."""
    segments = [small.metric(f'shm_segments{{state="{state}"}}') for state in ("idle", "leased")]
    big = data_url(picture(1600, 1200, kind="JPEG"))
    assert small.http.post("/tokenize", json=[{"image": big}]).json()["media"][0]["tokens"] > 1000
    assert [small.metric(f'shm_segments{{state="{state}"}}') for state in ("idle", "leased")] == segments


def test_health(server: RunningServer) -> None:
    assert server.http.get("/health/live").json() == {"status": "live"}
    ready = server.http.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json()["status"] == "ready" and ready.json()["workers_up"] == 2


def test_head_is_get_without_the_body(server: RunningServer) -> None:
    urls = (
        "/health",
        "/health/live",
        "/health/ready",
        "/v1/models",
        "/v1/models/tiny",
        "/version",
        "/load",
        "/metrics",
    )
    wrong = []
    for url in urls:
        answer, full = server.http.head(url), server.http.get(url)
        alike = answer.headers["content-type"] == full.headers["content-type"]
        if (answer.status_code, answer.content) != (200, b"") or not alike or server.http.post(url).status_code != 405:
            wrong.append(url)
    assert not wrong


def test_metrics_move_with_the_requests(server: RunningServer) -> None:
    def values() -> dict[str, float]:
        names = (
            'request_success_total{finished_reason="length"}', "prompt_tokens_total", "generation_tokens_total",
            "time_to_first_token_seconds_count", "inter_token_latency_seconds_count",
            "e2e_request_latency_seconds_count", "request_queue_time_seconds_count",
            'mm_preprocess_seconds_count{modality="image",stage="write"}',
        )  # fmt: skip
        return {name: server.metric(name) for name in names}

    before = values()
    used = server.chat({"image": data_url(picture(61, 67, seed=67))}, max_tokens=200, ignore_eos=True).json()["usage"]
    moved = {name: value - before[name] for name, value in values().items()}
    assert moved["prompt_tokens_total"] == used["prompt_tokens"]
    assert moved["generation_tokens_total"] == 200
    assert moved['mm_preprocess_seconds_count{modality="image",stage="write"}'] == 1
    assert moved["time_to_first_token_seconds_count"] == moved["e2e_request_latency_seconds_count"] == 1
    assert 1 <= moved["inter_token_latency_seconds_count"] < 200  # tokens that come together are one delta
    text = server.http.get("/metrics").text
    for line in ("num_requests_running", "kv_cache_usage_perc", "num_preemptions_total"):
        assert f'\npixelferry:{line}{{model_name="tiny"}} ' in text
    assert "\npixelferry:shm_bytes_capacity " in text
    assert 'pixelferry:children_up{role="worker"} 2.0' in text and 'children_up{role="engine"} 1.0' in text
    assert 'pixelferry:child_restarts_total{role="engine"} 0.0' in text


def test_what_the_children_take_is_shown_by_role(server: RunningServer) -> None:
    spent = server.metric('child_cpu_seconds_total{role="engine"}')
    server.chat({"text": "Hi"}, max_tokens=400, ignore_eos=True)
    assert server.metric('child_cpu_seconds_total{role="engine"}') > spent > 0.1
    for role, n in (("worker", 2), ("text_worker", 1), ("picture_worker", 1), ("engine", 1)):
        resident = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.children(role)) * 4096
        shown = server.metric(f'child_resident_memory_bytes{{role="{role}"}}')
        assert resident > n * (10 << 20) and abs(shown - resident) < 0.2 * resident
        assert server.metric(f'child_open_fds{{role="{role}"}}') >= 4 * n  # stdin, stdout, stderr, its channel


def test_the_stages_of_requests_add_up_to_their_time(server: RunningServer) -> None:
    """But for what passes between two of them, which is more where a machine is busy."""
    stages = [f"request_{stage}_time_seconds_sum" for stage in ("worker_queue", "preparation", "queue", "prefill")]
    names = [*stages, "request_decode_time_seconds_sum", "e2e_request_latency_seconds_sum"]
    before = [server.metric(name) for name in names]
    large = {"image": data_url(picture(1600, 1200))}
    chats = [(large,), (large, large), ({"text": "Hi"},)]
    for inputs in chats:
        assert server.chat(*inputs, max_tokens=20, ignore_eos=True).status_code == 200
    *parts, whole = (server.metric(name) - past for name, past in zip(names, before, strict=True))
    assert abs(sum(parts) - whole) <= max(0.3 * whole, 0.05 * len(chats)), (parts, whole)
    assert parts[1] > 0.02, "pictures were decoded"


def test_what_is_printed_at_start(server: RunningServer, tiny_model: Path) -> None:
    out = server.out
    for text in (str(tiny_model), "tiny", "--max-model-len", "--max-pixels", "--max-items", "KV cache", "float32"):
        assert text in out
    assert out.rstrip().endswith(f"Pixelferry ready on {server.url}")


def test_workers_never_load_torch(server: RunningServer) -> None:
    for pid in (server.pid, *server.children("worker"), *server.children("text_worker")):
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{server.children('engine')[0]}/maps").read_text()


def test_children_share_nothing_but_their_channel_and_the_lock(server: RunningServer) -> None:
    """An engine that has held an answer to a form has a socket more, to its own child."""
    found: list[str] = []
    for pid in children_of(server.pid):
        assert stat_of(pid)[1] == server.pid
        links = [str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        sockets = [link for link in links if "socket:" in link]
        assert len(sockets) == 1 + len(children_of(pid))
        found += sockets
    assert len(set(found)) == len(found)


def test_a_checkpoint_that_cannot_be_served_is_one_line(start: Start, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["Other"]})
    refused = command("serve", "--model", str(tmp_path))
    assert refused.returncode == 1 and refused.stderr.startswith("error: config.json: architecture 'Other'")
    assert "Traceback" not in refused.stderr and refused.stderr.count("\n") == 1
    long = command("serve", "--max-model-len", "1000000")
    assert long.returncode == 1 and "max_position_embeddings" in long.stderr and "Traceback" not in long.stderr


def test_what_the_engine_refuses_ends_the_server(start: Start, tiny_model: Path) -> None:
    weights = tiny_model / "model.safetensors"
    hidden = weights.rename(tiny_model / "hidden")
    try:
        with start("--workers", "1", wait=False) as server:
            assert server.process.wait(60) == 1
            assert "Traceback" not in server.err
            (line,) = (line for line in server.err.splitlines() if "error: " in line)
            assert line.startswith("error: ") and "no weights here: it holds none of model.safetensors" in line
    finally:
        hidden.rename(weights)


def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {}
    for args, code, said in (
        (["serve", "--port", "99999"], 2, "--port"),
        (["serve", "--model", "/nowhere"], 2, "--model"),
        (["nonsense"], 2, "usage:"),
        ([], 2, "usage:"),
    ):
        try:
            found: int | str | None = main(args)
        except SystemExit as ended:
            found = ended.code
        told = capsys.readouterr().err
        if found != code or said not in told or "Traceback" in told:
            wrong[" ".join(args)] = (found, told)
    assert not wrong


def test_an_address_that_is_taken_is_one_line(server: RunningServer, tiny_model: Path) -> None:
    port = server.url.rpartition(":")[2]
    done = command("serve", "--model", str(tiny_model), "--port", port)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(f"error: cannot listen on 127.0.0.1:{port}: Address already in use")


def test_the_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert "Qwen2VLForConditionalGeneration" in capsys.readouterr().out.split("\n")


def test_one_id_of_ours_leads_from_the_answer_to_the_log(server: RunningServer) -> None:
    sent = {"inputs": [{"text": "Hi"}], "parameters": {"max_tokens": 1}}
    answer = server.http.post("/chat", json=sent, headers={"x-request-id": "theirs-1"})
    ours = answer.json()["id"].removeprefix("chat-")
    assert answer.headers["x-request-id"] == "theirs-1" and re.fullmatch("[0-9a-f]{24}", ours)
    until("its line", lambda: f"POST /chat 200 request_id={ours} x_request_id=theirs-1 " in server.err)
    answer = server.http.post("/chat", json=sent)
    assert answer.json()["id"] == f"chat-{answer.headers['x-request-id']}"
