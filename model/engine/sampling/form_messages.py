"""What passes between the engine and the processes of its forms: forms.py at one end, form_process.py at the other.

To the process that forks go ChildRequests. One that forks has two descriptors: one end of a link to the new child, and
a file in memory, one int32, in which the child says which form it is at, or NONE. ChildNews comes of each, and of each
child that ends.

The link takes FormRequest, with the files of the forms that begin, and gives FormReply. The file of a form begins with
its mask, int32 [mask_words]: bit i is id i, and bit vocab_size says that the answer may end. Behind that stands
FormStart, which the child cuts off.
"""

import msgspec

NO_CHILD = 1 << 16  # in place of an exit code: the machine had no process, or no descriptors for one
NONE = -1  # in place of a slot
MOST_BEGUN = 16  # forms that begin with one message: so many descriptors
MESSAGE_BYTES = 1 << 17
CHILD_MESSAGE_BYTES = 1 << 8  # of ChildRequest and ChildNews


class ChildRequest(msgspec.Struct, frozen=True, array_like=True):
    """To the process that forks."""

    number: int  # of the child
    forks: bool  # or it is to end


class ChildNews(msgspec.Struct, frozen=True, array_like=True):
    """From the process that forks."""

    n_taken: int  # requests that it has done
    number: int  # of the child
    pid: int = 0  # of one that it has forked
    code: int | None = None  # its exit code, where it has ended
    seconds: float = 0.0  # of the processor that it took, where it has ended


class FormStart(msgspec.Struct, frozen=True, array_like=True):
    """A form, and where in it the answer stands."""

    source: str  # as of CompiledGrammar
    marks: tuple[int, ...]  # ids that no text is, and that it may allow all the same
    tokens: bytes  # int32: those of the answer that were drawn already


class FormRequest(msgspec.Struct, frozen=True, array_like=True):
    """What a child is to do, in this order. A slot is a form's number in it."""

    ended: list[int]
    stepped: list[tuple[int, int]]  # (slot, token): the next mask is wanted
    begun: list[int]  # the first one is


class FormReply(msgspec.Struct, frozen=True, array_like=True):
    """What a child has done of it."""

    n_asked: int  # messages that it has had so far
    nbytes: int  # that it holds
    filled: list[tuple[int, float]]  # (slot, processor seconds)
    expensive: list[tuple[int, float]]  # the same
    failed: list[tuple[int, float, str]]  # the same, and why


def mask_words(vocab_size: int) -> int:
    """int32 of one mask."""
    return vocab_size // 32 + 1
