"""All that the server measures of itself: what /metrics shows, the codes of errors, and the last errors."""

from server.metrics.children import ChildSnapshot, ChildState
from server.metrics.codes import FAULTS, FINISHED, REFUSALS
from server.metrics.metrics import MALFORMED, MODEL, Metrics
from server.metrics.recent_errors import KEPT, RecentErrors
from server.metrics.registry import PREFIX

__all__ = [
    "FAULTS",
    "FINISHED",
    "KEPT",
    "MALFORMED",
    "MODEL",
    "PREFIX",
    "REFUSALS",
    "ChildSnapshot",
    "ChildState",
    "Metrics",
    "RecentErrors",
]
