"""Small vocabularies of SentencePiece's kind: pieces, bytes for what no piece holds, in each form that tools write."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.tiny.qwen2_vl import CORPUS, write_json

# `prepend`: Llama's as converted before mid 2024, and LLaVA's; `first`: as converted since; `unigram`: Persimmon's.
Form = Literal["prepend", "first", "unigram"]

CONTROL = ("<unk>", "<s>", "</s>")
N_PIECES = 150


def trained_pieces(form: Form = "prepend", special: Sequence[str] = (), n_pieces: int = N_PIECES) -> Tokenizer:
    """Ids: CONTROL, 256 bytes, pieces; behind them `special`, which are added."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    learner.train_from_iterator([CORPUS] * 4, trainers.BpeTrainer(vocab_size=n_pieces, show_progress=False))
    learned = learner.get_vocab()
    pieces = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *sorted(learned, key=learned.__getitem__)]
    if form == "unigram":
        scored = [(piece, -float(i)) for i, piece in enumerate(pieces)]
        tokenizer = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    else:
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        tokenizer = Tokenizer(
            models.BPE(vocabulary, merges_of(learner), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        )
    if form == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0", pair="<s>:0 $A:0 <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in (*CONTROL, *special)])
    return tokenizer


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def write_pieces(
    path: Path, form: Form = "prepend", special: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> Tokenizer:
    """tokenizer.json and tokenizer_config.json, as LLaVA's directory has them."""
    tokenizer = trained_pieces(form, special)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False, "legacy": form == "prepend", "model_max_length": 4096,
        "padding_side": "left", "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizer",
        "use_default_system_prompt": False, **(settings or {}),
    }  # fmt: skip
    write_json(path / "tokenizer_config.json", config)
    return tokenizer
