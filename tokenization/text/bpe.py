"""Text to ids and ids to bytes, by a checkpoint's tokenizer.json, or by what stands for one."""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import Unigram

from configs.checkpoint import Checkpoint, CheckpointError
from tokenization.chat.errors import ChatError, shortened
from tokenization.text.spelling import read_spelling
from tokenization.text.tokenizer import named_tokens
from tokenization.text.tokenizer_file import replace_split, tokenizer_text

MOST_ADDED = 1 << 16  # entries; the most that is published has a tenth of them
_BLANK_AT_START = re.compile(r'"prepend_scheme":\s*"first"')


class BPETokenizer:
    def __init__(self, tokenizer: Tokenizer, special: Mapping[str, int], opening: Sequence[int] = ()) -> None:
        """`tokenizer` must flag as special exactly those added tokens that `special` holds."""
        self._bytes, self.leading_blanks = read_spelling(tokenizer)
        self._at_start = _plain(tokenizer)
        inner = _without_first_blank(tokenizer)
        self._inside = self._at_start if inner is None else _plain(inner)
        self.special: Mapping[str, int] = MappingProxyType(dict(special))
        self.opening = tuple(opening)
        self._special_ids = frozenset(special.values())
        unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")
        self._marks = self._special_ids - {unknown}  # as in the reference, what nothing spells is unknown
        self._cut = _cutter(tokenizer, special)
        renamed = {}
        for content, token_id in special.items():
            if tokenizer.token_to_id(content) != token_id:  # it has another name there: `_out_of_reach`
                self._bytes[token_id] = content.encode("utf-8")
                renamed[token_id] = content
        self._renamed: Mapping[int, str] = renamed
        self.vocab_size = len(self._bytes)
        self.longest_token = max(map(len, self._bytes))  # bytes

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        extra_special: Mapping[int, str] = MappingProxyType({}),
        named_special: Mapping[str, str] = MappingProxyType({}),
    ) -> "BPETokenizer":
        """`extra_special`: ids that mark media, and who names each; `named_special`: the same by the entries' texts.

        Raises CheckpointError for a bad file, and for an id or a text that it does not hold.
        """
        try:
            with _panics_told(ValueError, "it cannot be read"):
                text = tokenizer_text(checkpoint)
                tokenizer = Tokenizer.from_str(text)
        except CheckpointError:
            raise
        except Exception as error:  # noqa: BLE001 - tokenizers raises Exception itself
            raise CheckpointError(f"tokenizer.json: not a tokenizer: {error}") from None
        if (n_added := len(tokenizer.get_added_tokens_decoder())) > MOST_ADDED:
            raise CheckpointError(f"tokenizer.json: 'added_tokens' has {n_added} entries, expected up to {MOST_ADDED}")
        special = _special_tokens(tokenizer, checkpoint)
        for token_id, said in extra_special.items():
            content = tokenizer.id_to_token(token_id) if token_id >= 0 else None
            if content is None:
                raise CheckpointError(
                    f"{said} is {token_id}, an id that tokenizer.json does not hold: name one of its own"
                )
            special[content] = token_id
        for content, said in named_special.items():
            found = tokenizer.token_to_id(content)
            if found is None:
                raise CheckpointError(f"tokenizer.json does not hold {content!r}, which {said} writes")
            special[content] = found
        added = tokenizer.get_added_tokens_decoder().values()
        opening = _opening(tokenizer, checkpoint)
        if isinstance(tokenizer.model, Unigram) or any(token.special != (token.content in special) for token in added):
            tokenizer = Tokenizer.from_str(_out_of_reach(text, special))
        return cls(tokenizer, special, opening)

    def replace_split(self, wrong: str, right: str) -> bool:
        """Split texts by the pattern `right` where tokenizer.json's first rule is `wrong`; whether it was."""
        return any([replace_split(tokenizer, wrong, right) for tokenizer in (self._at_start, self._inside)])

    def encode(self, text: str) -> list[int]:
        """Raises ChatError where a vocabulary spells a special token by merges, so that text would become it."""
        return self._encode(text, self._at_start)

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Pieces are (text, written by a user). Cuts are only at the template's special tokens: merges cross pieces."""
        ids: list[int] = []
        pending: list[str] = []
        for text, from_user in pieces:
            if from_user or self._cut is None:
                pending.append(text)
                continue
            end = 0
            for match in self._cut.finditer(text):
                pending.append(text[end : match.start()])
                end = match.end()
                self._flush(pending, ids)
                ids.append(self.special[match.group().strip() if match.lastgroup else match.group()])
            pending.append(text[end:])
        self._flush(pending, ids)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def entry(self, token_id: int) -> str:
        return self._renamed.get(token_id) or self._at_start.id_to_token(token_id) or ""

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def _flush(self, pending: list[str], ids: list[int]) -> None:
        text = "".join(pending)
        pending.clear()
        if text:
            ids.extend(self._encode(text, self._inside if ids else self._at_start))

    def _encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        with _panics_told(ChatError, "the text cannot be split by this model's tokenizer.json"):
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if not self._marks.isdisjoint(ids):
            raise ChatError("the text holds a word that this model's vocabulary keeps for marks")
        return ids


@contextmanager
def _panics_told(refusal: type[Exception], message: str) -> Iterator[None]:
    """A panic of tokenizers' Rust code, on a regular expression that tries too much for one, becomes a `refusal`.

    pyo3's PanicException is no Exception, and no module holds it.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise refusal(f"{message}: {shortened(str(error), 100)}") from None


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.encode_special_tokens = True  # a special token typed in text is text
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _without_first_blank(tokenizer: Tokenizer) -> Tokenizer | None:
    """The same for a text behind a special token, where only a prompt's own start counts as one; None where all do."""
    state = tokenizer.pre_tokenizer.__getstate__().decode() if tokenizer.pre_tokenizer else ""
    if not _BLANK_AT_START.search(state):
        return None
    document = json.loads(tokenizer.to_str())
    document["pre_tokenizer"] = json.loads(_BLANK_AT_START.sub('"prepend_scheme":"never"', state))
    return Tokenizer.from_str(json.dumps(document, ensure_ascii=False))


def _opening(tokenizer: Tokenizer, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Ids in front of every prompt: by tokenizer_config.json, and where that is silent by tokenizer.json."""
    config = checkpoint.file("tokenizer_config.json")
    if "add_bos_token" not in config and "add_eos_token" not in config:
        with _panics_told(CheckpointError, "tokenizer.json: the text 'a' cannot be split by it"):
            bare = tokenizer.encode("a", add_special_tokens=False).ids
            whole = tokenizer.encode("a", add_special_tokens=True).ids
        n = len(whole) - len(bare)
        if whole[n:] != bare:
            raise CheckpointError("tokenizer.json: a post-processor that puts tokens behind a text is not supported")
        return tuple(whole[:n])
    config.expect("add_eos_token", (False,), False)
    first = named_tokens(config).get("bos_token")
    if first is None or not config.read(bool, "add_bos_token", False):
        return ()
    token_id = tokenizer.token_to_id(first)
    if token_id is None:
        raise CheckpointError(f"{config.location}: bos_token {first!r} is not in tokenizer.json")
    return (token_id,)


def _special_tokens(tokenizer: Tokenizer, checkpoint: Checkpoint) -> dict[str, int]:
    """Text and id of every token that one of the tokenizer's files calls special."""
    added = {token.content: (token_id, token) for token_id, token in tokenizer.get_added_tokens_decoder().items()}
    names = {content for content, (_, token) in added.items() if token.special}
    config = checkpoint.file("tokenizer_config.json")
    for entry in config.read(dict, "added_tokens_decoder", {}).values():
        if isinstance(entry, dict) and entry.get("special"):
            names.add(str(entry.get("content")))
    names.update(named_tokens(config).values())
    return {content: token_id for content, (token_id, _) in added.items() if content in names}


def _out_of_reach(text: str, special: Mapping[str, int]) -> str:
    """tokenizer.json as typed text never becomes a special token of it.

    Exactly these added tokens are flagged as special. A vocabulary of scored pieces may hold marks among them, which
    it finds in every text: these get names that nobody can write.
    """
    document: dict[str, Any] = json.loads(text)
    if document["model"].get("type") == "Unigram":
        name = secrets.token_hex(16)
        pieces = {piece for piece, _ in document["model"]["vocab"] if piece in special}
        document["model"]["vocab"] = [
            [f"{name}{special[piece]}" if piece in pieces else piece, score]
            for piece, score in document["model"]["vocab"]
        ]
        # By its old name it would be added a second time.
        document["added_tokens"] = [entry for entry in document["added_tokens"] if entry["content"] not in pieces]
    for entry in document["added_tokens"]:
        entry["special"] = entry["content"] in special
    return json.dumps(document, ensure_ascii=False)


def _cutter(tokenizer: Tokenizer, special: Mapping[str, int]) -> re.Pattern[str] | None:
    """Finds special tokens in template text, the longest first; blanks that a token swallows are part of it."""
    if not special:
        return None
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    plain: list[str] = []
    greedy: list[str] = []
    for content in sorted(special, key=len, reverse=True):
        token = added.get(content)
        left = r"(?:(?<!\s)\s+)?" if token is not None and token.lstrip else ""  # a run of blanks is tried once
        right = r"\s*" if token is not None and token.rstrip else ""
        (greedy if left or right else plain).append(left + re.escape(content) + right)
    choices = [f"(?P<blanks>{'|'.join(greedy)})"] if greedy else []
    return re.compile("|".join([*choices, *plain]))
