"""Qwen-VL's vocabulary, a `.tiktoken` rank file: text to ids, ids to bytes."""

import base64
import binascii
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import tiktoken

from configs.checkpoint import MOST_FILE_BYTES, Checkpoint, CheckpointError
from tokenization.chat.combining_marks import refuse_long_runs
from tokenization.chat.errors import ChatError

FILE_NAME = "qwen.tiktoken"
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
REF, REF_END = "<ref>", "</ref>"
BOX, BOX_END = "<box>", "</box>"
QUAD, QUAD_END = "<quad>", "</quad>"
IMG, IMG_END, IMG_PAD = "<img>", "</img>", "<imgpad>"

GROUNDING_TAGS = (REF, REF_END, BOX, BOX_END, QUAD, QUAD_END)
SPECIAL = (
    END_OF_TEXT, IM_START, IM_END, *(f"<|extra_{i}|>" for i in range(205)), *GROUNDING_TAGS, IMG, IMG_END, IMG_PAD,
)  # fmt: skip

# The pattern's look-ahead makes the regex engine remember every character of a run of blanks; at a million its stack is
# full and it ends in a panic, which no `except Exception` holds. Nobody types half of that.
LONGEST_BLANK = 500_000


class QwenVLTokenizer:
    """Calls as in tokenization.text.bpe.BPETokenizer. `encode` never gives a special id, whatever the text holds."""

    opening: tuple[int, ...] = ()
    leading_blanks = 0

    def __init__(self, ranks: Mapping[bytes, int]) -> None:
        """ranks: token bytes -> id 0..n-1, every single byte among the tokens; SPECIAL follows, in its order."""
        self._tokens = tuple(sorted(ranks, key=ranks.__getitem__))
        self._encoding = tiktoken.Encoding("qwen", pat_str=PATTERN, mergeable_ranks=dict(ranks), special_tokens={})
        self.longest_token = max(map(len, (*self._tokens, *SPECIAL)))  # bytes
        first = len(self._tokens)
        self.vocab_size = first + len(SPECIAL)
        self.special: Mapping[str, int] = MappingProxyType({name: first + i for i, name in enumerate(SPECIAL)})
        # Tags of grounding are words of an answer: its reader sees them, as in the original.
        self._shown = frozenset(self.special[name] for name in GROUNDING_TAGS)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "QwenVLTokenizer":
        """Raises CheckpointError when qwen.tiktoken is missing or broken."""
        return cls(read_ranks(checkpoint.path / FILE_NAME))

    def encode(self, text: str) -> list[int]:
        """Ordinary ids after NFC. Raises ChatError for a lone surrogate and for long runs of blanks or of marks."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise ChatError(f"character {error.start} of the text is U+{code:04X}, half of a surrogate pair") from None
        if len(text) >= LONGEST_BLANK and any(
            run.end() - run.start() >= LONGEST_BLANK for run in re.finditer(r"\s+", text)
        ):
            raise ChatError(f"the text holds {LONGEST_BLANK} or more blank characters in a row")
        refuse_long_runs(text)  # parts that a template joins may make a run that none of them holds
        return self._encoding.encode_ordinary(unicodedata.normalize("NFC", text))

    def token_bytes(self, token_id: int) -> bytes:
        """The name of a special id; b"" of one outside the vocabulary."""
        if 0 <= token_id < len(self._tokens):
            return self._tokens[token_id]
        index = token_id - len(self._tokens)
        return SPECIAL[index].encode("ascii") if 0 <= index < len(SPECIAL) else b""

    def entry(self, token_id: int) -> str:
        """The vocabulary holds bytes: their text, with U+FFFD for what is no whole character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Whether an answer's text leaves this id out: turns and pictures. `<ref>`, `<box>`, `<quad>` are shown."""
        return len(self._tokens) <= token_id < self.vocab_size and token_id not in self._shown


def read_ranks(path: Path) -> dict[bytes, int]:
    """Token bytes -> id from lines `base64 rank`. Raises CheckpointError, naming file and line."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path.name}: not in the checkpoint; it holds the vocabulary")
        if path.stat().st_size > MOST_FILE_BYTES:
            raise CheckpointError(f"{path.name}: more than {MOST_FILE_BYTES >> 20} MiB, which no published one has")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise CheckpointError(f"{path.name}: cannot be read: {error.strerror}") from None
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            text, rank = line.split()
            ranks[base64.b64decode(text, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise CheckpointError(f"{path.name}: line {number} is not 'base64 rank'") from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise CheckpointError(f"{path.name}: the ranks are not 0..{len(ranks) - 1}, each once")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise CheckpointError(f"{path.name}: byte {missing[0]} has no token")
    return ranks
