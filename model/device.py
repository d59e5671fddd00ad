"""Where and in which dtype a checkpoint runs: the user's choice made definite. Knows no network and no operation."""

import importlib.util
from collections.abc import Iterable

import torch

from configs.checkpoint import ConfigSection, text_config
from configs.serve import Device, Dtype

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class DeviceError(Exception):
    """The device or dtype that was asked for cannot be had here: the message says what to do."""


def resolve(device: Device, dtype: Dtype, *configs: ConfigSection) -> tuple[torch.device, torch.dtype]:
    """The torch device and dtype for `--device` and `--dtype`. Raises DeviceError.

    "auto" device: cuda where torch sees one, else the CPU. "auto" dtype: the checkpoint's own (`dtype` or
    `torch_dtype` of the first of `configs`, or of its text_config, that names one; float32 where none does). float16
    becomes bfloat16 on the CPU, which has no fast float16 arithmetic: the weights keep their range and lose three
    bits; `--dtype float32` keeps all at twice the memory.
    """
    where = _device(device)
    if dtype != "auto":
        if dtype == "float16" and where.type == "cpu":
            raise DeviceError("--dtype float16 is not served on the CPU: take bfloat16 or float32")
        return where, _DTYPES[dtype]
    own = _own_dtype(configs)
    if own == torch.float16 and where.type == "cpu":
        own = torch.bfloat16
    return where, own


def _device(device: Device) -> torch.device:
    if device == "npu":
        if importlib.util.find_spec("torch_npu") is None:
            raise DeviceError("--device npu: torch_npu is not installed; it comes with Ascend's image or wheel")
        raise DeviceError("--device npu: this build has no NPU operations yet; use --device cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda: this torch sees no CUDA device")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def _own_dtype(configs: Iterable[ConfigSection]) -> torch.dtype:
    # A dtype is said of the whole model, and of its language model where nobody said it of the whole.
    for place in (place for whole in configs for place in (whole, text_config(whole))):
        for key in ("dtype", "torch_dtype"):
            if key in place:
                place.expect(key, _DTYPES)
                return _DTYPES[place.read(str, key)]
    return torch.float32
