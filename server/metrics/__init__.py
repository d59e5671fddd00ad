"""All that the server measures of itself: what /metrics shows, and the codes of errors that it counts by."""

from server.metrics.codes import FAULTS, FINISHED, REFUSALS
from server.metrics.metrics import MALFORMED, MODEL, Metrics
from server.metrics.registry import PREFIX

__all__ = ["FAULTS", "FINISHED", "MALFORMED", "MODEL", "PREFIX", "REFUSALS", "Metrics"]
