"""How many files this process may have open, and how many connections that leaves room for."""

import resource

from configs.serve import ServeConfig

OWN = 64  # listening socket, event loop, log, lock, files that are open for a moment, and connections not yet counted
ENOUGH = 1 << 20  # where there is no limit


def raise_descriptor_limit() -> int:
    """As far as anybody but root may raise it: to the hard limit. The limit that then holds, also for the children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return ENOUGH if hard == resource.RLIM_INFINITY else hard


def connections_at_once(config: ServeConfig, descriptors: int) -> int:
    """What `descriptors` leave beside the server's own, and the sockets of its children, of what was asked for."""
    room = max(1, descriptors - OWN - 2 * (config.workers + config.engine.tensor_parallel))
    return min(config.http.max_connections, room)
