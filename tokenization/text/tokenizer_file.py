"""What tokenizer.json says, also of a directory that has the older files instead: vocab.json, merges.txt and others."""

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as BytesOfText
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection
from tokenization.text.tokenizer import named_tokens

TOKENIZER_FILE, VOCAB_FILE, MERGES_FILE = "tokenizer.json", "vocab.json", "merges.txt"
# What transformers' class of these files cuts texts by before it merges.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"  # what this class calls eos_token, pad_token and unk_token where no file does
_ENTRY = {"content": str, "single_word": bool, "lstrip": bool, "rstrip": bool, "normalized": bool, "special": bool}


def tokenizer_text(checkpoint: Checkpoint) -> str:
    """tokenizer.json as it is, or made of the older files. Raises CheckpointError where both are missing or damaged."""
    text = checkpoint.text(TOKENIZER_FILE)
    return _from_older_files(checkpoint).to_str() if text is None else text


def added_tokens(checkpoint: Checkpoint) -> dict[int, str]:
    """Text by id of the tokens beside the vocabulary of merges. Raises CheckpointError as `tokenizer_text`."""
    if checkpoint.text(TOKENIZER_FILE) is None:
        return {token_id: token.content for token_id, token in _older_added_tokens(checkpoint).items()}
    found: dict[int, str] = {}
    for token in checkpoint.file(TOKENIZER_FILE).read(list, "added_tokens", []):
        if not isinstance(token, dict) or type(token.get("id")) is not int:
            raise CheckpointError(f"{TOKENIZER_FILE}: an entry of 'added_tokens' has no id")
        found[token["id"]] = str(token.get("content"))
    return found


def replace_split(tokenizer: Tokenizer, wrong: str, right: str) -> bool:
    """Let `tokenizer` split texts by the pattern `right` where its first rule is `wrong`; whether it was."""
    rules = json.loads(tokenizer.pre_tokenizer.__getstate__()) if tokenizer.pre_tokenizer else {}
    split = {"type": "Split", "pattern": {"Regex": wrong}, "behavior": "Isolated", "invert": False}
    if rules.get("pretokenizers", [])[:1] != [split]:
        return False
    tokenizer.pre_tokenizer[0] = Split(Regex(right), behavior="isolated")
    return True


def _from_older_files(checkpoint: Checkpoint) -> Tokenizer:
    """As transformers 5 makes one of them. Other classes than this one cut texts by other rules: refused."""
    config = checkpoint.file("tokenizer_config.json")
    text, merges = checkpoint.text(VOCAB_FILE), checkpoint.text(MERGES_FILE)
    if text is None or merges is None:
        raise CheckpointError(f"{checkpoint.path}: no {TOKENIZER_FILE} here, and no {VOCAB_FILE} with {MERGES_FILE}")
    config.expect("tokenizer_class", ("Qwen2Tokenizer", "Qwen2TokenizerFast"), "Qwen2Tokenizer")
    config.expect("add_prefix_space", (False,), False)
    try:
        tokenizer = Tokenizer(BPE(vocab=_vocabulary(text), merges=_pairs(merges)))
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001 - tokenizers raises Exception itself
        raise CheckpointError(f"{VOCAB_FILE} and {MERGES_FILE}: no vocabulary of merges: {error}") from None
    tokenizer.normalizer = NFC()
    words = Split(Regex(WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = BytesOfText()
    added = dict(sorted(_older_added_tokens(checkpoint).items()))
    tokenizer.add_tokens(list(added.values()))
    for token_id, token in added.items():
        if (got := tokenizer.token_to_id(token.content)) != token_id:
            raise CheckpointError(
                f"added_tokens.json or tokenizer_config.json: {token.content!r} has the id {token_id}, where the "
                f"vocabulary of {VOCAB_FILE} goes on with {got}"
            )
    return tokenizer


def _vocabulary(text: str) -> dict[str, int]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{VOCAB_FILE}: not valid JSON: {error}") from None
    if not isinstance(found, dict) or sorted(found.values(), key=_number) != list(range(len(found))):
        raise CheckpointError(f"{VOCAB_FILE}: its entries do not have the ids from 0 on, each once")
    return found


def _number(value: object) -> int:
    return value if type(value) is int else -1


def _pairs(text: str) -> list[tuple[str, str]]:
    """One merge a line, in their order; the first line may say a version."""
    found = []
    for i, line in enumerate(text.split("\n")):
        line = line.removesuffix("\r")
        if not line or line.startswith("#version"):
            continue
        first, blank, second = line.partition(" ")
        if not blank or " " in second:
            raise CheckpointError(f"{MERGES_FILE}: line {i + 1} is not two pieces with a blank between them")
        found.append((first, second))
    return found


def _older_added_tokens(checkpoint: Checkpoint) -> dict[int, AddedToken]:
    """By id: those of tokenizer_config.json, else those of added_tokens.json, special where another file says so."""
    config = checkpoint.file("tokenizer_config.json")
    listed = config.child("added_tokens_decoder")
    if listed:
        return {_id_of(key, listed): _entry(listed.child(key)) for key in listed.keys()}
    names, file = checkpoint.file("special_tokens_map.json"), checkpoint.file("added_tokens.json")
    special = {_END, *named_tokens(names.merged(config)).values(), *_more_special(names), *_more_special(config)}
    return {
        file.token_id(text): AddedToken(text, normalized=text not in special, special=text in special)
        for text in file.keys()
    }


def _id_of(key: str, listed: ConfigSection) -> int:
    if not key.isdecimal() or len(key) > 8:
        raise CheckpointError(f"{listed.location}: {key!r} is no id")
    return int(key)


def _entry(entry: ConfigSection) -> AddedToken:
    values: dict[str, Any] = {key: entry.read(kind, key) for key, kind in _ENTRY.items() if key in entry}
    if not values.get("content"):
        raise CheckpointError(f"{entry.location}: required key 'content' is missing")
    return AddedToken(**values)


def _more_special(config: ConfigSection) -> set[str]:
    entries = config.read(list, "additional_special_tokens", [])
    return {str(entry["content"] if isinstance(entry, dict) and "content" in entry else entry) for entry in entries}
