"""Spans of each answered request, sent to an OpenTelemetry collector; made when the request is over, from its moments.

So a request that runs pays nothing, and a server without traces loads none of this.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.types import Scope

from configs.settings import install_command
from configs.traces import TraceConfig
from server.logs.access import QUIET, level_of, route_of
from server.request_context import ModelTimings, RequestContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger("pixelferry")

LAST_SPANS_SECONDS = 2.0  # how long an ending server may take to send what it holds
SERVICE = "pixelferry"
Stage = tuple[str, float | None, float | None, Mapping[str, Any]]  # name, begin, end, attributes


class Traces:
    """Turns what is known of an HTTP request into spans of the SDK."""

    def __init__(self, provider: "TracerProvider", model_name: str) -> None:
        from opentelemetry import propagate, trace

        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)
        self._propagator = propagate.get_global_textmap()
        self._api = trace
        self._model_name = model_name

    def tell(self, scope: Scope, request: RequestContext) -> str | None:
        """Make the spans of a request that is over; the trace's id, None where none is kept.

        The trace of the caller goes on, where its headers name one.
        """
        route = route_of(scope)
        if route in QUIET:
            return None
        now = time.monotonic()
        clock = time.time_ns() - int(now * 1e9)  # what takes a monotonic moment to the time of day
        headers = {name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]}
        root = self._tracer.start_span(
            f"{request.method} {route}",
            context=self._propagator.extract(headers),
            kind=self._api.SpanKind.SERVER,
            attributes=self._attributes(request, route),
            start_time=nanoseconds(clock, request.received),
        )
        found = root.get_span_context()
        if not root.is_recording():
            return None
        if level_of(request) >= logging.ERROR:
            root.set_status(self._api.StatusCode.ERROR, request.error or "")
        context = self._api.set_span_in_context(root)
        for timings in request.timings:
            for name, begin, end, attributes in stages_of(timings, now):
                if begin is not None:
                    begun, ended = nanoseconds(clock, begin), nanoseconds(clock, now if end is None else end)
                    span = self._tracer.start_span(name, context=context, start_time=begun, attributes=attributes)
                    span.end(ended)
        root.end(nanoseconds(clock, now))
        return self._api.format_trace_id(found.trace_id)

    def _attributes(self, request: RequestContext, route: str) -> dict[str, Any]:
        """By OpenTelemetry's conventions for HTTP servers and for generative models, as far as they name it."""
        found = {
            "http.request.method": request.method,
            "http.route": route,
            "http.response.status_code": request.status,
            "error.type": request.error,
            "pixelferry.request_id": request.id,
        }
        if request.timings:
            found["gen_ai.request.model"] = self._model_name
            found["gen_ai.usage.input_tokens"] = request.prompt_tokens
            found["gen_ai.usage.output_tokens"] = request.generation_tokens
            found["gen_ai.response.finish_reasons"] = [one.reason or "error" for one in request.timings]
        if request.first_token is not None:
            found["gen_ai.response.time_to_first_chunk"] = request.first_token - request.received
        return {name: value for name, value in found.items() if value is not None}

    async def close(self) -> None:
        """Send what is held, as far as the collector takes it in time."""
        done = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set_result, None)

        # A daemon: a collector that does not answer must not keep the process.
        threading.Thread(target=shut_down, name="last-spans", daemon=True).start()
        await asyncio.wait({done}, timeout=LAST_SPANS_SECONDS)


def stages_of(timings: ModelTimings, now: float) -> Iterator[Stage]:
    """What one request to the model went through, stage by stage; the one that it ended in has no end but now."""
    end = timings.ended or now
    taken = timings.taken or timings.prepared  # a prompt of ids needs no worker
    spent = {
        f"pixelferry.preprocess.{modality}.{stage}": seconds
        for modality, stages in timings.seconds.items()
        for stage, seconds in stages.items()
    }
    yield "queue", timings.entered, taken or end, {"pixelferry.queue": "worker"}
    yield "preprocess", timings.taken, timings.prepared or end, spent
    yield "queue", timings.prepared, timings.placed or end, {"pixelferry.queue": "engine"}
    yield "prefill", timings.placed, timings.first or end, {"gen_ai.usage.input_tokens": timings.n_prompt}
    yield "decode", timings.first, end, {"gen_ai.usage.output_tokens": timings.n_tokens or 0}


def nanoseconds(clock: int, moment: float) -> int:
    return clock + int(moment * 1e9)


def traces_of(config: TraceConfig, model_name: str, version: str) -> Traces | None:
    """What sends traces where they are asked for; a warning says why there are none all the same."""
    if config.asked_by is None:
        return None
    if config.hindrance is not None:
        log.warning("%s asks for traces, and there are none: %s", config.asked_by, config.hindrance)
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning(
            "%s asks for traces, and there are none: `%s` brings what sends them",
            config.asked_by, install_command("otel"),
        )  # fmt: skip
        return None
    resource = Resource.create({SERVICE_VERSION: version})  # and what OTEL_RESOURCE_ATTRIBUTES and _SERVICE_NAME say
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: SERVICE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider, model_name)
