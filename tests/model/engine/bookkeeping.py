"""What a runner would answer, made by hand: for tests of the books without tensors."""

from collections.abc import Collection, Mapping

from model.engine.messages import Token
from model.engine.plan import Outcome, RequestError
from model.engine.sequence import Key


def outcome(tokens: Mapping[Key, int], failed: Collection[str] = ()) -> Outcome:
    """These ids were drawn, and these requests failed."""
    return Outcome(
        tokens={key: Token(id=token) for key, token in tokens.items()},
        read={},
        failed={name: RequestError("it failed") for name in failed},
        seconds={},
    )
