"""Each operation against a naive reference that follows its docstring word for word."""

import platform
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.ops import torch_ops as cpu
from model.ops.base import Ops
from model.ops.load import load_ops
from model.ops.torch_ops import TorchOps
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Within rounding of `dtype`; expected is float64 or float32."""
    assert found.dtype == dtype
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@each_of("rows", [1, 8, 33])
@each_of("with_bias", [False, True])
@each_of("packed", [False, True])
@each_of("dtype", DTYPES)
def test_linear(rows: int, with_bias: bool, packed: bool, dtype: torch.dtype) -> None:
    ops = TorchOps(CPU, dtype)
    if packed and not ops.prepacks:
        return  # this torch or processor packs no weights of this dtype
    ops.prepacks = packed
    weight, x = randn(70, 40, dtype=dtype, seed=1), randn(rows, 40, dtype=dtype, seed=2)
    bias = randn(70, dtype=dtype, seed=3) if with_bias else None
    expected = x.double() @ weight.double().T + (bias.double() if bias is not None else 0)
    linear = ops.linear(weight, bias)
    if dtype == torch.float32:
        close(linear(x), expected, dtype)
    else:
        torch.testing.assert_close(linear(x).double(), expected, rtol=0.02, atol=0.1)
    wide = torch.cat([x, x], dim=-1)
    assert torch.equal(linear(wide[:, :40]), linear(x))  # a view into wider rows is taken as well


def test_linear_packs_on_an_x86_with_onednn() -> None:
    """The fast path is chosen where it should be: a silent fall-back would cost half the speed."""
    if platform.machine() != "x86_64" or not torch.backends.mkldnn.is_available():
        pytest.skip("no oneDNN on x86 here")
    assert TorchOps(CPU, torch.float32).prepacks


def test_linear_falls_back_when_packing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
            raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(cpu, "_PackedLinear", Refusing)
    assert not TorchOps(CPU, torch.float32).prepacks


def test_linear_falls_back_when_packing_computes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
            self.weight = weight

        def __call__(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight)  # forgets the bias

    monkeypatch.setattr(cpu, "_PackedLinear", Wrong)
    assert not TorchOps(CPU, torch.float32).prepacks


def test_plain_linear_shares_memory() -> None:
    ops = TorchOps(CPU, torch.float32)
    ops.prepacks = False
    weight = torch.zeros(4, 3)
    linear = ops.linear(weight)
    weight.fill_(1.0)
    assert torch.equal(linear(torch.ones(1, 3)), torch.full((1, 4), 3.0))


def test_packed_linear_is_a_copy() -> None:
    """So a table that is kept beside it counts twice."""
    ops = TorchOps(CPU, torch.float32)
    if not ops.prepacks:
        pytest.skip("this torch or processor packs no weights")
    weight = torch.zeros(4, 3)
    linear = ops.linear(weight)
    weight.fill_(1.0)
    assert torch.equal(linear(torch.ones(1, 3)), torch.zeros(1, 4))
    shapes = TorchOps(torch.device("meta"), torch.float32, kind="cpu")
    assert shapes.prepacks and shapes.linear(weight.to("meta"))(torch.ones(1, 3, device="meta")).is_meta


def test_rms_norm(ops: Ops) -> None:
    x, weight = randn(5, 24, dtype=ops.dtype) * 3, randn(24, dtype=ops.dtype, seed=1)
    normed = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + 1e-6)
    before = x.clone()
    close(ops.rms_norm(x, weight, 1e-6), normed * weight.double(), ops.dtype)
    assert torch.equal(x, before)


def test_rms_norm_casts_before_the_weight() -> None:
    """As transformers: normalise in float32, cast, then multiply. Bit-equal in bfloat16."""
    ops = load_ops(CPU, torch.bfloat16)
    x, weight = randn(64, 96, dtype=torch.bfloat16), randn(96, dtype=torch.bfloat16, seed=1)
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()
    assert torch.equal(ops.rms_norm(x, weight, 1e-6), normed * weight)


def test_add_rms_norm(ops: Ops) -> None:
    x, residual = randn(5, 24, dtype=ops.dtype), randn(5, 24, dtype=ops.dtype, seed=1)
    weight = randn(24, dtype=ops.dtype, seed=2)
    total = x + residual
    normed, carried = ops.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    assert torch.equal(carried, total)
    assert torch.equal(normed, ops.rms_norm(total, weight, 1e-5))


def test_layer_norm(ops: Ops) -> None:
    x = randn(5, 24, dtype=ops.dtype) * 2 + 1
    weight, bias = randn(24, dtype=ops.dtype, seed=1), randn(24, dtype=ops.dtype, seed=2)
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-6)
    close(ops.layer_norm(x, weight, bias, 1e-6), normed * weight.double() + bias.double(), ops.dtype)


def test_add_layer_norm(ops: Ops) -> None:
    x, residual = randn(5, 24, dtype=ops.dtype), randn(5, 24, dtype=ops.dtype, seed=1)
    weight, bias = randn(24, dtype=ops.dtype, seed=2), randn(24, dtype=ops.dtype, seed=3)
    total = x + residual
    normed, carried = ops.add_layer_norm(x.clone(), residual.clone(), weight, bias, 1e-5)
    assert torch.equal(carried, total)
    assert torch.equal(normed, ops.layer_norm(total, weight, bias, 1e-5))


@each_of("own_dtype", [False, True])
def test_rotary(ops: Ops, own_dtype: bool) -> None:
    angle_dtype = ops.dtype if own_dtype else torch.float32
    wide = randn(6, 5, 8, dtype=ops.dtype)
    x = wide[:, 1:4]  # heads inside a fused projection
    half = randn(6, 4, seed=1)
    angles = torch.cat([half, half], -1)
    cos, sin = angles.cos().to(angle_dtype), angles.sin().to(angle_dtype)
    expected = torch.empty(6, 3, 8, dtype=torch.float64)
    for t in range(6):
        for i in range(4):
            c, s = cos[t, i].double(), sin[t, i].double()
            a, b = x[t, :, i].double(), x[t, :, i + 4].double()
            expected[t, :, i], expected[t, :, i + 4] = a * c - b * s, b * c + a * s
    rotated = ops.rotary(x, *ops.rotary_angles(cos, sin))
    if ops.dtype == angle_dtype == torch.float32:
        close(rotated, expected, ops.dtype)
    else:
        assert rotated.dtype == ops.dtype
        torch.testing.assert_close(rotated.double(), expected, rtol=0.02, atol=0.03)
    assert rotated.is_contiguous()


def test_activations(ops: Ops) -> None:
    x = randn(7, 12, dtype=ops.dtype) * 2
    wide = x.double()
    close(ops.quick_gelu(x.clone()), wide * torch.sigmoid(1.702 * wide), ops.dtype)
    close(ops.gelu(x), wide * (1 + torch.erf(wide / 2**0.5)) / 2, ops.dtype)
    tanh = torch.tanh((2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3))
    close(ops.gelu_tanh(x), wide * (1 + tanh) / 2, ops.dtype)
    close(ops.relu_squared(x.clone()), wide.clamp(min=0) ** 2, ops.dtype)
    gate, up = wide[:, :6], wide[:, 6:]
    close(ops.swiglu(x), gate * torch.sigmoid(gate) * up, ops.dtype)
    assert ops.swiglu(x).is_contiguous()


def test_cache_starts_empty_and_takes_what_is_written(ops: Ops) -> None:
    key_cache, value_cache = ops.kv_cache(3, 128, 2, 8)
    assert key_cache.shape == value_cache.shape == (3, 128, 2, ops.padded_head_dim(8))
    assert key_cache.dtype == ops.dtype
    assert not key_cache.any() and not value_cache.any()
    wide = randn(5, 6, 8, dtype=ops.dtype)
    key, value = wide[:, :2], wide[:, 2:4]
    slots = torch.tensor([129, 0, 127, 383, 4])
    ops.write_kv(key, value, key_cache, value_cache, slots)
    for row, slot in enumerate(slots.tolist()):
        for cache, written in ((key_cache, key), (value_cache, value)):
            found = cache[slot // 128, slot % 128]
            assert torch.equal(found[:, :8], written[row]) and not found[:, 8:].any()
    assert int(key_cache.flatten(2).any(-1).sum()) == 5  # and nothing else


@each_of("lengths", [[7], [1], [4, 4, 4], [4, 4, 1, 6, 6, 2], [1, 2, 3]], ids=str)
@each_of("dim", [16, 64, 80])
def test_segment_attention(ops: Ops, lengths: Sequence[int], dim: int) -> None:
    n = sum(lengths)
    wide = randn(n, 9, dim, dtype=ops.dtype)
    wide[:, :3] *= 3  # peaked: an average would differ
    query, key, value = wide[:, :3], wide[:, 3:6], wide[:, 6:]
    expected = torch.empty(n, 3, dim, dtype=torch.float64)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        for head in range(3):
            q, k, v = (x[rows, head].double() for x in (query, key, value))
            expected[rows, head] = torch.softmax(q @ k.T / dim**0.5, dim=-1) @ v
        start += length
    found = ops.segment_attention(query, key, value, lengths)
    assert found.is_contiguous()
    close(found, expected, ops.dtype)


@each_of("n, m", [(1, 1), (4, 9), (9, 4)])
def test_cross_attention(ops: Ops, n: int, m: int) -> None:
    query = randn(n, 3, 16, dtype=ops.dtype)
    key, value = randn(m, 6, 16, dtype=ops.dtype, seed=1).split(3, dim=1)
    expected = torch.empty(n, 3, 16, dtype=torch.float64)
    for head in range(3):
        q, k, v = (x[:, head].double() for x in (query, key, value))
        expected[:, head] = torch.softmax(q @ k.T / 4, dim=-1) @ v
    found = ops.cross_attention(query, key, value)
    assert found.is_contiguous()
    close(found, expected, ops.dtype)
