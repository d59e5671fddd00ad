"""Resolves the device and dtype that a checkpoint runs on, and says what its memory is taken by."""

import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from configs.checkpoint import ConfigSection, text_config
from configs.serve import MIB, Device, Dtype, EngineConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# By type of device: dtypes that it does not serve, and what is said. bfloat16 takes their place where nobody asked for
# one: it keeps the range of all, so that no weight and no activation overflows. An NPU's attention over packed tokens
# takes bfloat16 alone where heads do not share keys (docs/npu.md), as in every tower.
_UNSERVED = {
    "cpu": ({torch.float16}, "is not served on the CPU: take bfloat16 or float32"),
    "npu": ({torch.float32, torch.float16}, "is not served on an NPU: take bfloat16"),
}
_SERVED_NPUS = ("Ascend910B", "Ascend910_93")  # how the names of Atlas A2 and A3 begin
_CPU_BLOCK_SIZE = 16  # tokens: 0.75 to 0.97 of what decode steps cost with 128, in a row and scattered
_NPU_BLOCK_SIZE = 128  # tokens: attention over a paged cache takes a multiple of it, and is in use with this one
_NPU_MODEL_LEN = 262_144  # keys that one new token may see (documentation of npu_fused_infer_attention_score)
_CPU_STEP_TOKENS = 256  # a larger step computes no more tokens a second there, and all that decode wait for its end
EMBEDDINGS = 256 * MIB  # that stay on a device between the steps of their prompts

log = logging.getLogger("pixelferry")


class DeviceError(Exception):
    """The requested device or dtype is not available; the message says what to do."""


class TooFewNPUs(DeviceError):
    """There are NPUs, and fewer than ranks: none of these goes on without one."""


def resolve(device: Device, dtype: Dtype, *configs: ConfigSection, rank: int = 0) -> tuple[torch.device, torch.dtype]:
    """Raises DeviceError, and CheckpointError for a dtype in `configs` that is not supported.

    "auto" device: an NPU that can be served, else cuda where torch sees one, else the CPU. "auto" dtype: `dtype` or
    `torch_dtype` of the first of `configs`, or of its text_config, that names one, else float32; bfloat16 where the
    device does not serve that: float16 on the CPU, all others on an NPU. rank: of an engine of several processes, each
    of which has a card of its own.
    """
    where = _device(device, rank)
    return where, dtype_on(where.type, dtype, *configs)


def dtype_on(kind: str, dtype: Dtype, *configs: ConfigSection) -> torch.dtype:
    """The same of a kind of device, which need not be here."""
    unserved, refusal = _UNSERVED.get(kind, (set(), ""))
    if dtype != "auto":
        if _DTYPES[dtype] in unserved:
            raise DeviceError(f"--dtype {dtype} {refusal}")
        return _DTYPES[dtype]
    own = _own_dtype(configs)
    if own not in unserved:
        return own
    if kind == "npu":
        log.warning("the checkpoint's %s is not served on an NPU: taking bfloat16", str(own).removeprefix("torch."))
    return torch.bfloat16


def block_size(config: EngineConfig, device: str = "cpu") -> int:
    """Tokens of one block: as asked for, else what an NPU takes, and on a CPU, where small ones cost nothing, few.

    The smaller a block, the more of a prompt is found that begins as an earlier one did.
    """
    return config.block_size or (_CPU_BLOCK_SIZE if device == "cpu" else _NPU_BLOCK_SIZE)


def check_cache(kind: str, block_size: int, max_model_len: int) -> None:
    """Raises DeviceError for blocks or sequences of so many tokens, where attention on such a device takes others."""
    if kind != "npu":
        return
    if block_size != _NPU_BLOCK_SIZE:
        raise DeviceError(f"--block-size {block_size} is not served on an NPU: take {_NPU_BLOCK_SIZE}")
    if max_model_len > _NPU_MODEL_LEN:
        raise DeviceError(f"--max-model-len {max_model_len} is not served on an NPU: take at most {_NPU_MODEL_LEN}")


def with_step_of(kind: str, config: EngineConfig) -> EngineConfig:
    """What such a device takes for a step where nobody said it."""
    if config.max_batched_tokens is not None or kind != "cpu":
        return config
    return msgspec.structs.replace(config, max_batched_tokens=max(_CPU_STEP_TOKENS, config.max_seqs))


def embedding_bytes(config: EngineConfig) -> int:
    """Most bytes of embeddings that a device holds beside the medium that is being encoded; host memory holds all."""
    return min(EMBEDDINGS, config.embedding_bytes)


def share_of(setting: str, config: EngineConfig) -> str:
    """How the setting is named where one rank's part of it is shown."""
    return setting if config.tensor_parallel == 1 else f"{setting} / {config.tensor_parallel}"


def free_bytes(device: torch.device) -> int:
    """Free bytes of an NPU's or a GPU's own memory at this moment."""
    module = torch.get_device_module(device)
    module.synchronize(device)  # what a stream still uses is not given back
    module.empty_cache()  # what torch's allocator holds of freed tensors is free, too
    return _free_now(device)


def peak_bytes(device: torch.device, run: Callable[[], object]) -> int:
    """Most bytes of tensors that `run` has on a device at once."""
    module = torch.get_device_module(device)
    module.synchronize(device)
    module.reset_peak_memory_stats(device)
    before = module.memory_allocated(device)
    run()
    module.synchronize(device)
    return int(module.max_memory_allocated(device) - before)


def given_back(device: torch.device) -> int:
    """Bytes that torch's allocator held for tensors that are gone, and that the device has again after this call."""
    torch.get_device_module(device).synchronize(device)
    before = _free_now(device)
    return max(free_bytes(device) - before, 0)


def lasting_bytes(device: torch.device, make: Callable[[], object]) -> int | None:
    """Bytes that what `make` returns takes while it lives: tensors, and the driver's own. It is gone afterwards.

    None where it returns None.
    """
    before = free_bytes(device)
    made = make()
    if made is None:
        return None
    after = free_bytes(device)
    del made
    return max(before - after, 0)


@contextmanager
def out_of_memory(device: torch.device, what: str, remedy: str) -> Iterator[None]:
    """Whatever runs inside it and finds no memory on `device` is a DeviceError of one sentence."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"{device} has no memory for {what} ({first_line(error)}): lower {remedy}, or end what else runs there"
        ) from None


def _free_now(device: torch.device) -> int:
    """Free bytes as the driver tells them, so that what other processes take counts."""
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return int(free)


def _device(device: Device, rank: int) -> torch.device:
    if device == "npu":
        return _npu(rank)
    if device == "auto":
        return _best(rank)
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("--device cuda: this torch sees no CUDA device")
    return torch.device(device)


def _best(rank: int) -> torch.device:
    if importlib.util.find_spec("torch_npu") is not None:
        try:
            return _npu(rank)
        except TooFewNPUs:
            raise
        except DeviceError as error:
            log.warning("%s; --device auto goes on without an NPU", error)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _npu(rank: int) -> torch.device:
    """The NPU of that number which this process may see, ready for its first operator. Raises DeviceError."""
    try:
        import torch_npu  # noqa: F401 - it makes torch know NPUs
    except Exception as error:  # noqa: BLE001 - where a part of CANN is missing it raises a bare one
        if isinstance(error, ModuleNotFoundError) and error.name == "torch_npu":
            raise DeviceError(
                "--device npu: torch_npu is not installed; it comes with Ascend's image or wheel"
            ) from None
        raise DeviceError(
            f"--device npu: torch_npu cannot be loaded ({first_line(error)}): source set_env.sh of CANN before the "
            "start, and keep to the versions of constraints/ascend.txt"
        ) from None
    npu = torch.get_device_module("npu")
    if not npu.is_available():
        raise DeviceError(
            "--device npu: torch_npu sees no NPU: `npu-smi info` must list one, this user must be able to open "
            "/dev/davinci*, and ASCEND_RT_VISIBLE_DEVICES must not hide it"
        )
    if rank and rank >= npu.device_count():
        raise TooFewNPUs(
            f"--tensor-parallel asks for {rank + 1} NPUs or more, and torch_npu sees {npu.device_count()}: "
            "ASCEND_RT_VISIBLE_DEVICES must name so many"
        )
    try:
        name = npu.get_device_name(rank)
        if not name.startswith(_SERVED_NPUS):
            raise DeviceError(f"--device npu: {name} is not served; Atlas A2 (Ascend910B) and A3 (Ascend910_93) are")
        npu.set_device(rank)
        # Before the first operator: else each one is compiled where it is first called, and some never run fused.
        npu.set_compile_mode(jit_compile=False)
    except RuntimeError as error:
        raise DeviceError(
            f"--device npu: the NPU cannot be opened ({first_line(error)}): `npu-smi info` says whether it is well "
            "and who has it"
        ) from None
    return torch.device("npu", rank)


def first_line(error: Exception) -> str:
    """The first line of an error of a device, without the trace below it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _own_dtype(configs: Iterable[ConfigSection]) -> torch.dtype:
    # The dtype of the whole model, or of its language model where the whole has none.
    for place in (place for whole in configs for place in (whole, text_config(whole))):
        for key in ("dtype", "torch_dtype"):
            if key in place:
                place.expect(key, _DTYPES)
                return _DTYPES[place.read(str, key)]
    return torch.float32


def record_profile(folder: Path, run: Callable[[], object]) -> None:
    """What an NPU does in `run`, as torch_npu's profiler writes it: tables of msprof of CANN, somewhere in `folder`."""
    import torch_npu

    profiler: Any = torch_npu.profiler
    settings = profiler._ExperimentalConfig(profiler_level=profiler.ProfilerLevel.Level1)
    with profiler.profile(
        activities=[profiler.ProfilerActivity.NPU],
        on_trace_ready=profiler.tensorboard_trace_handler(str(folder), analyse_flag=True),
        experimental_config=settings,
    ):
        run()
