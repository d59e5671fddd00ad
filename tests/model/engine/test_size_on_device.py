"""An NPU's start over a card that counts its memory: peaks are measured over a small cache, it is freed, then sized."""

import gc
import threading
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest
import torch

from configs.serve import GIB, MIB, EngineConfig
from model import device
from model.device import DeviceError
from model.engine import kv_cache_size, profile
from model.engine.kv_blocks import CacheSize
from model.engine.kv_cache_size import CacheTooLarge, CacheTooSmall, size_on_device
from model.engine.messages import LargestItem, StartEngine
from model.engine.profile import Profile
from model.engine.ranks.link import RankLink
from model.engine.ranks.part import smallest
from model.forward_batch import KVCache
from model.net.multimodal import MultimodalLM
from shm import ChannelClosed
from tests.model.card import SEGMENT, Card, install_card
from tests.model.engine.ranks.test_link import links
from tests.model.live_bytes import LiveBytes
from tests.model.ops.present import present_ops
from tests.parity.harness import load_over
from tests.tables import each_of
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.network

CONFIG = EngineConfig(max_seqs=64, max_batched_tokens=64, block_size=128, embedding_bytes=3 * MIB)
IMAGE = LargestItem(kind="image", grid=(1, 32, 32), n_tokens=256, fixed=False)
LENGTH = 4096  # 64 of them are more than the card holds: its memory decides


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> MultimodalLM:
    return load_over(present_ops("npu-bfloat16"), write_qwen2_vl(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    with LiveBytes() as live:
        found = Card(live, total=128 * MIB)
        install_card(monkeypatch, found)
        yield found


def sized(model: MultimodalLM, config: EngineConfig = CONFIG) -> tuple[CacheSize, Profile]:
    start = StartEngine(checkpoint="", engine=config, shm_root="", max_model_len=LENGTH, largest=(IMAGE,))
    return size_on_device(model, start, LENGTH)


def test_the_cache_takes_its_share_of_what_is_left(model: MultimodalLM, card: Card) -> None:
    free = card.total - card.kept
    size, found = sized(model)
    (image, n_tokens) = found.encoders["image"]
    assert n_tokens == 256 and image > MIB and found.held >= image and not found.graphs
    left = free - found.working - CONFIG.embedding_bytes
    block = model.kv.bytes_per_token(2) * 128
    assert size.n_blocks == int(left * 0.9) // block and size.nbytes == size.n_blocks * block
    assert size.bound == f"--kv-cache-share 0.9 of {left / GIB:.4g} GiB left"


def test_embeddings_beyond_what_a_device_holds_cost_it_nothing(
    model: MultimodalLM, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--embedding-mib is of host memory, too; of a device only so much is kept for them as may lie there."""
    few, _ = sized(model)
    monkeypatch.setattr(device, "EMBEDDINGS", 5 * MIB)
    counts = [sized(model, msgspec.structs.replace(CONFIG, embedding_bytes=n * MIB))[0].nbytes for n in (4, 5, 6, 600)]
    assert few.nbytes > counts[0] > counts[1] == counts[2] == counts[3]


def test_the_trial_is_gone_before_the_size_is_known(
    model: MultimodalLM, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, made = card.live.live, []

    def kv_cache(blocks: int, block_size: int) -> KVCache:
        assert card.live.live <= before + MIB, "two caches at once"
        made.append(blocks)
        return whole(blocks, block_size)

    whole = model.kv_cache
    monkeypatch.setattr(MultimodalLM, "kv_cache", lambda _, *args: kv_cache(*args))
    size, _ = sized(model)
    gc.collect()
    assert card.live.live <= before + MIB and card.kept <= card._segments(before + MIB), "given back to the device"
    (trial,) = made
    assert trial == LENGTH // 128 + CONFIG.max_seqs < size.n_blocks
    model.kv_cache(size.n_blocks, size.block_size)


def test_other_processes_are_left_what_they_have(model: MultimodalLM, card: Card) -> None:
    alone, _ = sized(model)
    card.others = 40 * MIB
    beside, _ = sized(model)
    assert abs(alone.nbytes - beside.nbytes - 0.9 * 40 * MIB) <= SEGMENT


def test_graphs_are_captured_over_the_trial_and_released(
    model: MultimodalLM, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, _ = sized(model)
    seen = []

    def capture(of: MultimodalLM, kv: KVCache, size: CacheSize, config: EngineConfig, **_: object) -> object:
        assert of is model and kv[0][0].shape[0] == size.n_blocks < without.n_blocks and config is CONFIG
        torch.zeros(6 * MIB, dtype=torch.uint8)  # a warm-up's tensors are not the graphs'
        kept = torch.zeros(4 * MIB, dtype=torch.uint8)
        seen.append(kept.untyped_storage()._cdata)
        return kept

    monkeypatch.setattr(kv_cache_size, "reserved_for_graphs", lambda config, device: 1)
    monkeypatch.setattr(profile, "captured", capture)
    size, found = sized(model)
    assert found.graphs == 4 * MIB and size.reserved == 1
    assert abs(without.nbytes - size.nbytes - 0.9 * found.graphs) <= SEGMENT
    assert seen[0] not in card.live._known, "they know the trial's addresses"


def test_what_the_allocator_cannot_join_is_kept(model: MultimodalLM, card: Card) -> None:
    """The card gives whole segments: more than the tensors of the peak."""
    _, found = sized(model)
    peaks = max(found.step, *(nbytes for nbytes, _ in found.encoders.values()))
    assert peaks <= found.working == found.held < peaks + 2 * SEGMENT and found.held % SEGMENT == 0


def test_a_device_without_room_is_one_sentence(model: MultimodalLM, card: Card) -> None:
    card.others = card.total - card.kept - 20 * MIB
    config = msgspec.structs.replace(CONFIG, embedding_bytes=19 * MIB)
    with pytest.raises(CacheTooSmall, match=r"^--kv-cache-share 0\.9 of 0 GiB left: 0 bytes hold no block .* it keeps"):
        sized(model, config)
    named = msgspec.structs.replace(CONFIG, kv_cache_bytes=21 * MIB)
    with pytest.raises(
        CacheTooLarge,
        match=r"^--kv-cache-mib: 0\.0205\d* GiB of KV cache are more than the 0\.0166\d* GiB left: lower it, or leave "
        r"it away; of 0\.0195\d* GiB free .* it keeps 0\.0029\d* GiB for embeddings: end what",
    ):
        sized(model, named)


def test_a_size_by_name_needs_no_share(model: MultimodalLM, card: Card) -> None:
    size, found = sized(model, msgspec.structs.replace(CONFIG, kv_cache_bytes=8 * MIB))
    assert (size.nbytes, size.bound) == (8 * MIB, "--kv-cache-mib") and found.held


def test_a_size_by_name_leaves_room_for_what_was_measured(model: MultimodalLM, card: Card) -> None:
    free, block = card.total - card.kept, model.kv.bytes_per_token(2) * 128

    def named(nbytes: int) -> CacheSize:
        return sized(model, msgspec.structs.replace(CONFIG, kv_cache_bytes=nbytes))[0]

    _, found = sized(model, msgspec.structs.replace(CONFIG, kv_cache_bytes=8 * MIB))
    most = (free - found.working - CONFIG.embedding_bytes) // block * block
    assert named(most).nbytes == most
    with pytest.raises(
        CacheTooLarge, match=r"GiB left: lower it, or leave it away; of .* for activations and encoders, "
    ):
        named(most + block)


def test_a_rank_whose_device_holds_no_such_cache_keeps_nobody_waiting(model: MultimodalLM, card: Card) -> None:
    """It refuses before it agrees, and the others see it go."""
    ended: list[BaseException] = []

    def first(link: RankLink, size: CacheSize) -> None:
        with pytest.raises(ChannelClosed) as raised:
            for _ in ("over which all is measured", "of the cache"):
                smallest(link, size)
        ended.append(raised.value)

    most = card.total - card.kept - CONFIG.embedding_bytes
    config = msgspec.structs.replace(CONFIG, kv_cache_bytes=most // 2, tensor_parallel=2)
    trial, _ = sized(model, config)
    with links(2) as (zero, one):
        waiting = threading.Thread(target=first, args=(zero, trial))
        waiting.start()
        start = StartEngine(
            checkpoint="", engine=msgspec.structs.replace(config, kv_cache_bytes=most), shm_root="",
            max_model_len=LENGTH, largest=(IMAGE,),
        )  # fmt: skip
        with pytest.raises(CacheTooLarge, match="^--kv-cache-mib / 2: "):
            size_on_device(model, start, LENGTH, partial(smallest, one))
        assert not ended and one.n == 2
        one.close()  # as the end of its process does
        waiting.join(20)
        assert len(ended) == 1


@each_of(
    ("broken", "said"),
    [
        ("encode_dummy", r"the largest image \(CUDA out of memory\): lower --max-pixels, or end"),
        ("dummy_step", r"a full step \(CUDA out of memory\): lower --max-batched-tokens or --max-seqs, or end"),
    ],
)
def test_a_peak_that_does_not_fit_is_one_sentence(
    model: MultimodalLM, card: Card, monkeypatch: pytest.MonkeyPatch, broken: str, said: str
) -> None:
    def refuse(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory\nmore")

    monkeypatch.setattr(profile, broken, refuse)
    with pytest.raises(DeviceError, match=f"^cpu has no memory for {said} what else runs there$"):
        sized(model)
