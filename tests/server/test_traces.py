"""The spans of a request that is over: its stages one after the other, inside the caller's trace."""

import asyncio
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from configs.traces import TraceConfig
from server.metrics import Metrics
from server.request_context import ModelTimings, RequestContext
from server.traces import Traces, traces_of
from tests.server.doubles import prepared
from tests.server.tables import each_of

REPO = Path(__file__).resolve().parents[2]
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
Kept = tuple[Traces, InMemorySpanExporter]


class Route:
    def __init__(self, path: str) -> None:
        self.path_format = path


def scope_of(route: str = "/chat", flags: str | None = None) -> dict[str, Any]:
    """flags: of the caller's traceparent; None: it sent none."""
    headers = [] if flags is None else [(b"traceparent", f"00-{TRACE}-{CALLER}-{flags}".encode())]
    return {"type": "http", "method": "POST", "path": route, "route": Route(route), "headers": headers}


@pytest.fixture
def kept() -> Kept:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Traces(provider, "tiny"), exporter


def request(**fields: Any) -> RequestContext:
    return RequestContext("our-id", **{"method": "POST", "status": 200, "whole": True, **fields})


def answered(context: RequestContext, *, worker: bool = True) -> None:
    """A request that went through every stage."""
    timings = ModelTimings(Metrics("tiny", "1"), context)
    if worker:
        timings.worker()
    timings.prompt(prepared("chat-1", 12))
    timings.scheduled(None, "first", 0)
    timings.tokens(1)
    timings.delivered()
    timings.tokens(2)
    timings.end("stop")


def spans_of(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The span of the HTTP request, and those inside it by their begin."""
    root, *others = sorted(exporter.get_finished_spans(), key=lambda span: span.kind is not SpanKind.SERVER)
    assert root.context is not None
    assert all(span.parent and span.parent.span_id == root.context.span_id for span in others)
    return root, sorted(others, key=lambda span: span.start_time or 0)


def test_the_stages_follow_each_other_in_the_callers_trace(kept: Kept) -> None:
    traces, exporter = kept
    done = request()
    answered(done)
    before = time.time_ns()
    assert traces.tell(scope_of(flags="01"), done) == TRACE
    root, stages = spans_of(exporter)
    assert root.name == "POST /chat" and root.parent is not None and f"{root.parent.span_id:016x}" == CALLER
    assert [span.name for span in stages] == ["queue", "preprocess", "queue", "prefill", "decode"]
    ends = [span.end_time for span in stages[:-1]]
    assert ends == [span.start_time for span in stages[1:]], "one begins where the one before it ends"
    assert root.start_time and root.end_time and stages[0].start_time and stages[-1].end_time
    assert root.start_time <= stages[0].start_time and stages[-1].end_time <= root.end_time
    assert abs(root.end_time - before) < 60e9, "of the time of day"
    said = dict(root.attributes or {})
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (12, 3)
    assert said["gen_ai.response.finish_reasons"] == ("stop",) and said["http.response.status_code"] == 200
    assert said["pixelferry.request_id"] == "our-id" and root.status.status_code is StatusCode.UNSET
    assert dict(stages[1].attributes or {}) == {"pixelferry.preprocess.prompt.render": 0.001}


def test_a_prompt_of_ids_waits_for_no_worker(kept: Kept) -> None:
    traces, exporter = kept
    done = request()
    answered(done, worker=False)
    traces.tell(scope_of(), done)
    stages = spans_of(exporter)[1]
    assert [span.name for span in stages] == ["queue", "queue", "prefill", "decode"]
    assert stages[0].end_time == stages[1].start_time


def test_what_ended_early_ends_in_the_stage_that_it_was_in(kept: Kept) -> None:
    traces, exporter = kept
    failed = request(status=503, error="engine_died")
    timings = ModelTimings(Metrics("tiny", "1"), failed)
    timings.worker()
    timings.prompt(prepared("chat-1"))
    timings.scheduled(None, "first", 0)
    timings.end("error")
    traces.tell(scope_of(), failed)
    root, stages = spans_of(exporter)
    assert [span.name for span in stages] == ["queue", "preprocess", "queue", "prefill"]
    assert root.status.status_code is StatusCode.ERROR and (root.attributes or {})["error.type"] == "engine_died"


def test_what_the_caller_does_not_keep_is_not_kept_and_probes_never_are(kept: Kept) -> None:
    traces, exporter = kept
    assert traces.tell(scope_of(flags="00"), request()) is None
    assert traces.tell(scope_of("/metrics", "01"), request()) is None
    assert not exporter.get_finished_spans()
    alone = traces.tell(scope_of(), request(status=400, error="invalid_json"))
    assert alone not in (None, TRACE) and spans_of(exporter)[1] == [], "it never became a request to the model"


@each_of(
    ("config", "said"),
    [
        (TraceConfig(), None),
        (TraceConfig(asked_by="OTEL_TRACES_EXPORTER", hindrance="x: otlp and none are known here"), "otlp and none"),
    ],
)
def test_none_are_made_where_none_are_asked_for_or_none_can_be_sent(
    config: TraceConfig, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert traces_of(config, "tiny", "1") is None
    assert (said in caplog.text) if said else not caplog.records


def test_without_the_extra_that_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)  # as if it were not installed
    assert traces_of(TraceConfig(asked_by="OTEL_TRACES_EXPORTER"), "tiny", "1") is None
    assert "[otel]'`" in caplog.text


def test_a_server_without_traces_loads_nothing_of_them() -> None:
    code = (
        "import sys; import server.run; from server.traces import traces_of; from configs.traces import TraceConfig; "
        "assert traces_of(TraceConfig(), 'tiny', '1') is None; "
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_collector_that_never_answers_does_not_keep_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(TracerProvider):
        def shutdown(self) -> None:
            time.sleep(3600)

    monkeypatch.setattr("server.traces.LAST_SPANS_SECONDS", 0.05)
    asyncio.run(asyncio.wait_for(Traces(Never(shutdown_on_exit=False), "tiny").close(), 30))
