"""The special tokens that tokenizer_config.json names, such as eos_token."""

from configs.checkpoint import ConfigSection

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def named_tokens(config: ConfigSection) -> dict[str, str]:
    """Text by part: `{"eos_token": "<|im_end|>"}`. What is null or missing has no entry."""
    found: dict[str, str] = {}
    for name in NAMES:
        value = config.read(object, name, None)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found
