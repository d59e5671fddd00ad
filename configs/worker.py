"""What one tokenizer worker may take of the machine's memory."""

from typing import Annotated

import msgspec

from configs.setting import Setting

MIB, GIB = 1 << 20, 1 << 30

# fmt: off


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Goes to every worker."""

    memory_bytes: Annotated[int, Setting(
        "private memory that one worker may take; a request that needs more of it is a 400",
        512, 1 << 20, "MiB", name="worker_memory_mib",
    )] = 3 * GIB
    keep_bytes: Annotated[int, Setting(
        "memory that a worker keeps between jobs above what it had at first, so as not to fetch it anew, at most a "
        "quarter of worker_memory_mib; what is more goes back to the system, and a worker that then still has more "
        "than half of it is replaced", 16, 1 << 20, "MiB", name="worker_keep_mib",
    )] = 256 * MIB
