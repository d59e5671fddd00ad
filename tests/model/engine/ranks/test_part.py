"""One rank's part: its share of the server's memory, a cache that every rank has room for, one kind of device."""

from dataclasses import replace

import pytest

from configs.serve import EngineConfig
from model.device import DeviceError
from model.engine.kv_blocks import CacheSize
from model.engine.ranks.link import CacheBlocks, DeviceFound, RankLink
from model.engine.ranks.part import check_devices, of_one_rank, smallest
from tests.model.engine.ranks.test_link import links
from tests.tables import each_of

SIZE = CacheSize(n_blocks=10, block_size=16, nbytes=1000, max_model_len=128, bound="--kv-cache-mib", reserved=1)


def answering(found: list[RankLink], message: CacheBlocks | DeviceFound) -> RankLink:
    """Rank 0, to which rank 1 has said this."""
    found[1]._channels[0].send(message)
    return found[0]


@each_of(("others", "n", "longest"), [(12, 10, 128), (10, 10, 128), (4, 4, 48)])
def test_the_smallest_rank_decides(others: int, n: int, longest: int) -> None:
    with links(2) as found:
        size = smallest(answering(found, CacheBlocks(others)), SIZE)
    assert (size.n_blocks, size.nbytes, size.max_model_len) == (n, 100 * n, longest)
    assert replace(size, n_blocks=10, nbytes=1000, max_model_len=128, bound=SIZE.bound) == SIZE
    assert size.bound.endswith("on the rank that has least") == (n < 10)


@each_of(
    ("mine", "others", "told"),
    [("cpu", "npu", "not every rank found the same"), ("cuda", "cuda", "of cuda one device"), ("npu", "npu", "")],
)
def test_ranks_compute_on_cpus_or_on_npus(mine: str, others: str, told: str) -> None:
    with links(2) as found:
        link = answering(found, DeviceFound(others))
        if not told:
            return check_devices(link, mine)
        with pytest.raises(DeviceError, match=f"^--tensor-parallel: {told}"):
            check_devices(link, mine)


def test_memory_that_is_said_of_the_server_is_shared() -> None:
    config = EngineConfig(tensor_parallel=4, embedding_bytes=400, kv_cache_bytes=1200)
    assert (of_one_rank(config).embedding_bytes, of_one_rank(config).kv_cache_bytes) == (100, 300)
    assert of_one_rank(EngineConfig()) == EngineConfig()
