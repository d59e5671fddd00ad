"""All that the server measures of itself: what /metrics shows, codes of errors, last errors and slowest requests."""

from server.metrics.children import ChildSnapshot, ChildState
from server.metrics.codes import FAULTS, FINISHED, REFUSALS
from server.metrics.metrics import MALFORMED, MODEL, Metrics
from server.metrics.recent import KEPT, SLOWEST, RecentErrors, SlowRequests
from server.metrics.registry import PREFIX

__all__ = [
    "FAULTS",
    "FINISHED",
    "KEPT",
    "MALFORMED",
    "MODEL",
    "PREFIX",
    "REFUSALS",
    "SLOWEST",
    "ChildSnapshot",
    "ChildState",
    "Metrics",
    "RecentErrors",
    "SlowRequests",
]
