"""The answer of /status/errors: the last errors of all replicas, told apart by `replica`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from server.metrics import KEPT


def merged_errors(lists: Mapping[str, bytes]) -> dict[str, Any]:
    """The newest KEPT of all, the newest first. lists: what each replica answers, by its id; all tell times in UTC."""
    errors = [
        {**error, "replica": replica}
        for replica, body in lists.items()
        for error in msgspec.json.decode(body)["errors"]
    ]
    return {"errors": sorted(errors, key=lambda error: error["time"], reverse=True)[:KEPT]}
