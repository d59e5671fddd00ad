"""Tests a chat template at start, within kernel bounds of time and memory: it is a program that nobody has read.

text/sandbox.py bounds what it may reach, whenever it runs.
"""

import signal
from collections.abc import Callable

from configs.checkpoint import CheckpointError
from shm import Ending
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Media, Text, Turn
from tokenization.placeholders import kinds_of
from tokenization.processor import Processor
from tokenization.worker_memory import bound_memory, private_bytes

PROOF_SECONDS = 5  # of processor time; published templates take hundredths
PROOF_BYTES = 512 << 20  # beyond what the process has; published templates take a few MiB


def prove_template(processor: Processor, memory_bytes: int, tell: Callable[[Ending], None]) -> None:
    """`prove_placeholders` within bounds of time and memory, in the main thread of a process that may be ended.

    One call of Python's may take an hour and hold the interpreter (`3 ** (2 ** 26)`), so nothing but the kernel can
    end it: SIGPROF does, and what `tell` was given before is then the reason. memory_bytes: what the process may have
    for good. Raises CheckpointError.
    """
    most = f"{processor.origins['chat template']}: the chat template takes more than"
    slow = f"{most} {PROOF_SECONDS} s of processor time for one short chat; put the published model's there"
    tell(Ending(code=-signal.SIGPROF, why=slow))
    # Rust code that is refused memory aborts.
    large = f"tokenizer.json: to split one short chat takes more than {PROOF_BYTES >> 20} MiB"
    tell(Ending(code=-signal.SIGABRT, why=large))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, PROOF_SECONDS)
    bound_memory(min(memory_bytes, private_bytes() + PROOF_BYTES))
    try:
        prove_placeholders(processor)
    except MemoryError:
        raise CheckpointError(
            f"{most} {PROOF_BYTES >> 20} MiB for one short chat; put the published model's there"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def prove_placeholders(processor: Processor) -> None:
    """Render a chat for each kind of medium. Raises CheckpointError where a prompt has not exactly one placeholder."""
    for kind in sorted(processor.modalities):
        medium = Media(kind=kind, source="", param="")
        chat = Chat(turns=(Turn(role="user", parts=(medium, Text(text="What is this?")), plain=False),))
        try:
            written = kinds_of(processor.render(processor.fit(chat)), processor.marks)
            why = f"it has {len(written)} places" if len(written) != 1 else f"it has its place for {written[0]}"
        except ChatError as error:
            written, why = [], error.message
        if written != [kind]:
            raise CheckpointError(
                f"{processor.origins['chat template']}: the chat template has not exactly one place for one {kind}, "
                f"which the model takes ({why}); put the published model's template there"
            )
