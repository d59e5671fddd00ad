"""What a runner would answer, made by hand: for tests of the books without tensors."""

from collections.abc import Collection, Iterable, Mapping

from model.engine.messages import Finish, Token, TokenEvent
from model.engine.plan import Outcome, Plan, RequestError
from model.engine.sequence import EncoderInput, Key, SegmentRef


def outcome(tokens: Mapping[Key, int], failed: Collection[str] = (), plan: Plan | None = None) -> Outcome:
    """These ids were sampled, these requests failed, and all of the plan's other media were encoded."""
    encodes, freed = ((), ()) if plan is None else (plan.encodes, plan.freed)
    keys = [item.key for item in encodes if item.key[0] not in failed]
    return Outcome(
        tokens={key: (Token(id=token),) for key, token in tokens.items()},
        read=tuple(keys), filled=tuple(keys), dropped=freed,
        failed={(name, 0): RequestError("it failed") for name in failed},
    )  # fmt: skip


def finishes(events: Iterable[TokenEvent]) -> dict[Key, Finish | None]:
    """How each answer that got a token ended, if it did."""
    return {(event.request_id, event.index): event.finish for event in events}


def medium(key: tuple[str, int], *spans: tuple[int, int], nbytes: int = 0) -> EncoderInput:
    """A picture whose pads stand in these spans."""
    segment = SegmentRef(name="0" * 11, shape=(4, 588), dtype="uint8")
    return EncoderInput(key=key, kind="image", grid=(1, 2, 2), spans=spans, segment=segment, nbytes=nbytes)
