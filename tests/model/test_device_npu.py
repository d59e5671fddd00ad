"""What --device npu and auto come to over a double of torch_npu, and every sentence for an NPU that cannot be had."""

import logging
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from configs.serve import Dtype, EngineConfig
from configs.settings import load_config
from model.device import DeviceError, block_size, check_cache, free_bytes, resolve
from model.engine.loop import load
from model.engine.messages import StartEngine
from model.engine.ranks import part
from model.ops.collectives import Ranks
from model.ops.load import load_ops
from model.ops.npu_rules import RuleError
from tests.model.test_device import config_of
from tests.model.torch_npu_double import A2, A3, NpuDouble, install
from tests.tables import each_of
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.network


@pytest.fixture(autouse=True)
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@each_of("soc", [A2, "Ascend910B4-1", A3, "Ascend910_9382"])
@each_of("asked", ["npu", "auto"])
def test_an_npu_is_made_ready_and_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soc: str, asked: str) -> None:
    npu = NpuDouble(soc)
    install(monkeypatch, tmp_path, npu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    where, dtype = resolve(asked, "auto", config_of(tmp_path, dtype="bfloat16"))  # type: ignore[arg-type]
    assert (str(where), dtype) == ("npu:0", torch.bfloat16)
    assert npu.calls == ["set_device(0)", "set_compile_mode(jit_compile=False)"], "before the first operator"


def test_a_rank_takes_the_card_of_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has opened any other one."""
    npu = NpuDouble(count=2)
    install(monkeypatch, tmp_path, npu)
    assert str(resolve("npu", "auto", config_of(tmp_path, dtype="bfloat16"), rank=1)[0]) == "npu:1"
    assert npu.calls == ["set_device(1)", "set_compile_mode(jit_compile=False)"]
    for asked in ("npu", "auto"):  # where there are NPUs, one rank does not go on without
        with pytest.raises(DeviceError, match="^--tensor-parallel asks for 3 NPUs or more, and torch_npu sees 2: "):
            resolve(asked, "auto", config_of(tmp_path, dtype="bfloat16"), rank=2)


@each_of("own", ["float32", "float16", None])
def test_every_other_checkpoint_is_served_in_bfloat16_and_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, own: str | None
) -> None:
    install(monkeypatch, tmp_path, NpuDouble())
    config = config_of(tmp_path, **({"dtype": own} if own else {}))
    with caplog.at_level(logging.WARNING, "pixelferry"):
        assert resolve("npu", "auto", config)[1] == torch.bfloat16
    (line,) = caplog.messages
    assert line == f"the checkpoint's {own or 'float32'} is not served on an NPU: taking bfloat16"


def test_nothing_is_said_of_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, tmp_path, NpuDouble())
    assert resolve("npu", "bfloat16", config_of(tmp_path))[1] == torch.bfloat16
    assert not caplog.messages


@each_of("dtype", ["float32", "float16"])
@each_of("asked", ["npu", "auto"])
def test_another_dtype_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, dtype: Dtype
) -> None:
    """Packed attention takes bfloat16 alone where heads share no keys, as in every tower."""
    install(monkeypatch, tmp_path, NpuDouble())
    with pytest.raises(DeviceError, match=f"^--dtype {dtype} is not served on an NPU: take bfloat16$"):
        resolve(asked, dtype, config_of(tmp_path))  # type: ignore[arg-type]


NO_LIBRARY = ImportError("libhccl.so: cannot open shared object file: No such file or directory")
REFUSED = {
    "library": (NpuDouble(), NO_LIBRARY, r"cannot be loaded \(libhccl.so: cannot open.*directory\): source set_env.sh"),
    "atb": (NpuDouble(), OSError("libatb.so\nmore"), r"\(libatb.so\): source set_env.sh .* constraints/ascend.txt$"),
    "part": (
        NpuDouble(),
        Exception("ASCEND_OPP_PATH is not set. Please"),
        r"\(ASCEND_OPP_PATH is not set. Please\): source",
    ),
    "dependency": (NpuDouble(), ModuleNotFoundError("No module named 'yaml'"), r"\(No module named 'yaml'\): source"),
    "wordless": (NpuDouble(), RuntimeError(), r"cannot be loaded \(RuntimeError\)"),
    "none": (NpuDouble(count=0), None, r"sees no NPU: .*npu-smi info.*/dev/davinci.*ASCEND_RT_VISIBLE_DEVICES"),
    "310P": (NpuDouble("Ascend310P3"), None, r"Ascend310P3 is not served; Atlas A2 \(Ascend910B\) and A3"),
    "950": (NpuDouble("Ascend950PR_9579"), None, "Ascend950PR_9579 is not served"),
    "910A": (NpuDouble("Ascend910A"), None, "Ascend910A is not served"),
    "busy": (
        NpuDouble(broken="\n[ERROR] 507033 device retains failed\ntrace"),
        None,
        r"cannot be opened \(\[ERROR\] 507033 device retains failed\): `npu-smi info`",
    ),
}


@each_of("case", REFUSED)
def test_what_cannot_be_had_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    npu, says, expected = REFUSED[case]
    install(monkeypatch, tmp_path, npu, says=says)
    with pytest.raises(DeviceError, match=expected) as refused:
        resolve("npu", "auto", config_of(tmp_path, dtype="bfloat16"))
    sentence = str(refused.value)
    assert sentence.startswith("--device npu: ") and "\n" not in sentence
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    with caplog.at_level(logging.WARNING, "pixelferry"):
        assert resolve("auto", "auto", config_of(tmp_path, dtype="bfloat16"))[0] == torch.device("cpu")
    assert caplog.messages == [f"{sentence}; --device auto goes on without an NPU"]


def test_torch_npu_that_is_not_installed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DeviceError, match="^--device npu: torch_npu is not installed; it comes with Ascend's image"):
        resolve("npu", "auto", config_of(tmp_path))
    assert resolve("auto", "auto", config_of(tmp_path))[0] == torch.device("cpu") and not caplog.messages


def test_what_attention_on_an_npu_takes_of_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, NpuDouble())
    check_cache("npu", 128, 262_144)
    check_cache("npu", block_size(load_config(["--profile", "atlas"], {}).engine, "npu"), 32_768)
    assert [block_size(EngineConfig(block_size=n), where) for n in (None, 32) for where in ("cpu", "npu")] == [
        16,
        128,
        32,
        32,
    ]
    check_cache("cpu", 16, 1 << 20)
    for size in (16, 256):
        with pytest.raises(DeviceError, match=f"--block-size {size} is not served on an NPU: take 128"):
            check_cache("npu", size, 4096)
    with pytest.raises(DeviceError, match="--max-model-len 262145 is not served on an NPU: take at most 262144"):
        check_cache("npu", 128, 262_145)


def test_the_engine_asks_before_it_reads_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, NpuDouble())
    path = write_qwen2_vl(tmp_path / "tiny")
    (path / "model.safetensors").unlink()
    config = EngineConfig(device="npu", block_size=16)
    start = StartEngine(checkpoint=str(path), engine=config, shm_root=str(tmp_path), max_model_len=512)
    with pytest.raises(DeviceError, match="^--block-size 16 is not served on an NPU"):
        load(start)


def test_an_npu_gets_its_own_operations() -> None:
    with pytest.raises(RuleError, match="float32"):  # of NpuOps, before its first tensor
        load_ops(torch.device("npu", 0), torch.float32)


@each_of("wanted", [False, True])
def test_the_engine_asks_launches_where_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: bool
) -> None:
    install(monkeypatch, tmp_path, NpuDouble())

    def refuse(device: torch.device, dtype: torch.dtype, *, checks: bool, ranks: Ranks) -> NoReturn:
        raise DeviceError(f"checks: {checks}")

    monkeypatch.setattr(part, "load_ops", refuse)
    config = EngineConfig(device="npu", check_launches=wanted)
    path = write_qwen2_vl(tmp_path / "tiny")
    with pytest.raises(DeviceError, match=f"^checks: {wanted}$"):
        load(StartEngine(checkpoint=str(path), engine=config, shm_root=str(tmp_path), max_model_len=512))


def test_free_memory_is_that_of_the_npu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npu = NpuDouble()
    install(monkeypatch, tmp_path, npu)
    assert free_bytes(torch.device("npu", 0)) == 60 << 30
    assert npu.calls == ["synchronize(npu:0)", "empty_cache()", "mem_get_info(npu:0)"], (
        "what loading left is given back"
    )
