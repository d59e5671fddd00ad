"""Resolves the device and dtype that a checkpoint runs on, and says how much memory is free there."""

import importlib.util
from collections.abc import Iterable

import torch

from configs.checkpoint import ConfigSection, text_config
from configs.serve import Device, Dtype
from model.host_memory import free_host_bytes

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class DeviceError(Exception):
    """The requested device or dtype is not available; the message says what to do."""


def resolve(device: Device, dtype: Dtype, *configs: ConfigSection) -> tuple[torch.device, torch.dtype]:
    """Raises DeviceError, and CheckpointError for a dtype in `configs` that is not supported.

    "auto" device: cuda where torch sees one, else the CPU. "auto" dtype: `dtype` or `torch_dtype` of the first of
    `configs`, or of its text_config, that names one, else float32; on the CPU bfloat16 for float16.
    """
    where = _device(device)
    if dtype != "auto":
        if dtype == "float16" and where.type == "cpu":
            raise DeviceError("--dtype float16 is not served on the CPU: take bfloat16 or float32")
        return where, _DTYPES[dtype]
    own = _own_dtype(configs)
    if own == torch.float16 and where.type == "cpu":
        # A CPU has no fast float16 arithmetic: the weights keep their range and lose three bits.
        own = torch.bfloat16
    return where, own


def free_bytes(device: torch.device) -> int:
    """Of the memory that tensors on `device` lie in, at this moment."""
    if device.type == "cpu":
        return free_host_bytes()
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return int(free)


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
    # The dtype of the whole model, or of its language model where the whole has none.
    for place in (place for whole in configs for place in (whole, text_config(whole))):
        for key in ("dtype", "torch_dtype"):
            if key in place:
                place.expect(key, _DTYPES)
                return _DTYPES[place.read(str, key)]
    return torch.float32
