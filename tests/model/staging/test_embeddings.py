"""Embeddings by item: where they are, and that their memory goes with them."""

import weakref

import pytest
import torch

from model.staging.embeddings import EmbeddingStore
from model.staging.streams import Streams, open_streams
from tests.model.staging.late import Late
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = open_streams(torch.device("cpu"))
ROWS = torch.arange(24, dtype=torch.float32).view(6, 4)


@each_of("streams", [CPU, Late()], ids=["cpu", "late"])
def test_parts_are_found_wherever_they_are(streams: Streams) -> None:
    store = EmbeddingStore[str](streams)
    store.put({"kept": ROWS.clone(), "not": ROWS * 2}, host_only={"not"})
    assert torch.equal(store.part("kept", 1, 3), ROWS[1:3]) and torch.equal(store.part("not", 0, 6), ROWS * 2)
    assert store.nbytes_on_device() == (ROWS.nbytes if streams.behind else 0)
    store.offload(["kept"])
    assert store.nbytes_on_device() == 0 and torch.equal(store.part("kept", 1, 3), ROWS[1:3])
    assert store.free(["kept", "nobody"]) == ("kept", "nobody") and store.keys() == {"not"}
    with pytest.raises(RuntimeError, match="not encoded"):
        store.part("kept", 0, 1)


def test_host_memory_stays_until_its_copy_is_done() -> None:
    """A device may still write into it when nobody wants it any more."""
    store = EmbeddingStore[int](Late())
    store.put({0: ROWS.clone()}, host_only=())
    host, gone = store._host[0], weakref.ref(store._host[0].embeddings)
    store.free([0])
    copied = host.copied
    del host
    assert gone() is not None
    copied.wait()
    store.free([])
    assert gone() is None


def test_items_of_one_call_are_not_awaited_and_let_go_one_by_one() -> None:
    streams = Late()
    store = EmbeddingStore[int](streams)
    store.put(dict(enumerate(ROWS.split(2))), host_only=())
    assert streams.waits == 0
    for found in (store._device, {key: host.embeddings for key, host in store._host.items()}):
        assert [one.untyped_storage().nbytes() for one in found.values()] == [ROWS.nbytes // 3] * 3
