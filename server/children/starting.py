"""The supervisors of all children of one server: what each child is started with."""

from typing import Any

from msgspec.structs import replace

from configs.serve import ServeConfig
from model.engine.messages import FromEngine, LargestItem, StartEngine
from server.children.engine_client import EngineClient
from server.children.processes import Ownership, Role, launch
from server.children.supervisor import ChildObserver, Supervisor
from server.children.worker_pool import WorkerPool
from server.metrics import Metrics
from shm import Ending, Loading, Owner
from tokenization.messages import FromWorker, StartWorker


def supervisors_of(
    config: ServeConfig, owner: Owner, metrics: Metrics, workers: WorkerPool, engine: EngineClient,
    max_model_len: int, largest: tuple[LargestItem, ...],
) -> list[Supervisor]:  # fmt: skip
    """Those of the workers, of texts and of pictures last, then that of the engine. Nothing runs before their `run`."""
    root, path = str(owner.root), str(config.model.path)
    worker = StartWorker(
        checkpoint=path, media=config.media, max_model_len=max_model_len, shm_root=root, worker=config.worker
    )
    start = StartEngine(
        checkpoint=path, engine=config.engine, shm_root=root, max_model_len=max_model_len, largest=largest
    )

    def owned() -> Ownership:
        """As it is now: the owner's name changes when its file was removed."""
        return Ownership(lock_fd=owner.fileno(), owner_name=owner.name, shm_root=owner.root, log=config.log)

    def supervisor(role: Role, first: StartWorker | StartEngine, observer: ChildObserver, receives: Any) -> Supervisor:
        return Supervisor(
            role,
            lambda: launch(role, owned(), receives | Loading | Ending),
            first,
            observer,
            pulse_seconds=config.pulse_seconds,
            load_seconds=config.load_seconds,
            counter=metrics,
        )

    return [
        *(supervisor("worker", worker, slot, FromWorker) for slot in workers.slots),
        supervisor("text_worker", replace(worker, lane="text"), workers.text, FromWorker),
        supervisor("picture_worker", replace(worker, lane="picture"), workers.picture, FromWorker),
        supervisor("engine", start, engine, FromEngine),
    ]
