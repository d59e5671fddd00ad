"""Whether this server can do its work now, and why not. Asks nobody: it knows."""

from typing import Any

from server.requests.refusal import Refusal, unavailable
from server.requests.service import RequestService


def readiness(service: RequestService) -> tuple[dict[str, Any], Refusal | None]:
    """What /health/ready shows, and the error when it is not ready. Busy is ready: a full queue answers 429 itself."""
    engine, workers = service.engine, service.workers
    error: Refusal | None = None
    if service.admission.draining:
        error = unavailable("the server is stopping", "stopping")
    elif engine.info is None:
        error = unavailable("the model is still loading", "loading")
    elif not engine.up:
        error = unavailable("the engine is being started again", "engine_down")
    elif not workers.serves:
        error = unavailable("the workers are being started again", "workers_down")
    elif engine.health.unanswered:
        error = unavailable("the engine gave no token to a request of the server's own", "engine_stuck")
    elif service.segments.gone:
        error = unavailable("the shared memory was removed and cannot be made again now", "shm_gone")
    state = {
        "status": error.code if error else "busy" if busy(service) else "ready",
        "engine": "up" if engine.up else "down",
        "workers_up": workers.n_up,
        "workers": len(workers.slots),
        "requests": service.admission.n_active,
        "waiting": workers.n_waiting + engine.n_waiting,
    }
    return state, error


def busy(service: RequestService) -> bool:
    """Whether a request that comes now waits, or is turned away because too many are here."""
    engine, workers = service.engine, service.workers
    waits = engine.n_waiting + workers.n_waiting > 0 or not workers.n_up
    return engine.full or waits or service.admission.refusal() is not None
