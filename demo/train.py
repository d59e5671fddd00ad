"""The training loop: workers that draw batches, an optimiser, a log, and a state that a later run goes on from."""

import ctypes
import json
import math
import os
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tokenizers import Tokenizer
from tqdm import tqdm

from demo.batches import Batch, Exercises
from demo.checkpoint import read_weights, train_tokenizer, write_files, write_weights
from demo.lessons import SideHeads, learn
from demo.net import DemoNet
from demo.plot import plot_losses
from demo.prompts import Reader
from demo.sizes import Sizes
from demo.words import Words

# Besides a batch of scenes, each step takes the next of these.
ROTATION = (
    "pairs", "scenes", "numbers", "clips", "sounds", "talk", "scenes", "pairs", "numbers", "tools", "clips", "mixed",
    "scenes", "sounds", "numbers", "pairs", "talk", "scenes", "clips", "numbers", "pairs", "sounds", "tools",
)  # fmt: skip
_CORPUS_LINES = 60_000
_QUEUE = 6  # batches drawn ahead
_PATIENCE = 10  # seconds without a batch until somebody looks whether its maker lives
_SMOOTH = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run. `steps` counts from the very first one; the rate falls to nothing over the last `decay` of them."""

    out: Path
    steps: int
    decay: int
    weights: Path | None = None  # a checkpoint to begin with, and its vocabulary; none: random weights
    seed: int = 0
    ranks: int = 2  # processes of one thread each, whose gradients are added up
    rate: float = 2e-3
    warmup: int = 100
    vocab: int = 1000
    save_every: int = 100
    minutes: float = 0  # of the clock, all runs in the folder together, at which the rate is nothing; 0: `steps` alone
    towers: bool = True  # whether they are trained with the decoder
    small: bool = False  # batches of a few prompts, for a quick try

    def rate_at(self, step: int, spent: float = 0.0) -> float:
        """The learning rate of a step: up, level, then down along a straight line.

        Where the plan has minutes it is level for a fifth of them, and `spent` seconds say where it is.
        """
        up = min(1.0, (step + 1) / self.warmup)
        if self.minutes:
            return self.rate * up * max(0.0, min(1.0, (1 - spent / (60 * self.minutes)) / 0.8))
        down = min(1.0, (self.steps - step) / max(self.decay, 1))
        return self.rate * up * down


def run(plan: Plan) -> None:
    """Train to the plan's last step, from where an earlier run in the same folder stopped."""
    plan.out.mkdir(parents=True, exist_ok=True)
    _tokenizer(plan)
    if plan.ranks == 1:
        _train(0, plan)
    else:
        (plan.out / "meeting").unlink(missing_ok=True)
        mp.spawn(_train, (plan,), nprocs=plan.ranks)  # type: ignore[attr-defined,no-untyped-call]


def _train(rank: int, plan: Plan) -> None:
    _keep_memory()
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    if plan.ranks > 1:
        where = f"file://{(plan.out / 'meeting').absolute()}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=plan.ranks)
    sizes, tokenizer = Sizes(), _tokenizer(plan)
    net, heads = DemoNet(sizes, tokenizer.get_vocab_size()), SideHeads(sizes)
    optimisers = _optimisers(net, heads, plan)
    start, earlier = _restore(plan, net, heads, optimisers)
    begun = time.monotonic() - earlier
    log = Log(plan.out / "log.jsonl", smooth=_SMOOTH)
    batches = _batches(rank, start, plan)
    bar = tqdm(range(start, plan.steps), initial=start, total=plan.steps, disable=rank > 0, mininterval=5)
    for step in bar:
        spent = _agreed(time.monotonic() - begun, plan.ranks)
        if plan.minutes and spent >= 60 * plan.minutes:
            break
        _begin(optimisers, plan, step, spent)
        for _ in range(2):
            learnt = learn(net, heads, batch := next(batches), towers=plan.towers)
            learnt.loss.backward()
            log.note(batch.name, learnt.answers, learnt.side, learnt.right)
        parameters = [*net.parameters(), *heads.parameters()]
        _share(parameters, plan.ranks)
        if torch.nn.utils.clip_grad_norm_(parameters, 1.0).isfinite():
            for optimiser in optimisers:
                optimiser.step()
        elif rank == 0:
            log.skip(step)
        bar.set_postfix_str(log.line(), refresh=False)
        if rank == 0 and ((step + 1) % plan.save_every == 0 or step + 1 == plan.steps):
            log.write(step + 1)
            _save(plan, step + 1, spent, net, heads, optimisers)
    else:
        step = plan.steps
    if rank == 0 and step < plan.steps:
        log.write(step)
        _save(plan, step, spent, net, heads, optimisers)
    batches.close()
    if plan.ranks > 1:
        dist.destroy_process_group()


def _agreed(seconds: float, ranks: int) -> float:
    """The first process's clock, for all."""
    told = torch.tensor([seconds], dtype=torch.float64)
    if ranks > 1:
        dist.broadcast(told, 0)
    return float(told)


def _keep_memory() -> None:
    """Let glibc keep what is freed: asking the system anew for every large tensor took a third of the time."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for setting, value in ((-4, 0), (-1, 2**31 - 1), (-8, 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX
            libc.mallopt(setting, value)


class Log:
    """Running means of losses and of right answers, by kind and task; a line of JSON for every save."""

    def __init__(self, path: Path, smooth: float) -> None:
        self._path = path
        self._smooth = smooth
        self._losses: dict[str, tuple[float, float]] = {}  # sum and weight, the older the less
        self._right: dict[str, tuple[float, float]] = {}
        self._since = time.monotonic()

    def note(self, name: str, answers: float, side: float, right: dict[str, tuple[int, int]]) -> None:
        """One batch."""
        if not math.isfinite(answers + side):
            return
        self._mean(self._losses, name, answers, 1)
        if side:
            self._mean(self._losses, f"{name} side", side, 1)
        for task, (hits, asked) in right.items():
            self._mean(self._right, task, hits / asked, asked / 8)

    def skip(self, step: int) -> None:
        """A step whose gradients are not finite changes nothing but this file."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "skipped": "gradients that are not finite"}) + "\n")

    def line(self) -> str:
        """What the progress bar shows."""
        return " ".join(f"{name} {loss / seen:.2f}" for name, (loss, seen) in self._losses.items() if " " not in name)

    def write(self, step: int) -> None:
        """Append the means to the file."""
        entry = {
            "step": step, "seconds": round(time.monotonic() - self._since, 1),
            "loss": {name: round(loss / seen, 4) for name, (loss, seen) in self._losses.items()},
            "right": {name: round(hits / asked, 4) for name, (hits, asked) in sorted(self._right.items())},
        }  # fmt: skip
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def _mean(self, means: dict[str, tuple[float, float]], name: str, value: float, weight: float) -> None:
        keep = self._smooth**weight
        total, seen = means.get(name, (0.0, 0.0))
        means[name] = (keep * total + weight * value, keep * seen + weight)


def _tokenizer(plan: Plan) -> Tokenizer:
    """The run's vocabulary: made by its first process, or that of the weights it begins with."""
    path = plan.out / "checkpoint"
    if not (path / "tokenizer.json").exists():
        if plan.weights:
            tokenizer = Tokenizer.from_file(str(plan.weights / "tokenizer.json"))
        else:
            corpus = Words.load().corpus(np.random.default_rng(plan.seed), _CORPUS_LINES // (20 if plan.small else 1))
            tokenizer = train_tokenizer(corpus, plan.vocab)
        write_files(path, tokenizer, Sizes())
    return Tokenizer.from_file(str(path / "tokenizer.json"))


def _optimisers(net: DemoNet, heads: SideHeads, plan: Plan) -> list[torch.optim.Optimizer]:
    """Orthogonalised updates for the matrices inside the blocks, Adam's for all else."""
    inside = [p for name, p in net.named_parameters() if p.ndim == 2 and (".blocks." in name or ".layers." in name)]
    known = {id(p) for p in inside}
    others = [p for p in net.parameters() if id(p) not in known]
    ahead = plan.warmup if plan.weights else 0  # heads are new where weights are not: they need no warming up
    return [
        torch.optim.Muon(
            [{"params": inside, "ahead": 0}], lr=plan.rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            [{"params": others, "ahead": 0}, {"params": list(heads.parameters()), "ahead": ahead}],
            lr=plan.rate,
            weight_decay=0.02,
            betas=(0.9, 0.98),
        ),
    ]


def _begin(optimisers: list[torch.optim.Optimizer], plan: Plan, step: int, spent: float) -> None:
    """No gradients, and the step's rates."""
    for optimiser in optimisers:
        optimiser.zero_grad()
        for group in optimiser.param_groups:
            group["lr"] = plan.rate_at(step + group["ahead"], spent)


def _share(parameters: list[torch.nn.Parameter], ranks: int) -> None:
    """The mean of all processes' gradients; what a process had no use for counts as zero.

    A process alone leaves such parameters without a gradient.
    """
    if ranks == 1:
        return
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= ranks
    at = 0
    for p in parameters:
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()


def _batches(rank: int, start: int, plan: Plan) -> Generator[Batch]:
    """Two batches a step, drawn ahead by a process of their own, which ends with this one. RuntimeError: before it."""
    context = mp.get_context("spawn")
    queue: Any = context.Queue(_QUEUE)
    process = context.Process(target=_draw, args=(queue, rank, start, plan), daemon=True)
    process.start()
    try:
        while True:
            try:
                yield queue.get(timeout=_PATIENCE)
            except Empty:
                if not process.is_alive():
                    raise RuntimeError("the process that draws batches has ended") from None
    finally:
        process.kill()
        process.join()


def _draw(queue: Any, rank: int, start: int, plan: Plan) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng((plan.seed, rank, start))
    sizes = Sizes()
    makers = Exercises(rng, Reader(_tokenizer(plan), sizes), Words.load(), sizes).kinds
    few = {"count": 2} if plan.small else {}
    for step in range(start, plan.steps):
        queue.put(makers["scenes"](**few))
        queue.put(makers[ROTATION[step % len(ROTATION)]](**few))  # all ranks the same: they wait for the slowest


def _save(
    plan: Plan, step: int, spent: float, net: DemoNet, heads: SideHeads, optimisers: list[torch.optim.Optimizer]
) -> None:
    state = {
        "step": step, "spent": spent, "net": net.state_dict(), "heads": heads.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
    }  # fmt: skip
    torch.save(state, plan.out / "state.part")
    os.replace(plan.out / "state.part", plan.out / "state.pt")
    write_weights(plan.out / "checkpoint", net)
    plot_losses(plan.out / "log.jsonl", plan.out / "loss.png")


def _restore(plan: Plan, net: DemoNet, heads: SideHeads, optimisers: list[torch.optim.Optimizer]) -> tuple[int, float]:
    """The step to go on with, and the seconds that were spent."""
    path = plan.out / "state.pt"
    if not path.exists():
        if plan.weights:
            read_weights(plan.weights, net)
        return 0, 0.0
    state = torch.load(path, weights_only=True)
    net.load_state_dict(state["net"])
    heads.load_state_dict(state["heads"])
    for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    return int(state["step"]), float(state["spent"])
