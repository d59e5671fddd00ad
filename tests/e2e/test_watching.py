"""What an operator sees of one server: the spans of a request, an engine that is busy, and one that hangs."""

import base64
import ctypes
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.deploy.shipped import REPO
from tests.e2e.collector import CollectorDouble, collecting
from tests.e2e.conftest import Start
from tests.e2e.faults import chat_body
from tests.e2e.running import RunningServer, data_url, picture, until
from tests.e2e.sent_secrets import SECRET, sent_everywhere
from tests.hostile.clients import connected, posted, say

pytestmark = pytest.mark.process

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
CANARY = ("--canary-seconds", "0.3", "--canary-deadline-seconds", "2", "--pulse-seconds", "60")


@pytest.fixture(scope="module")
def collector() -> Iterator[CollectorDouble]:
    with collecting() as double:
        yield double


@pytest.fixture(scope="module")
def server(start: Start, collector: CollectorDouble) -> Iterator[RunningServer]:
    """It has one place, sends spans at once, asks its engine often and says all it can. Its engine may be killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_SERVICE_NAME", "chats")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with start(
            "--max-seqs", "1", "--workers", "1", "--log-format", "json", "--log-level", "debug", *CANARY
        ) as server:
            yield server


def records(server: RunningServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.err.splitlines()]


def attributes(span: Span) -> dict[str, Any]:
    return {pair.key: pair.value for pair in span.attributes}


def test_a_request_becomes_spans_in_its_callers_trace(server: RunningServer, collector: CollectorDouble) -> None:
    body = {"inputs": [{"image": data_url(picture(56, 56))}, {"text": "Hi"}], "parameters": {"max_tokens": 3}}
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    assert server.http.post("/chat", json=body, headers={**headers, "x-request-id": "traced"}).status_code == 200
    until("its spans", lambda: len(collector.of_trace(TRACE)) == 6)
    root, *stages = collector.of_trace(TRACE)
    assert (root.name, root.kind, root.parent_span_id.hex()) == ("POST /chat", Span.SPAN_KIND_SERVER, CALLER)
    assert [span.name for span in stages] == ["queue", "preprocess", "queue", "prefill", "decode"]
    assert all(span.parent_span_id == root.span_id for span in stages)
    said = attributes(root)
    assert said["gen_ai.usage.output_tokens"].int_value == 3 and said["http.route"].string_value == "/chat"
    assert any(name.startswith("pixelferry.preprocess.image.") for name in attributes(stages[1]))
    assert collector.service["service.name"] == "chats" and collector.service["service.version"]
    (line,) = until("its line", lambda: [one for one in records(server) if one.get("x_request_id") == "traced"])
    assert line["trace_id"] == TRACE and said["pixelferry.request_id"].string_value == line["request_id"]


def test_what_pods_are_scaled_by_counts_all_requests(server: RunningServer) -> None:
    """Those that run and those that wait for a seat, from the start: a sum without its series is no figure at all."""
    scaled = yaml.safe_load((REPO / "deploy/kubernetes/autoscaling/scaledobject.yaml").read_text(encoding="utf-8"))
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    summed = re.findall(r"sum\((pixelferry:\w+)\{[^}]*\}\)", query)
    assert len(summed) == 2 and re.sub(r"sum\([^()]*\)", "N", query).split() == ["N", "+", "N"]

    def load() -> float:
        lines = server.http.get("/metrics").text.splitlines()
        figures = {name: [float(one.split()[-1]) for one in lines if one.startswith(f"{name}{{")] for name in summed}
        assert all(figures.values()), "each has its series"
        return sum(map(sum, figures.values()))

    def counts(n: int) -> bool:
        return load() == n

    assert load() == 0
    asked = posted("/chat", chat_body(stream=True))
    with ExitStack() as clients:
        for n in range(3):
            say(clients.enter_context(connected(server.url)), asked)  # a queued stream's head comes late
            until("it counts", partial(counts, n + 1))
    until("they ended", partial(counts, 0))


def test_probes_and_what_the_caller_does_not_keep_become_none(
    server: RunningServer, collector: CollectorDouble
) -> None:
    other, kept = "1" * 32, "2" * 32
    for url in ("/health/ready", "/metrics"):
        server.http.get(url, headers={"traceparent": f"00-{other}-{CALLER}-01"})
    server.http.get("/v1/models", headers={"traceparent": f"00-{other}-{CALLER}-00"})
    server.http.get("/v1/models", headers={"traceparent": f"00-{kept}-{CALLER}-01"})
    until("a later span", lambda: collector.of_trace(kept))
    assert collector.of_trace(other) == []


def test_an_idle_engine_is_asked_and_a_full_one_is_busy(server: RunningServer) -> None:
    answered = 'canaries_total{result="answered"}'
    before = server.metric(answered)
    tokens = server.metric("generation_tokens_total")
    until("two canaries", lambda: server.metric(answered) >= before + 2)
    assert server.metric("generation_tokens_total") == tokens, "nobody's tokens"
    with server.http.stream("POST", "/chat", json=chat_body(stream=True)):
        busy = until("busy", lambda: (a := server.http.get("/health/ready")).json()["status"] == "busy" and a)
        assert busy.status_code == 200


def test_a_stopped_engine_is_not_ready_until_it_goes_on(server: RunningServer) -> None:
    (engine,) = server.children("engine")
    os.kill(engine, signal.SIGSTOP)
    try:
        answer = until("not ready", lambda: (a := server.http.get("/health/ready")).status_code == 503 and a)
        assert server.metric("ready") == 0
    finally:
        os.kill(engine, signal.SIGCONT)
    assert answer.json()["status"] == "engine_stuck" and int(answer.headers["retry-after"]) >= 1
    until("ready", lambda: server.ready() == 200)
    assert server.children("engine") == [engine] and server.metric('canaries_total{result="late"}') >= 1


def test_nothing_of_what_is_sent_stands_in_a_log(server: RunningServer) -> None:
    """At the level that says most; and every line of every process is an object."""
    sent_everywhere(server)
    until("the last line", lambda: '"GET /.../x 404"' in server.err)
    whole = server.err
    for hidden in (SECRET, base64.b64encode(SECRET.encode()).decode(), "data:", "base64,", "Bearer", "iVBORw0KGgo"):
        assert hidden not in whole, hidden
    told: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
    assert {line["process"] for line in told} >= {"server"}
    lines = [line for line in told if line["message"] == "not a valid HTTP request"]
    assert 1 <= len(lines) <= 10 and all(line["client"].startswith("127.0.0.1:") for line in lines)
    assert server.metric('http_requests_total{method="other",route="malformed",status="400"}') == 40


def stop_one_thread(tid: int) -> None:
    """As a debugger does: the others go on, so that the process still pulses."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        assert libc.ptrace(request, tid, None, None) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(tid, WALL)


def see_it_end(tid: int) -> None:
    """Every stop before its end is told, too."""
    while os.WIFSTOPPED(os.waitpid(tid, WALL)[1]):
        pass


def test_where_a_hung_engine_hangs_is_in_the_log_before_it_is_replaced(server: RunningServer) -> None:
    (engine,) = server.children("engine")
    stop_one_thread(engine)  # the thread that takes steps

    # Its end is told to us first, as to a debugger, and to the server only then.
    threading.Thread(target=see_it_end, args=(engine,), daemon=True).start()
    # It may stop within the step of a canary: then --step-seconds, 60, run first.
    until("another", lambda: server.children("engine") not in ([], [engine]), 120, said=lambda: server.err[-3000:])
    until("ready", lambda: server.ready() == 200)
    (hang,) = [one for one in records(server) if "hangs" in one["message"] and "stacks" in one]
    assert "in serve" in hang["stacks"] and "shm/pulse.py" in hang["stacks"]
    assert server.metric('child_hangs_total{role="engine"}') == 1
    assert server.chat({"text": "Hi"}, max_tokens=2).status_code == 200
    assert any("ended (SIGKILL)" in one["message"] for one in records(server))
    stamps = [one["time"] for one in records(server)]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp) for stamp in stamps)
    # UTC, whatever the zone is.
    assert abs(time.mktime(time.strptime(stamps[-1][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone - time.time()) < 600
