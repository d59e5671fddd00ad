"""What is served: one checkpoint's host half, its name, defaults and limits."""

import time
from dataclasses import dataclass, replace

from configs.checkpoint import Checkpoint
from configs.serve import ServeConfig
from model.engine.messages import LargestItem
from model.family import PixelBounds
from model.registry import family_of
from server.requests.sampling import Defaults, model_length
from tokenization.chat.parts import Kind
from tokenization.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    name: str
    root: str  # the checkpoint's directory; load testers read their tokenizer there
    family: str
    created: int  # seconds since 1970
    tokenizer: Tokenizer
    defaults: Defaults
    modalities: frozenset[Kind]
    max_model_len: int  # as asked for; the engine's cache may allow less
    max_n: int  # answers to one chat
    largest: tuple[LargestItem, ...] = ()  # one for each modality
    pixels: PixelBounds | None = None  # the checkpoint's own; the settings may lower them
    supports_grounding: bool = False  # its answers point at pictures with boxes


def read_model_card(config: ServeConfig) -> ModelCard:
    """Read what the server itself needs of the checkpoint. Raises CheckpointError."""
    checkpoint = Checkpoint(config.model.path)
    family = family_of(checkpoint)
    processor = family.processor(checkpoint, config.media.max_pixels)
    own = family.config(checkpoint)
    defaults = Defaults.from_checkpoint(checkpoint, own)
    length = model_length(own, config.engine.max_model_len)
    return ModelCard(
        name=config.model.served_name,
        root=str(config.model.path),
        family=family.name,
        created=int(time.time()),
        tokenizer=processor.tokenizer,
        defaults=replace(defaults, eos_ids=tuple(dict.fromkeys((*defaults.eos_ids, *processor.stop_ids)))),
        modalities=processor.modalities,
        max_n=config.http.max_n,
        max_model_len=length,
        largest=tuple(
            LargestItem(kind=found.kind, grid=found.grid, n_tokens=found.n_pads, fixed=found.fixed)
            for found in processor.largest(config.media, length)
        ),
        pixels=family.pixels(checkpoint),
        supports_grounding=processor.supports_grounding,
    )
