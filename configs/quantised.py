"""Refuses checkpoints whose weights are quantised, by what their files say, before any tensor is read."""

import re

from configs.checkpoint import Checkpoint, CheckpointError, ConfigSection, unquoted

# vLLM, compressed-tensors and transformers write the first two, ModelSlim of MindStudio the third.
_KEYS = ("quantization_config", "compression_config", "quantize")
_SECTIONS = ("thinker_config", "text_config", "llm_config", "vision_config", "audio_config", "visual")
_BESIDE = ("quantize_config.json", "quant_config.json")  # of AutoGPTQ and AutoAWQ
_MODELSLIM = ("quant_model_description*.json", "quant_model_weight*")
_BITS = ("bits", "w_bit", "num_bits", "weight_bits")
_REMEDY = "only float32, bfloat16 and float16 are supported: take the original checkpoint"
# What stands beside or in place of a quantised `weight`: GPTQ and AWQ, bitsandbytes, fp8 and compressed-tensors,
# ModelSlim.
_TENSORS = re.compile(
    r"\.(qweight|qzeros|SCB|weight\.(absmax|quant_map|quant_state\..+)|weight_(packed|scale|scale_inv|offset)"
    r"|input_(scale|offset)|deq_scale|quant_bias)$"
)


def refuse_quantised(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError, naming file, key and method. Null and empty entries say that nothing is quantised."""
    _refuse_section(checkpoint.config)
    for name in _BESIDE:
        file = checkpoint.file(name)
        method = _method({key: file.read(object, key, None) for key in ("quant_method", *_BITS) if key in file})
        if method:
            raise _error(f"{name}: the weights are quantised{method}", beside=True)
    for pattern in _MODELSLIM:
        if found := sorted(path.name for path in checkpoint.path.glob(pattern)):
            raise _error(f"{found[0]}: the weights are quantised (ModelSlim)", beside=True)


def refuse_quantised_tensor(file: str, name: str) -> None:
    """The same by a tensor's name, for directories whose JSON files keep silent."""
    if _TENSORS.search(name):
        raise _error(f"{file}: tensor {name!r}: the weights are quantised")


def _refuse_section(section: ConfigSection) -> None:
    for key in _KEYS:
        value = section.read(object, key, None)
        if value and not _is_off(value):
            raise _error(f"{section.location}: {key}: the weights are quantised{_method(value) or ''}")
    for key in _SECTIONS:
        if key in section:
            _refuse_section(section.child(key))


def _is_off(value: object) -> bool:
    """Of bitsandbytes without a width: transformers loads such a directory as it stands."""
    if not isinstance(value, dict) or value.get("quant_method") != "bitsandbytes":
        return False
    return not (value.get("load_in_4bit") or value.get("load_in_8bit"))


def _method(value: object) -> str:
    """Method and width of what `quantization_config` holds, in brackets; nothing where neither is said."""
    if isinstance(value, str):
        return f" ({unquoted(value)})"
    if not isinstance(value, dict):
        return ""
    width = next((value[key] for key in _BITS if value.get(key) is not None), None)
    if width is None:
        width = next((n for n in (4, 8) if value.get(f"load_in_{n}bit")), None)
    named = value.get("quant_method")
    said = [*([unquoted(named)] if named else []), *([f"{unquoted(width)} bits"] if width is not None else [])]
    return f" ({', '.join(said)})" if said else ""


def _error(what: str, *, beside: bool = False) -> CheckpointError:
    return CheckpointError(f"{what}; {_REMEDY}" + (", or remove this file if it is a left-over" if beside else ""))
