"""The load test against a real server, by both routes: all requests answered, stages joined, nothing left behind."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from server.loadtest.command import GOOD, loadtest
from server.usage import usage_of
from tests.e2e.running import RunningServer

pytestmark = pytest.mark.process

STAGES = ("prepare", "queue", "prefill", "decode")


def measured(server: RunningServer, path: Path, *flags: str, judged: str = "unknown") -> dict[str, Any]:
    """The step of a run that must be good. judged: what may be said of memory; a short run tells nothing."""
    shared = ["--quiet", "--url", server.url, "--shm-root", str(server.root), "--json", str(path), "--max-tokens", "4"]
    assert loadtest([*shared, *flags]) == GOOD
    found: dict[str, Any] = json.loads(path.read_text())
    told = {one["name"]: one["verdict"] for one in found["findings"]}
    memory = {name: told.pop(name) for name in list(told) if name.startswith("memory of ")}
    assert set(told.values()) == {"clean"} and len(told) == 9
    assert {"memory of the server process", "memory of process engine", "memory of process worker"} <= set(memory)
    assert {*memory.values(), found["leak"]} <= set(judged.split())
    step: dict[str, Any] = found["steps"][0]
    return step


@pytest.mark.parametrize("api", ["openai", "native"])
def test_both_routes_are_measured_and_their_stages_joined(server: RunningServer, api: str, tmp_path: Path) -> None:
    mix = ["--mix", "text:1,image:1", "--image-sizes", "64x48", "--concurrency", "2", "--requests", "8", "--ignore-eos"]
    # A picture that was seen before is not decoded.
    mix += ["--unique-media", "--seed", "1" if api == "native" else "2"]
    step = measured(server, tmp_path / "run.json", "--api", api, "--require", "errors<=0", *mix)
    assert step["summary"]["answered"] == 8 and step["summary"]["output_tokens"] == 32
    for record in step["records"]:
        assert record["finish"] == "length" and record["prompt_tokens"] > 0 and not record["tokens_by_events"]
        assert set(STAGES) <= set(record["stages"]), "the server's seconds of this very request"
        assert ("prepare.image.decode" in record["stages"]) == (record["kind"] == "image")
        inside = sum(record["stages"][name] for name in STAGES)
        assert inside <= record["ended"] - record["sent"], "the server's clock runs within the client's"


@pytest.mark.parametrize(("flags", "rate"), [(["--shared-media", "1"], 1.0), (["--unique-media"], 0.0)])
def test_the_hit_rate_is_that_of_what_was_sent(
    server: RunningServer, flags: list[str], rate: float, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    measured(server, path, "--requests", "6", "--mix", "image", "--image-sizes", "80x48", "--seed", f"{rate:g}", *flags)
    found = json.loads(path.read_text())["hit_rates"]
    assert (found["media"]["queries"], found["media"]["rate"]) == (6, rate), "the warm-up counts for nothing"
    assert found["tokens"]["queries"] > 0 and found["tokens"]["rate"] is not None


def test_clients_that_leave_leave_nothing_behind(server: RunningServer, tmp_path: Path) -> None:
    flags = [
        "--mix",
        "image",
        "--image-sizes",
        "64x48",
        "--cancel",
        "50%",
        "--cancel-within",
        "50ms",
        "--max-tokens",
        "64",
    ]
    step = measured(server, tmp_path / "run.json", "--requests", "12", "--warmup", "1", *flags)
    assert step["summary"]["failed"] == 0 and step["summary"]["cancelled"] > 0


def test_who_does_not_ask_is_told_no_timings(server: RunningServer) -> None:
    body = {"inputs": [{"text": "Hi"}], "parameters": {"max_tokens": 2}}
    assert "timings" not in server.http.post("/chat", json=body).json()["usage"]
    timed = server.http.post("/chat", json=body, headers={"X-Pixelferry-Timings": "1"}).json()["usage"]["timings"]
    assert all(timed[name] >= 0 for name in STAGES)


@pytest.mark.long
@pytest.mark.timeout(4200)
def test_an_hour_at_a_steady_rate_leaves_client_and_server_flat(server: RunningServer, tmp_path: Path) -> None:
    """The client keeps a record of each request, about a kilobyte, and little besides."""
    path, before = tmp_path / "hour.json", usage_of(os.getpid()).resident_bytes
    flags = ["--rate", "4", "--seconds", "1h", "--mix", "text:2,image:1", "--image-sizes", "320x240", "--cancel", "5%"]
    step = measured(server, path, "--sample", "10s", "--require", "errors<=0", *flags, judged="clean unknown")
    n = step["summary"]["requests"]
    assert n > 10_000 and usage_of(os.getpid()).resident_bytes - before < 4096 * n + (64 << 20)
