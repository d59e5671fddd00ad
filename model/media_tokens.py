"""The ids that mark media in a prompt: pads, which the server places, and those that templates write around them."""

from collections.abc import Mapping
from dataclasses import dataclass

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from tokenization.chat.parts import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    pads: Mapping[Kind, int]  # what stands in the prompt for each token of a medium
    others: Mapping[str, int]  # by key, of those that tokenizer.json holds
    said: Mapping[int, str]  # of every id who names it, for errors

    @property
    def ids(self) -> tuple[int, ...]:
        """What no answer and no text may hold."""
        return tuple(self.said)


def read_marks(
    checkpoint: Checkpoint,
    config: ConfigSection,
    pads: Mapping[Kind, tuple[tuple[str, ...], int]],
    others: Mapping[str, str],
) -> Marks:
    """The marks of a family by the keys of `config`. Raises CheckpointError for a damaged file.

    pads: by kind the keys of its id, of which the first that is there counts, and the class's default. others: by key
    the token's published text, by which it is found where `config` has no such key. Of these what tokenizer.json does
    not hold is left out: nobody places it, and a save by transformers 5 names ids of the full vocabulary for it.
    """
    placed = {kind: _pad(config, keys, default) for kind, (keys, default) in pads.items()}
    held = _added_tokens(checkpoint)
    ids = {text: token_id for token_id, text in held.items()}
    named = {key: config.token_id(key, ids.get(text, -1)) for key, text in others.items()}
    kept = {key: token_id for key, token_id in named.items() if token_id in held}
    said = {token_id: f"{config.location}: {key!r}" for key, token_id in kept.items()}
    return Marks(
        pads={kind: token_id for kind, (token_id, _) in placed.items()}, others=kept, said=said | dict(placed.values())
    )


def _pad(config: ConfigSection, keys: tuple[str, ...], default: int) -> tuple[int, str]:
    """The id, and who names it."""
    for key in keys:
        if key in config:
            return config.token_id(key), f"{config.location}: {key!r}"
    return default, f"{config.location}: {keys[0]!r} is missing, and its class default"


def _added_tokens(checkpoint: Checkpoint) -> dict[int, str]:
    """Text by id, as tokenizer.json lists them."""
    found: dict[int, str] = {}
    for token in checkpoint.file("tokenizer.json").read(list, "added_tokens", []):
        if not isinstance(token, dict) or type(token.get("id")) is not int:
            raise CheckpointError("tokenizer.json: an entry of 'added_tokens' has no id")
        found[token["id"]] = str(token.get("content"))
    return found
