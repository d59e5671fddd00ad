"""The training network: every parameter learns, one medium serves two prompts, and the runtime computes the same."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from demo.batches import Batch, Exercises
from demo.checkpoint import id_of, train_tokenizer, write_files, write_weights
from demo.layers import attend
from demo.lessons import SideHeads, _box_loss, learn
from demo.net import DemoNet, Placed
from demo.prompts import Example, Extent, Reader, Ref
from demo.sizes import Sizes
from demo.words import Words
from model.net.multimodal import MultimodalLM
from tests.parity.harness import Film, OurRun, Sample, Sound, load_ours

pytestmark = [pytest.mark.training, pytest.mark.network]
SIZES = Sizes()
Medium = tuple[str, tuple[int, int, int], float]  # kind, grid, seconds from one temporal grid to the next
IMAGE: Medium = ("image", (1, 8, 10), 1.0)
CLIP: Medium = ("video", (3, 4, 6), 1.0)


@pytest.fixture(scope="module")
def reader() -> Reader:
    lines = Words.load().corpus(np.random.default_rng(0), 300)
    return Reader(train_tokenizer(lines, 320), SIZES)


@pytest.fixture(scope="module")
def net() -> DemoNet:
    """Random, and rounded as the file will hold it; biases and gains too, so that none can be forgotten."""
    torch.manual_seed(3)
    made = DemoNet(SIZES, 335)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            parameter.copy_(parameter.half().float())
    return made.eval()


@pytest.fixture(scope="module")
def served(net: DemoNet, tmp_path_factory: pytest.TempPathFactory) -> MultimodalLM:
    """The exported checkpoint as the engine loads it."""
    path = tmp_path_factory.mktemp("demo")
    tokenizer = train_tokenizer(Words.load().corpus(np.random.default_rng(0), 300), 320)
    assert tokenizer.get_vocab_size() == 335
    write_files(path, tokenizer, SIZES)
    write_weights(path, net)
    return load_ours(path)


def content(kind: str, grid: tuple[int, int, int], seed: int) -> np.ndarray:
    """Random patches or mel frames, [rows, columns]."""
    rng = np.random.default_rng(seed)
    if kind == "audio":
        return rng.normal(0, 0.7, (grid[2], SIZES.mels)).astype(np.float32)
    columns = 3 * SIZES.patch**2 * (2 if kind == "video" else 1)
    return rng.integers(0, 256, (grid[0] * grid[1] * grid[2], columns), dtype=np.uint8)


def embed(net: DemoNet, kind: str, array: np.ndarray, grid: tuple[int, int, int]) -> Tensor:
    """[tokens, hidden] of one medium by the training network."""
    tensor = torch.from_numpy(array)
    if kind == "audio":
        return net.audio_tower(tensor[None])[0]  # type: ignore[no-any-return]
    t, h, w = grid
    return net.visual(tensor.view(t, h * w, -1), (h, w)).flatten(0, 1)  # type: ignore[no-any-return]


@torch.inference_mode()
def compare(net: DemoNet, served: MultimodalLM, reader: Reader, media: list[Medium]) -> None:
    """Logits of every place of a prompt that holds the media, by both."""
    extents = {kind: Extent(grid=grid, seconds=seconds) for kind, grid, seconds in media}
    refs = [Ref(kind, i) for i, (kind, _, _) in enumerate(media)]
    example = Example(parts=(*refs[:1], "What is in the picture?", *refs[1:]), answer="a red circle")
    encoded = reader.encode(example, extents)
    arrays = [content(kind, grid, i) for i, (kind, grid, _) in enumerate(media)]
    states = [embed(net, kind, array, grid) for (kind, grid, _), array in zip(media, arrays, strict=True)]
    ids, positions = torch.from_numpy(encoded.ids), torch.from_numpy(encoded.positions)
    placed = [
        (found, Placed(rows=torch.arange(start, start + n), source=torch.arange(n)))
        for found, (_, start, n) in zip(states, encoded.places, strict=True)
    ]
    expected = net.lm_head(net(ids[None], positions[:, None], placed))[0]
    pads = [torch.arange(start, start + n) for _, start, n in encoded.places]
    sample = Sample(
        ids=ids,
        positions=positions,
        grids=tuple(grid for _, grid, _ in media),
        pixels=tuple(map(torch.from_numpy, arrays)),
        pads=torch.cat(pads) if pads else torch.zeros(0, dtype=torch.int64),
        films=tuple(Film(grid=grid) if kind == "video" else None for kind, grid, _ in media),
        sounds=tuple(Sound(frames=grid[2]) if kind == "audio" else None for kind, grid, _ in media),
    )
    for (kind, grid, _), array, found in zip(media, arrays, states, strict=True):
        torch.testing.assert_close(
            served.encode(kind, [torch.from_numpy(array)], [grid])[0], found, atol=1e-4, rtol=1e-4
        )
    torch.testing.assert_close(OurRun(served).whole(sample), expected, atol=1e-3, rtol=0)
    assert expected.std() > 0.1  # there is something to compare


@pytest.mark.parametrize(
    "media",
    [
        [],
        [IMAGE],
        [("image", (1, 14, 14), 1.0)],
        [CLIP],
        [("video", (5, 8, 6), 0.5)],
        [("image", (1, 12, 6), 1.0), CLIP, ("audio", (1, 1, 230), 1.0)],
        [("audio", (1, 1, 77), 1.0), ("image", (1, 4, 4), 1.0)],
    ],
    ids=["text", "picture", "square", "clip", "long clip", "mixed", "sound and picture"],
)
def test_the_runtime_serves_what_was_trained(
    net: DemoNet, served: MultimodalLM, reader: Reader, media: list[Medium]
) -> None:
    compare(net, served, reader, media)


@pytest.mark.parametrize("frames", [3, 50, 51, 52, 53, 199, 200, 201, 202, 203, 399, 400, 401, 402, 550])
def test_the_runtime_hears_sounds_of_all_lengths_alike(
    net: DemoNet, served: MultimodalLM, reader: Reader, frames: int
) -> None:
    compare(net, served, reader, [("audio", (1, 1, frames), 1.0)])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_written_out_is_the_same_attention(causal: bool) -> None:
    """Training takes it, in bfloat16; what is served takes torch's own."""
    q, k, v = torch.randn(3, 2, 4, 37, 16, generator=torch.Generator().manual_seed(0)).unbind()
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(q, k, v, causal=causal).float()
    torch.testing.assert_close(found, attend(q, k, v, causal=causal), atol=0.03, rtol=0.03)


def test_padding_and_neighbours_change_nothing(net: DemoNet) -> None:
    """A short prompt beside a long one has the states that it has alone."""
    rng = np.random.default_rng(1)
    ids = torch.from_numpy(rng.integers(0, 320, (2, 30)))
    positions = torch.arange(30).expand(3, 2, 30)
    single_block = net(ids[:1, :11], positions[:, :1, :11], [])
    torch.testing.assert_close(net(ids, positions, [])[:1, :11], single_block, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_one_picture_in_two_prompts_is_embedded_once(net: DemoNet, reader: Reader) -> None:
    """Two pictures; the second stands in both prompts: each prompt is as if it were alone with it."""
    extents = {"image": Extent(grid=(1, 4, 6))}
    arrays = [content("image", (1, 4, 6), seed) for seed in (1, 2)]
    both = net.visual(torch.from_numpy(np.stack(arrays)), (4, 6))  # [2, tokens, hidden]
    encoded = [reader.encode(Example(parts=(Ref("image", 1), "What?"), answer=text), extents) for text in ("a", "red")]
    longest = max(len(one.ids) for one in encoded)
    ids, positions = torch.zeros(2, longest, dtype=torch.int64), torch.zeros(3, 2, longest, dtype=torch.int64)
    rows, source = [], []
    for i, one in enumerate(encoded):
        ids[i, : len(one.ids)] = torch.from_numpy(one.ids)
        positions[:, i, : len(one.ids)] = torch.from_numpy(one.positions)
        ((ref, start, n),) = one.places
        rows.append(i * longest + start + torch.arange(n))
        source.append(ref.number * n + torch.arange(n))
    interleaved_block = net(ids, positions, [(both, Placed(rows=torch.cat(rows), source=torch.cat(source)))])
    for i, one in enumerate(encoded):
        ((_, start, n),) = one.places
        placed = Placed(rows=torch.arange(start, start + n), source=torch.arange(n))
        single_block = net(
            torch.from_numpy(one.ids)[None], torch.from_numpy(one.positions)[:, None], [(both[1], placed)]
        )
        torch.testing.assert_close(interleaved_block[i, : len(one.ids)], single_block[0], atol=1e-4, rtol=1e-4)
        other = net(torch.from_numpy(one.ids)[None], torch.from_numpy(one.positions)[:, None], [(both[0], placed)])
        assert not torch.allclose(single_block, other, atol=1e-2)


# Parts of the network that a kind of batch cannot reach.
UNREACHED: dict[str, Callable[[str], bool]] = {
    "visual": lambda kind: kind in ("sounds", "talk"),
    "audio_tower": lambda kind: kind not in ("sounds", "mixed"),
}


@pytest.mark.parametrize("kind", ["scenes", "numbers", "pairs", "clips", "sounds", "mixed", "talk"])
def test_every_parameter_within_reach_learns(reader: Reader, kind: str) -> None:
    torch.manual_seed(0)
    net, heads = DemoNet(SIZES, 335), SideHeads(SIZES)
    batch: Batch = Exercises(np.random.default_rng(2), reader, Words.load(), SIZES).kinds[kind](count=3)  # type: ignore[call-arg]
    learnt = learn(net, heads, batch)
    learnt.loss.backward()
    assert np.isfinite(learnt.answers)
    for name, parameter in net.named_parameters():
        unreached = UNREACHED.get(name.split(".")[0])
        if unreached is not None and unreached(kind):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None and bool((parameter.grad != 0).any()), name
            assert bool(parameter.grad.isfinite().all()), name
    assert (heads.seen.weight.grad is not None) == (kind in ("scenes", "pairs"))
    assert (heads.heard.weight.grad is not None) == (kind == "sounds")
    assert (heads.digits.weight.grad is not None) == (kind == "numbers")


def test_a_box_is_told_to_the_nearest_steps() -> None:
    """Twenty steps from 0 to 1: 10 / 19 lies on the eleventh, half a step further both neighbours are half right."""
    boxes = torch.tensor([[0.0, 1.0, 10 / 19, 10.5 / 19]])
    best = torch.full((1, 4, 20), -30.0)
    best[0, 0, 0] = best[0, 1, 19] = best[0, 2, 10] = best[0, 3, 10] = best[0, 3, 11] = 30.0
    assert float(_box_loss(best.flatten(1), boxes)) == pytest.approx(np.log(2) / 4, abs=1e-4)
    assert float(_box_loss(best.roll(1, dims=-1).flatten(1), boxes)) > 10


def test_each_answer_is_right_or_wrong_as_a_whole(reader: Reader) -> None:
    torch.manual_seed(0)
    batch = Exercises(np.random.default_rng(2), reader, Words.load(), SIZES).talk_batch(12)
    right = learn(DemoNet(SIZES, 335), SideHeads(SIZES), batch).right
    assert sum(asked for _, asked in right.values()) == 12 and set(right) == set(batch.tasks)
    assert all(hits == 0 for hits, _ in right.values())


def test_an_entry_that_is_not_there() -> None:
    tokenizer = train_tokenizer(Words.load().corpus(np.random.default_rng(0), 50), 300)
    assert tokenizer.decode([id_of(tokenizer, "<ref>")]) == "<ref>"
    with pytest.raises(KeyError):
        id_of(tokenizer, "<|nothing|>")
