"""How a request ends, as /metrics and logs call it; the code of every error stands in one of two lists."""

# Each has its series from the start, or the first of a burst would count for nothing in a rate.
FINISHED = ("stop", "length", "abort")
FAULTS = (
    "broken", "connections_full", "cut_off", "downloading", "engine_died", "engine_down", "fetcher_died",
    "fetcher_down", "internal", "loading", "media_unavailable", "no_process", "shm_gone", "stopping", "worker_died",
    "workers_down",
)  # fmt: skip  # codes of errors that are this server's own, whatever the status: PixelferryErrors reads them
REFUSALS = (
    "asks_too_much", "bodies_full", "body_timeout", "body_too_large", "concurrency_limit_exceeded",
    "context_length_exceeded", "cors_refused", "form_too_large", "gave_way", "head_too_large", "host_not_allowed",
    "http_version", "invalid_api_key", "invalid_form", "invalid_host", "invalid_json", "invalid_request",
    "media_fetch_failed", "media_too_costly", "media_too_large", "media_url_forbidden", "memory_full",
    "method_not_allowed", "model_not_found", "origin_not_allowed", "queue_full", "rate_limit_exceeded",
    "route_not_found", "route_not_supported", "structured_output", "too_many_parts", "too_many_values", "took_too_long",
    "unknown_field", "unknown_parameter", "unread", "unread_full", "unsupported_encoding", "unsupported_media_type",
    "unsupported_modality", "unsupported_parameter", "worker_memory",
)  # fmt: skip  # codes of all others
