"""What is served: one checkpoint's host half, its name, defaults and limits."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from configs.checkpoint import Checkpoint, CheckpointError, Section
from configs.serve import ServeConfig
from model.engine.messages import LargestItem
from model.family import PixelBounds, Transcription
from model.registry import family_of
from server.requests.sampling import Defaults, model_length
from tokenization.chat.parts import Kind, Prompt, RawPrompt
from tokenization.chat.tool_form import ToolForm
from tokenization.processor import Processor
from tokenization.text.template import OPERATORS
from tokenization.text.thoughts import ThoughtMarks, opens_thought, thought_marks
from tokenization.text.tokenizer import Tokenizer, named_tokens

log = logging.getLogger("pixelferry")

CHAR = 6  # bytes of JSON, of one character, at most: a control character


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What one body may ask for, and how many bytes of JSON a token of the vocabulary may become."""

    tokens: int
    nbytes: int
    text: int  # of a token as a part of a text
    spelled: int  # of one in a list of log-probabilities: its text and its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    name: str
    root: str  # the checkpoint's directory, where load testers read their tokenizer; or the name, where that is hidden
    family: str
    created: int  # seconds since 1970
    tokenizer: Tokenizer
    defaults: Defaults
    modalities: frozenset[Kind]
    max_model_len: int  # as asked for; the engine's cache may allow less
    max_n: int  # answers to one chat
    limits: RequestLimits  # of one body
    max_items: int | None = None  # media of one prompt; None where a window may drop some: then a worker counts them
    largest: tuple[LargestItem, ...] = ()  # one for each modality
    pixels: PixelBounds | None = None  # the checkpoint's own; the settings may lower them
    pads: Mapping[Kind, int] = field(default_factory=dict)  # the id of each token of a medium in a prompt
    supports_grounding: bool = False  # its answers point at pictures with boxes
    tool_form: ToolForm | None = None  # how it writes calls of tools
    thoughts: ThoughtMarks | None = None  # what stands around its thoughts
    transcription: Transcription | None = None  # how it is asked for the words of a sound
    origins: Mapping[str, str] = field(default_factory=dict)  # what was read -> the file it came from

    def thought_end(self, chat: Prompt, ids: Sequence[int] | np.ndarray) -> int | None:
        """The id that ends the thought in which answers to this prompt begin; None: in none. A text is just a text."""
        marks = self.thoughts
        if marks is None or isinstance(chat, RawPrompt) or not opens_thought(ids, marks, self.tokenizer):
            return None
        return marks.closing


def read_model_card(config: ServeConfig) -> ModelCard:
    """Read what the server itself needs of the checkpoint. Raises CheckpointError."""
    given = config.model.chat_template
    checkpoint = Checkpoint(config.model.path, given)
    family = family_of(checkpoint)
    processor = family.processor(checkpoint, config.media.max_pixels)  # its template is proven by workers
    if given is not None and not processor.written_by.startswith(OPERATORS):
        raise CheckpointError(f"--chat-template: the family {family.name} takes none, it writes its prompts itself")
    warn_of_missing(checkpoint, processor)
    own = family.config(checkpoint)
    defaults = Defaults.from_checkpoint(checkpoint, own)
    eos_ids = tuple(dict.fromkeys((*defaults.eos_ids, *processor.stop_ids)))
    length = model_length(own, config.engine.max_model_len)
    text, spelled = widest(processor.tokenizer)
    return ModelCard(
        name=config.model.served_name,
        root=str(config.model.path),
        family=family.name,
        created=int(time.time()),
        tokenizer=processor.tokenizer,
        defaults=replace(defaults, eos_ids=eos_ids or tokenizers_end(checkpoint, processor.tokenizer)),
        modalities=frozenset(processor.modalities),
        max_n=config.http.max_n,
        max_items=None if processor.drops_turns else config.media.max_items,
        limits=RequestLimits(
            tokens=config.http.max_asked_tokens, nbytes=config.http.max_asked_bytes, text=text, spelled=spelled
        ),
        max_model_len=length,
        largest=tuple(
            LargestItem(
                kind=found.kind,
                grid=found.grid,
                n_tokens=found.n_tokens,
                fixed=processor.modalities[found.kind].fixed,
            )
            for found in processor.largest(config.media, length)
        ),
        pixels=family.pixels(checkpoint),
        pads=processor.placeholders,
        supports_grounding="grounding" in processor.features,
        tool_form=processor.tool_form,
        thoughts=thought_marks(processor.thought_form, processor.tokenizer),
        transcription=family.transcription,
        origins=processor.origins,
    )


def warn_of_missing(checkpoint: Checkpoint, processor: Processor) -> None:
    """Of media whose sizes are a class's defaults because the published file was not copied: they may cost twice."""
    sections: tuple[tuple[Kind, Section], ...] = (("image", "image_processor"), ("audio", "feature_extractor"))
    for kind, section in sections:
        found, own = checkpoint.section(section), processor.handlers.get(kind)
        if own is not None and found.missing and own.origin == found.origin():
            log.warning(
                "%s: %s is missing: %ss are prepared by the defaults of the published class, perhaps in other "
                "sizes and with more tokens than the model was made for; copy the file from where it was published",
                checkpoint.path, found.location, kind,
            )  # fmt: skip


def tokenizers_end(checkpoint: Checkpoint, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The id of tokenizer_config.json's eos_token, for a checkpoint that names no end token elsewhere; said either way.

    vLLM does the same; transformers then generates up to its limit.
    """
    name = named_tokens(checkpoint.file("tokenizer_config.json")).get("eos_token")
    silent = "generation_config.json and config.json name no end token (eos_token_id)"
    if name is not None and name in tokenizer.special:
        log.warning("%s: %s, the eos_token of tokenizer_config.json, ends answers", silent, name)
        return (tokenizer.special[name],)
    why = "tokenizer_config.json has no eos_token" if name is None else f"tokenizer.json does not hold {name!r}"
    log.warning("%s, and %s: answers run to max_tokens; add eos_token_id to generation_config.json", silent, why)
    return ()


def widest(tokenizer: Tokenizer) -> tuple[int, int]:
    """`RequestLimits.text` and `RequestLimits.spelled` of a vocabulary."""
    text = spelled = 1
    for token in map(tokenizer.token_bytes, range(tokenizer.vocab_size)):
        if CHAR * len(token) > text or (CHAR + 4) * len(token) > spelled:  # else it cannot be the widest
            # Bytes that are no whole character may become one U+FFFD each, by what stands beside them.
            written = max(len(msgspec.json.encode(token.decode("utf-8", "replace"))) - 2, _broken(token))
            text = max(text, written)
            spelled = max(spelled, written + len(msgspec.json.encode(list(token))) - 2)
    return text, spelled


def _broken(token: bytes) -> int:
    try:
        token.decode("utf-8")
    except UnicodeDecodeError:
        return 3 * len(token)
    return 0
