"""Which of OpenTelemetry's own variables turn traces on, and what is said where none can be sent."""

from configs.traces import traces_asked
from tests.tables import each_of

ENDPOINT, OF_TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
URL = "http://collector:4318"


@each_of(
    ("env", "asked_by"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "mine"}, None),
        ({ENDPOINT: ""}, None),
        ({ENDPOINT: URL}, ENDPOINT),
        ({ENDPOINT: URL, OF_TRACES: URL}, OF_TRACES),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "OTEL_TRACES_EXPORTER"),
        ({ENDPOINT: URL, "OTEL_TRACES_EXPORTER": "none"}, None),
        ({ENDPOINT: URL, "OTEL_SDK_DISABLED": "True"}, None),
        ({ENDPOINT: URL, "OTEL_SDK_DISABLED": "1"}, ENDPOINT),  # the specification knows "true" alone
    ],
)
def test_what_asks_for_traces(env: dict[str, str], asked_by: str | None) -> None:
    config = traces_asked(env)
    assert config.asked_by == asked_by and config.hindrance is None


@each_of(
    ("env", "hindrance"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin: otlp and none are known here"),
        ({ENDPOINT: URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "grpc is not spoken here"),
        (
            {ENDPOINT: URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "x"},
            "x is not spoken here",
        ),
    ],
)
def test_what_cannot_be_sent_is_said(env: dict[str, str], hindrance: str) -> None:
    config = traces_asked(env)
    assert config.asked_by is not None and str(config.hindrance).startswith(hindrance)


def test_the_traces_own_protocol_wins() -> None:
    env = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    assert traces_asked({ENDPOINT: URL, **env}).hindrance is None
