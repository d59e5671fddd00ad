"""The KV cache is by default a share of the memory free within the cgroup, and no more than can be used."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from configs.machine import free_host_bytes
from configs.serve import GIB, MIB, EngineConfig
from configs.settings import EMBEDDED_MODEL, load_config
from model.engine import kv_cache_size
from model.engine.kv_cache_size import CacheTooSmall, FreeMemory, cache_size, on_device, trial_size
from model.engine.loop import load
from model.engine.messages import StartEngine
from model.engine.profile import Profile
from model.forward_batch import KVSpec
from server.report import describe_engine
from server.requests.model_card import read_model_card

SMALL = KVSpec(layers=4, kv_heads=2, head_dim=32, cached_dim=32)
QWEN2_AUDIO_7B = KVSpec(layers=32, kv_heads=32, head_dim=128, cached_dim=128)  # 512 KiB a token in bfloat16
V1 = Path("/sys/fs/cgroup/memory")


def machine(root: Path, available: int, cgroup: str = "0::/\n", **files: str) -> Path:
    """What the kernel says, below `root`; a file's name has __ for a slash."""
    named = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:  {available >> 10} kB\n", "proc/self/cgroup": cgroup}
    for name, text in {**named, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(limit: int | str, used: int, files: int, at: str = "") -> dict[str, str]:
    return {
        f"{at}memory.max": f"{limit}\n", f"{at}memory.current": f"{used}\n",
        f"{at}memory.stat": f"anon 1\ninactive_file {files}\nactive_file 7\n",
    }  # fmt: skip


def v1(limit: int, used: int, files: int, at: str) -> dict[str, str]:
    return {
        f"memory__{at}memory.limit_in_bytes": f"{limit}\n", f"memory__{at}memory.usage_in_bytes": f"{used}\n",
        f"memory__{at}memory.stat": f"inactive_file 3\ntotal_inactive_file {files}\n",
    }  # fmt: skip


# ---- what is free


def test_without_a_limit_it_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert free_host_bytes(machine(tmp_path, 10 * GIB)) == 10 * GIB
    (tmp_path / "proc/self/cgroup").unlink()
    assert free_host_bytes(tmp_path) == 10 * GIB


def test_a_limit_of_version_2(tmp_path: Path) -> None:
    """In a container the own cgroup lies at the mount; page cache that can be dropped is free."""
    assert free_host_bytes(machine(tmp_path, 100 * GIB, **v2(8 * GIB, 5 * GIB, GIB))) == 4 * GIB
    assert free_host_bytes(machine(tmp_path, 2 * GIB)) == 2 * GIB


def test_the_tightest_of_nested_cgroups_decides(tmp_path: Path) -> None:
    nested = {**v2("max", 5 * GIB, 0, "a__b__"), **v2(6 * GIB, 5 * GIB, 0, "a__"), **v2(50 * GIB, 9 * GIB, 0)}
    assert free_host_bytes(machine(tmp_path, 100 * GIB, "0::/a/b\n", **nested)) == GIB


def test_a_limit_of_version_1(tmp_path: Path) -> None:
    none = v1(9223372036854771712, GIB, 0, "")
    mixed = "9:name=systemd:/\n4:memory:/docker/x\n1:cpu,cpuacct:/\n0::/\n"
    root = machine(tmp_path, 100 * GIB, mixed, **none, **v1(3 * GIB, GIB, MIB, "docker__x__"))
    assert free_host_bytes(root) == 2 * GIB + MIB
    assert free_host_bytes(machine(tmp_path, GIB, mixed)) == GIB


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    assert free_host_bytes(machine(tmp_path, GIB, **v2(GIB, 2 * GIB, 0))) == 0


@pytest.mark.process
@pytest.mark.skipif(not (V1 / "cgroup.procs").exists() or os.geteuid() != 0, reason="needs a writable version 1 cgroup")
def test_a_real_cgroup(tmp_path: Path) -> None:
    inside = V1 / f"kv-cache-default-{os.getpid()}"
    try:
        inside.mkdir()
    except OSError:
        pytest.skip("no cgroup can be made here")
    try:
        (inside / "memory.limit_in_bytes").write_text(str(512 * MIB))
        script = (
            f"import os, pathlib; pathlib.Path({str(inside / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
            "from configs.machine import free_host_bytes\nprint(free_host_bytes())"
        )
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
        assert 400 * MIB < int(found.stdout) <= 512 * MIB < free_host_bytes()
    finally:
        inside.rmdir()


# ---- what the cache takes of it


def test_a_7b_model_gets_its_length() -> None:
    """1 GiB was 2048 tokens of Qwen2-Audio-7B, whatever the machine had."""
    config = EngineConfig()
    size = cache_size(QWEN2_AUDIO_7B, 2, config, 8192, FreeMemory(nbytes=64 * GIB))
    assert size.max_model_len == 8192 and size.nbytes == 32 * GIB
    assert size.bound == "--kv-cache-share 0.5 of 64 GiB free"
    less = cache_size(QWEN2_AUDIO_7B, 2, EngineConfig(kv_cache_share=0.25), 8192, FreeMemory(nbytes=64 * GIB))
    assert less.nbytes == 16 * GIB


def test_no_more_than_all_sequences_can_use_is_taken() -> None:
    size = cache_size(SMALL, 2, EngineConfig(), 4096, FreeMemory(nbytes=64 * GIB))
    assert size.nbytes == 16 * 4096 * 1024 and size.bound.startswith("--max-seqs x --max-model-len")


def test_what_was_asked_for_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> int:
        raise AssertionError("nobody needs to know")

    monkeypatch.setattr(kv_cache_size, "free_host_bytes", never)
    size = cache_size(QWEN2_AUDIO_7B, 2, EngineConfig(kv_cache_bytes=GIB), 8192)
    assert (size.nbytes, size.max_model_len, size.bound) == (GIB, 2048, "--kv-cache-mib")


def test_not_one_block_is_an_error_that_names_the_share() -> None:
    with pytest.raises(
        CacheTooSmall, match=r"--kv-cache-share 0\.5 of 0\.007812 GiB free: 4194304 .* one takes 8388608"
    ):
        cache_size(QWEN2_AUDIO_7B, 2, EngineConfig(), 8192, FreeMemory(nbytes=8 * MIB))


def test_a_7b_model_on_an_atlas() -> None:
    """What docs/npu.md says of the profile: 28 layers, 4 key heads of 128, in bfloat16."""
    config = msgspec.structs.replace(load_config(["--profile", "atlas"], {}).engine, block_size=128)
    free = int((60.96 - 15.4) * GIB)
    spec = KVSpec(layers=28, kv_heads=4, head_dim=128, cached_dim=128)
    memory = on_device(free, config, Profile(encoders={}, step=int(2.7 * GIB)))
    size = cache_size(spec, 2, config, 32_768, memory)
    tokens = size.n_blocks * size.block_size
    assert 38.3 * GIB < size.nbytes < 38.4 * GIB and 717_000 < tokens < 719_000 and tokens // 32_768 == 21
    assert size.max_model_len == 32_768 and trial_size(size, config).n_blocks == 32_768 // 128 + config.max_seqs


def test_settings() -> None:
    assert (load_config([], {}).engine.kv_cache_bytes, load_config([], {}).engine.kv_cache_share) == (None, None)
    asked = load_config(["--kv-cache-mib", "3"], {"PIXELFERRY_KV_CACHE_SHARE": "0.2"}).engine
    assert (asked.kv_cache_bytes, asked.kv_cache_share) == (3 * MIB, 0.2)


def test_the_embedded_model_stays_small() -> None:
    """Many servers of it run side by side in tests: what it can use is 64 MiB, whatever the machine has."""
    card = read_model_card(load_config([], {}))
    size = cache_size(SMALL, 2, EngineConfig(), card.max_model_len, FreeMemory(nbytes=1 << 40))
    assert size.nbytes == 64 * MIB


def test_the_table_at_start_says_what_decided(tmp_path: Path) -> None:
    """A real engine of the embedded model, without a word about its cache."""
    config = EngineConfig(device="cpu", threads=1)
    start = StartEngine(checkpoint=str(EMBEDDED_MODEL), engine=config, shm_root=str(tmp_path), max_model_len=512)
    _, ready = load(start)
    said = describe_engine(ready, 512, MIB)
    assert "8192 tokens in 512 blocks of 16" in said
    assert re.search(r"KV cache +8 MiB +--max-seqs x --max-model-len, all that can be used", said)
