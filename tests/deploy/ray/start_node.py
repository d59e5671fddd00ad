"""`ray start` for a machine that others use, too: it waits longer, and leaves out what nothing here asks.

Ray gives its raylet 30 s, most of which its agents need to import what its dashboard and its client server want.
"""

import time
from typing import Any

import ray._private.node
import ray._private.utils
import ray.scripts.scripts

SLOWER = 2  # a minute for the raylet


class SlowClock:
    """The module `time`, by whose clock a minute takes SLOWER minutes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() / SLOWER


def main() -> None:
    missing = ImportError("left out")
    ray._private.node.time = SlowClock()
    ray._private.utils.get_dashboard_dependency_error = lambda: missing  # agents that serve no dashboard
    ray.scripts.scripts.get_ray_client_dependency_error = lambda: missing
    ray.scripts.scripts.main()


if __name__ == "__main__":
    main()
