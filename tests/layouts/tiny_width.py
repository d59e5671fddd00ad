"""What a published file holds, at tiny width: the same keys, and the same values but for sizes and token ids."""

import re
from collections.abc import Mapping
from typing import Any

N_ORDINARY = 400  # entries of a tiny vocabulary before the added ones

_IDS = re.compile(r"(_ids?|_index|vocab_size)$")
_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_window_layers": 2, "mrope_section": [2, 3, 3],
}  # fmt: skip
_PLAIN_TOWER: dict[str, Any] = {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64}
_WINDOWED_TOWER: dict[str, Any] = {
    "depth": 4, "hidden_size": 64, "num_heads": 4, "intermediate_size": 48, "out_hidden_size": 64,
    "fullatt_block_indexes": [1, 3],
}  # fmt: skip
_TAPPED_TOWER: dict[str, Any] = {
    "depth": 4, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64,
    "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2],
}  # fmt: skip
# Heads have a size of their own, and deepstack a layer behind the last one that it adds to.
_TAPPED_TEXT: dict[str, Any] = _TEXT | {"num_hidden_layers": 3, "head_dim": 32, "mrope_section": [6, 5, 5]}
_CLIP: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "projection_dim": 32,
}  # fmt: skip
_AUDIO: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "output_dim": 64,
    "num_hidden_layers": 2,  # beside `encoder_layers`, whose other name it is
}  # fmt: skip
# Sizes that a file leaves to its class, whose default is not tiny: the only keys that are added.
_ADDED: Mapping[str, Mapping[str, Any]] = {
    "text": {**{key: _TEXT[key] for key in list(_TEXT)[:4]}, "num_key_value_heads": 4},
    "windowed": {"intermediate_size": 48, "out_hidden_size": 64, "hidden_size": 64},
    "plain": {"embed_dim": 32, "hidden_size": 64, "num_heads": 2},
    "audio": {key: _AUDIO[key] for key in list(_AUDIO)[:4]},
}


def first_added(added: Mapping[str, Any]) -> int:
    """The first id behind the ordinary entries of a published vocabulary, by its `added_tokens_decoder`.

    Among these are the three at the beginning of a SentencePiece vocabulary.
    """
    return min(number for number in map(int, added) if number > 2)


def tiny_config(published: Mapping[str, Any], first: int) -> dict[str, Any]:
    """config.json of a model with a decoder of 64 and towers of 32 or 64 channels. first: of `first_added`."""
    config: dict[str, Any] = with_tiny_ids(published, first)
    inner = config.get("thinker_config", config)
    text = inner.get("text_config", inner)
    tapped = "deepstack_visual_indexes" in inner.get("vision_config", {})
    sizes = _TAPPED_TEXT if tapped else _TEXT
    _shrink(inner, sizes)
    _shrink(text, sizes)
    _add(text, "text")
    if isinstance(inner.get("rope_scaling"), dict):
        _shrink(inner["rope_scaling"], sizes)
    if isinstance(text.get("rope_scaling"), dict):
        _shrink(text["rope_scaling"], sizes)
    if inner.get("vision_config", {}).get("model_type") == "clip_vision_model":
        seen = {"num_hidden_layers": 12} if "vision_feature_layers" in inner else {}  # each of the five is another
        _shrink(inner["vision_config"], _CLIP | seen)
    elif tapped:
        _shrink(inner["vision_config"], _TAPPED_TOWER)
    elif "vision_config" in inner:
        windowed = config["model_type"] != "qwen2_vl"
        vision = inner["vision_config"]
        sizes = dict(_WINDOWED_TOWER if windowed else _PLAIN_TOWER)
        if "depth" not in vision:  # 32 blocks then, of which the published ones see everything
            sizes.pop("fullatt_block_indexes", None)
        _shrink(vision, sizes)
        _add(vision, "windowed" if windowed else "plain")
    if "audio_config" in inner:
        _shrink(inner["audio_config"], _AUDIO)
        _add(inner["audio_config"], "audio")
    return config


def with_tiny_ids(value: Any, first: int, key: str = "") -> Any:
    """The same, every id behind the ordinary vocabulary (and its size) moved down to it."""
    if isinstance(value, Mapping):
        return {name: with_tiny_ids(inner, first, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_tiny_ids(inner, first, key) for inner in value]
    is_id = isinstance(value, int) and not isinstance(value, bool)
    return tiny_id(value, first) if is_id and _IDS.search(key) else value


def tiny_id(number: int, first: int) -> int:
    return number - first + N_ORDINARY if number >= first else number


def tiny_added_tokens(published: Mapping[str, Any], first: int) -> dict[str, Any]:
    """`added_tokens_decoder` (id -> token) or added_tokens.json (token -> id) under tiny ids."""
    if all(isinstance(value, int) for value in published.values()):
        return {token: tiny_id(number, first) for token, number in published.items()}
    return {str(tiny_id(int(number), first)): token for number, token in published.items()}


def _shrink(section: dict[str, Any], sizes: Mapping[str, Any]) -> None:
    section.update({key: value for key, value in sizes.items() if key in section})


def _add(section: dict[str, Any], name: str) -> None:
    for key, value in _ADDED[name].items():
        section.setdefault(key, value)
