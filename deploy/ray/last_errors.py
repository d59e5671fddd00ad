"""The answer of /status/errors: the last errors and slowest requests of all replicas, by the label `replica`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from server.metrics import KEPT, SLOWEST


def merged_errors(lists: Mapping[str, bytes]) -> dict[str, Any]:
    """The newest KEPT errors and the SLOWEST requests of all. lists: what each replica answers, by its id.

    All give times in UTC. A replica of an older version gives no requests.
    """
    decoded = {replica: msgspec.json.decode(body) for replica, body in lists.items()}

    def of_all(name: str, key: str, most: int) -> list[dict[str, Any]]:
        found = [{**one, "replica": replica} for replica, of in decoded.items() for one in of.get(name, ())]
        return sorted(found, key=lambda one: one[key], reverse=True)[:most]

    return {"errors": of_all("errors", "time", KEPT), "slowest": of_all("slowest", "seconds", SLOWEST)}
