"""What is minimised: the answers, and lessons of single tokens and of one attention head. No optimiser, no files."""

from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.answers import COLOURS, SHAPES
from demo.batches import Batch, Pointed
from demo.net import DemoNet, Placed
from demo.prompts import IGNORED
from demo.sizes import Sizes
from demo.studio import MOST_THINGS, NO_SHAPE

_STEPS = 20  # a coordinate is told to the nearest of so many steps, and between two of them by weight
_COUNTS = MOST_THINGS + 1
_KINDS = (len(SHAPES) + 1, len(COLOURS) + 1, 4 * _STEPS, 1, 4 * _COUNTS)
_SIDE_WEIGHT, _BOX_WEIGHT, _GROUND_WEIGHT, _DIGITS_WEIGHT = 0.4, 0.5, 0.3, 3.0
_MIDDLE_WEIGHT, _POINT_WEIGHT, _ALIKE_WEIGHT = 2.0, 1.5, 2.0
_RARE = 8.0  # how much more a digit or a middle that is there counts than one that is not


class SideHeads(nn.Module):
    """Read off single tokens what they show or sound like; thrown away after training."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.seen = nn.Linear(sizes.hidden, sum(_KINDS))
        self.heard = nn.Linear(sizes.hidden, 3)
        self.digits = nn.Linear(sizes.hidden, 10)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What one batch costs, and which of its prompts were answered right, word for word, when led through them."""

    loss: Tensor  # the answers' and the side lessons' together
    answers: float
    side: float
    right: dict[str, tuple[int, int]]  # task -> (right, asked)


def learn(net: DemoNet, heads: SideHeads, batch: Batch, *, towers: bool = True) -> Learnt:
    """Forward pass of a batch, in bfloat16 where that is faster on a CPU.

    Without `towers` they stay as they are, and so their side lessons are left out.
    """
    with torch.autocast("cpu", torch.bfloat16):
        with torch.set_grad_enabled(towers):
            embeddings = _embed(net, batch)
        media = [
            (states, Placed(rows=torch.from_numpy(batch.rows[kind]), source=torch.from_numpy(batch.source[kind])))
            for kind, states in embeddings.items()
        ]
        positions = torch.from_numpy(batch.positions)
        states, halfway = net.states(torch.from_numpy(batch.ids), positions, media)
        labels = torch.from_numpy(batch.labels)
        learnt = labels != IGNORED
        logits = net.lm_head(states[learnt]).float()
        side = _side_loss(heads, embeddings, batch) if towers else torch.zeros(())
        if batch.pointed is not None:
            side = side + _POINT_WEIGHT * _point_loss(net.model.looks(halfway, positions), batch, batch.pointed)
    losses = F.cross_entropy(logits, labels[learnt], reduction="none")
    weights = torch.from_numpy(batch.weights)[learnt]
    loss = (losses * weights).sum() / weights.sum()
    right = _right(batch, learnt, logits.argmax(-1) == labels[learnt])
    return Learnt(loss=loss + _SIDE_WEIGHT * side, answers=float(loss.detach()), side=float(side.detach()), right=right)


def _embed(net: DemoNet, batch: Batch) -> dict[str, Tensor]:
    """By kind: [media, tokens, hidden]."""
    found: dict[str, Tensor] = {}
    for kind, array in batch.media.items():
        tensor = torch.from_numpy(array)
        if kind == "audio":
            found[kind] = net.audio_tower(tensor)
            continue
        t, h, w = batch.extents[kind].grid
        grids = tensor.view(-1, h * w, tensor.shape[-1])  # temporal grids do not see each other
        found[kind] = net.visual(grids, (h, w)).unflatten(0, (-1, t)).flatten(1, 2)
    return found


def _side_loss(heads: SideHeads, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
    loss = torch.zeros(())
    if batch.seen is not None:
        shape, colour, box, middle, alike = heads.seen(embeddings["image"]).float().split(_KINDS, dim=-1)
        names = torch.from_numpy(batch.seen.shape)
        colours, shown = torch.from_numpy(batch.seen.colour), names != NO_SHAPE
        if shown.any():  # apart from the ground, which is most of every picture
            loss = loss + F.cross_entropy(shape[shown], names[shown]) + F.cross_entropy(colour[shown], colours[shown])
            loss = loss + _BOX_WEIGHT * _box_loss(box[shown], torch.from_numpy(batch.seen.box)[shown])
            counts = torch.from_numpy(batch.seen.alike)[shown]  # [n, 4]
            told = alike[shown].view(-1, _COUNTS)
            loss = loss + _ALIKE_WEIGHT * F.cross_entropy(told, counts.flatten())
        wanted = torch.from_numpy(batch.seen.middle).float()
        loss = loss + _MIDDLE_WEIGHT * _marked(middle[..., 0], wanted)
        if not shown.all():
            loss = loss + _GROUND_WEIGHT * F.cross_entropy(shape[~shown], names[~shown])
    if batch.digits is not None:
        wanted = torch.from_numpy(batch.digits)
        loss = loss + _DIGITS_WEIGHT * _marked(heads.digits(embeddings["image"]).float(), wanted)
    if batch.heard is not None:
        heard = heads.heard(embeddings["audio"]).float()
        loss = loss + F.cross_entropy(heard.flatten(0, 1), torch.from_numpy(batch.heard).flatten())
    return loss


def _point_loss(looks: Tensor, batch: Batch, pointed: Pointed) -> Tensor:
    """One head looks at the tokens that an answer is about, from where their content is to be said.

    looks: [B, L, L], before the softmax.
    """
    rows = torch.from_numpy(pointed.rows)
    length = looks.shape[-1]
    later = torch.arange(length) > (rows % length)[:, None]  # [n, L]
    found = looks.flatten(0, 1)[rows].float().masked_fill(later, float("-inf")).log_softmax(-1)
    shares = torch.from_numpy(pointed.shares)
    return -(found.masked_fill(shares == 0, 0.0) * shares).sum(-1).mean()


def _marked(found: Tensor, wanted: Tensor) -> Tensor:
    """Which of many are marked (1), where most are not; logits and marks of one shape."""
    return F.binary_cross_entropy_with_logits(found, wanted, 1 + (_RARE - 1) * wanted)


def _box_loss(found: Tensor, box: Tensor) -> Tensor:
    """Steps and no single number: the decoder has to say digits, and reads what stands apart in a token most easily.

    found: [n, 4 * steps]; box: [n, 4] in 0..1.
    """
    apart = (box * (_STEPS - 1))[..., None] - torch.arange(_STEPS)  # [n, 4, steps]
    return F.cross_entropy(found.view(-1, _STEPS), (1 - apart.abs()).clamp(min=0).view(-1, _STEPS))


def _right(batch: Batch, learnt: Tensor, hits: Tensor) -> dict[str, tuple[int, int]]:
    misses = torch.zeros(learnt.shape, dtype=torch.bool)
    misses[learnt] = ~hits
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for task, wrong in zip(batch.tasks, misses.any(dim=1).tolist(), strict=True):
        found[task][0] += not wrong
        found[task][1] += 1
    return {task: (right, asked) for task, (right, asked) in found.items()}
