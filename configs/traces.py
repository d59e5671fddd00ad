"""Whether traces are asked for: by the variables that every OpenTelemetry SDK knows.

Only what decides whether the SDK is loaded is read here. What it does then (where spans go, how many are kept, what
they are called) it reads from these variables itself.
"""

from collections.abc import Mapping

import msgspec

DISABLED = "OTEL_SDK_DISABLED"
EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"


class TraceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What asks for traces, and why there are none all the same."""

    asked_by: str | None = None  # a variable
    hindrance: str | None = None


def traces_asked(env: Mapping[str, str]) -> TraceConfig:
    """Traces are off unless an exporter or its endpoint is named. An empty variable counts as absent."""
    given = {name: text for name, text in env.items() if text}
    exporter = given.get(EXPORTER, "").strip().lower()
    if given.get(DISABLED, "").strip().lower() == "true" or exporter == "none":
        return TraceConfig()
    asked_by = next((name for name in (EXPORTER, *ENDPOINTS) if name in given), None)
    if asked_by is None:
        return TraceConfig()
    protocol = next((given[name] for name in PROTOCOLS if name in given), SPOKEN)
    if exporter not in ("", "otlp"):
        hindrance = f"{EXPORTER}={exporter}: otlp and none are known here"
    elif protocol != SPOKEN:
        hindrance = f"{protocol} is not spoken here; send {SPOKEN}, which collectors take at port 4318"
    else:
        hindrance = None
    return TraceConfig(asked_by=asked_by, hindrance=hindrance)
