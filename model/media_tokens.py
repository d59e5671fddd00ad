"""The special tokens of media in a prompt: placeholders, and the delimiters that templates write around them."""

from collections.abc import Mapping
from dataclasses import dataclass

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from tokenization.chat.parts import Kind
from tokenization.text.tokenizer_file import added_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaTokens:
    placeholders: Mapping[Kind, int]  # what stands in the prompt for each token of a medium
    delimiters: Mapping[str, int]  # by key, of those that tokenizer.json holds
    said: Mapping[int, str]  # for errors: what names each id

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids of media: no answer and no text may hold them."""
        return tuple(self.said)


def read_media_tokens(
    checkpoint: Checkpoint,
    config: ConfigSection,
    placeholders: Mapping[Kind, tuple[tuple[str, ...], int | str]],
    delimiters: Mapping[str, str],
) -> MediaTokens:
    """The special tokens of a family's media by the keys of `config`. Raises CheckpointError for a damaged file.

    placeholders: by kind the keys of its id, of which the first that is there counts, and the class's default,
    or the token's text, by which tokenizer.json must hold it.
    delimiters: by key the token's published text, by which it is found where `config` has no such key. Of these what
    tokenizer.json does not hold is left out: nobody places it, and a save by transformers 5 names ids of the full
    vocabulary for it.
    """
    held = added_tokens(checkpoint)
    ids = {text: token_id for token_id, text in held.items()}
    if checkpoint.sizes_alone:
        defaults = [default for _, default in placeholders.values() if isinstance(default, str)]
        ids = dict.fromkeys([*delimiters.values(), *defaults], 0) | ids
    placed = {kind: _placeholder(config, keys, default, ids) for kind, (keys, default) in placeholders.items()}
    named = {key: config.token_id(key, ids.get(text, -1)) for key, text in delimiters.items()}
    kept = {key: token_id for key, token_id in named.items() if checkpoint.sizes_alone or token_id in held}
    said = {token_id: f"{config.location}: {key!r}" for key, token_id in kept.items()}
    return MediaTokens(
        placeholders={kind: token_id for kind, (token_id, _) in placed.items()},
        delimiters=kept,
        said=said | dict(placed.values()),
    )


def vision_tokens(checkpoint: Checkpoint) -> MediaTokens:
    """Of models that see pictures and videos, by the names that lines of them share."""
    return read_media_tokens(
        checkpoint,
        checkpoint.config,
        {"image": (("image_token_id",), 151655), "video": (("video_token_id",), 151656)},
        {
            "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>",
            "vision_token_id": "<|vision_pad|>",
        },
    )


def _placeholder(
    config: ConfigSection, keys: tuple[str, ...], default: int | str, ids: Mapping[str, int]
) -> tuple[int, str]:
    """The id, and who names it."""
    for key in keys:
        if key in config:
            return config.token_id(key), f"{config.location}: {key!r}"
    if isinstance(default, str):
        if default not in ids:
            raise CheckpointError(f"tokenizer.json has no added token {default!r}, which stands for pictures")
        return ids[default], f"tokenizer.json: {default!r}"
    return default, f"{config.location}: {keys[0]!r} is missing, and its class default"
