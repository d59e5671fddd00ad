"""Blocks of the cache are copied whole, key and value, and nothing else is touched."""

import pytest
import torch

from model.ops.base import Ops

pytestmark = pytest.mark.network


def test_blocks_are_copied_and_others_left(ops: Ops) -> None:
    key, value = ops.kv_cache(6, 128, 2, 8)
    key.copy_(torch.randn(key.shape))
    value.copy_(torch.randn(value.shape))
    keys, values = key.clone(), value.clone()
    ops.copy_blocks(key, value, torch.tensor([5, 1, 5]), torch.tensor([0, 3, 2]))
    for found, before in ((key, keys), (value, values)):
        assert torch.equal(found, before[[5, 1, 5, 1, 4, 5]])
