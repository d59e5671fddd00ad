"""Process main of the engine: messages in, steps, messages out, and a periodic pulse."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np

from model.device import out_of_memory
from model.engine.engine import Engine
from model.engine.messages import (
    Abort,
    EnginePulse,
    EngineReady,
    FromEngine,
    Generate,
    RankReady,
    SamplingParams,
    StartEngine,
    StepDone,
    ToEngine,
)
from model.engine.profile import memory_rows
from model.engine.ranks.follower import Follower
from model.engine.ranks.link import RankLink, ended_with, open_link
from model.engine.ranks.part import OnRead, load_part
from model.engine.runner import Runner
from model.staging.streams import open_streams
from model.thread_fit import Team, ThreadFit, fit_at_start
from shm import Channel, ChannelClosed, ChannelError, Pulse
from tokenization.messages import Prepared

_log = logging.getLogger("pixelferry")
_WARM_UP = "warm-up"  # no server gives this id
FIT_STEPS = 9

Inbox = queue.SimpleQueue[ToEngine | ChannelClosed | ChannelError]


def run(channel: Channel[ToEngine], start: StartEngine, pulse: Pulse, on_read: OnRead) -> None:
    """Load what `start` names, send EngineReady, serve until the channel ends: raises ChannelClosed then.

    on_read: told (bytes read, bytes in all) after each tensor of the weights.

    Also raised: CheckpointError, DeviceError, BlockError, ChannelError, and what the forward pass raises.
    """
    link = open_link(start)
    try:
        if start.rank:
            follow(channel, start, pulse, link)
        lead(channel, start, pulse, on_read, link)
    except RuntimeError as error:
        raise ended_with(link, error) from error


def lead(
    channel: Channel[ToEngine], start: StartEngine, pulse: Pulse, on_read: OnRead, link: RankLink | None
) -> NoReturn:
    """Of the first rank, or the only process: it has the scheduler, and samples."""
    config = start.engine
    team = Team(config.threads) if config.fits_threads and config.threads is not None else None
    engine, ready = load(start, pulse.further, on_read, link)
    fit = None
    if team is not None and team.n > 1 and ready.device == "cpu":
        fit, found = fit_threads(team, engine)
        ready = msgspec.structs.replace(ready, threads=found)
    channel.send(ready)
    pulse.say(lambda: pulse_of(engine, time.monotonic()))
    inbox = Inbox()
    threading.Thread(target=_read, args=(channel, inbox), name="engine-reader", daemon=True).start()
    serve(engine, inbox, channel.send, fit)


def load(
    start: StartEngine, further: Callable[[], None] = lambda: None, on_read: OnRead = lambda done, total: None,
    link: RankLink | None = None,
) -> tuple[Engine, EngineReady]:  # fmt: skip
    """Weights, cache and a warm-up step: an engine that is ready to serve, and the message that says so.

    further: called after each tensor and each stage; on_read: as of `run`.
    """
    part = load_part(start, further, on_read, link)
    model, config, size, profile = part.model, part.config, part.size, part.profile
    with out_of_memory(model.device, "the KV cache", "--kv-cache-share or --kv-cache-mib"):
        engine = Engine(
            model=model, config=config, root=Path(start.shm_root), size=size,
            checkpoint=part.checkpoint.path, link=link,
        )  # fmt: skip
    further()
    warm_up(engine)
    further()
    if profile is not None and profile.graphs is not None:  # else they were tried over the trial's cache, and refused
        engine.capture_graphs()
    further()
    ready = EngineReady(
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        vocab_size=model.vocab_size,
        kv_blocks=engine.size.usable,
        block_size=engine.size.block_size,
        memory=memory_rows(part.weight_bytes, engine.size, config, profile),
        max_model_len=engine.size.max_model_len,
        media_ids=tuple(model.banned_ids),
        max_media_tokens=engine.max_media_tokens,
        ranks=config.tensor_parallel,
    )
    return engine, ready


def follow(channel: Channel[ToEngine], start: StartEngine, pulse: Pulse, link: RankLink | None) -> NoReturn:
    """Of any other rank: raises ChannelClosed when the first one is gone."""
    assert link is not None
    part = load_part(start, pulse.further, lambda done, total: None, link)
    model, size, config = part.model, part.size, part.config
    with out_of_memory(model.device, "the KV cache", "--kv-cache-share or --kv-cache-mib"):
        runner = Runner(model, size, Path(start.shm_root), config, open_streams(model.device), link)
    follower = Follower(runner, link, lambda: runner.capture_graphs(config))
    channel.send(RankReady())
    pulse.say(lambda: pulse_of(follower, time.monotonic()))
    follower.run()


def fit_threads(team: Team, engine: Engine) -> tuple[ThreadFit | None, str]:
    """(what fits the team's threads from now on, None where one thread is enough; the reason in words)."""
    chosen, found = fit_at_start(team.n, team.use, lambda: warm_up(engine, FIT_STEPS)[1:])
    if chosen == 1:
        return None, found
    team.bind()
    return ThreadFit(team.n, team.use), found


def warm_up(engine: Engine, n_tokens: int = 2) -> list[float]:
    """One prefill, and decodes; seconds of each step."""
    n = min(8, engine.size.max_model_len - n_tokens)
    if n < 1:
        return []
    prepared = Prepared(
        request_id=_WARM_UP, input_ids=np.zeros(n, np.int64), media=(), position_delta=0, seconds={},
        positions=np.broadcast_to(np.arange(n, dtype=np.int32), (3, n)),
    )  # fmt: skip
    generate = Generate(prepared=prepared, sampling=SamplingParams(max_tokens=n_tokens, temperature=0.0, seed=0))
    refusal = engine.submit(generate)
    if refusal is not None:
        raise RuntimeError(f"the warm-up request was refused: {refusal.message}")
    taken = []
    while not engine.idle:
        start = time.perf_counter()
        engine.step()
        taken.append(time.perf_counter() - start)
    return taken


def serve(engine: Engine, inbox: Inbox, send: Callable[[object], None], fit: ThreadFit | None = None) -> NoReturn:
    """Take messages, run a step, send its messages, for ever. When idle: let go, check the books and wait."""
    while True:
        if engine.idle:
            engine.free_ended()
            engine.check_integrity()
            _take(inbox.get(), engine, send)
        while not inbox.empty():  # this thread alone takes from it
            _take(inbox.get(), engine, send)
        started = time.perf_counter()
        messages = engine.step()
        if fit is not None and _only_decoded(messages):
            fit.decoded(time.perf_counter() - started)
        for message in messages:
            send(message)


def _only_decoded(messages: Sequence[FromEngine]) -> bool:
    return any(isinstance(message, StepDone) and message.n_tokens == len(message.tokens) for message in messages)


def _take(message: ToEngine | ChannelClosed | ChannelError, engine: Engine, send: Callable[[object], None]) -> None:
    if isinstance(message, Generate):
        answer = engine.submit(message)
    elif isinstance(message, Abort):
        answer = engine.abort(message.request_id, message.index)
    elif isinstance(message, Exception):
        raise message
    else:
        raise ValueError(f"{type(message).__name__} is a first message, and came a second time")
    if answer is not None:
        send(answer)


def _read(channel: Channel[ToEngine], inbox: Inbox) -> None:
    """Thread: messages into the inbox, and the error that ends the channel."""
    try:
        while True:
            message = channel.recv(None)
            if message is not None:
                inbox.put(message)
    except (ChannelClosed, ChannelError) as error:
        inbox.put(error)


def pulse_of(engine: Engine | Follower, now: float) -> EnginePulse:
    """Age and size of the running step, so that a hung one is told from a long one. now: time.monotonic()."""
    step = engine.progress
    if step is None:
        return EnginePulse(step_seconds=0.0, step_tokens=0, step_patches=0)
    return EnginePulse(
        step_seconds=max(now - step.started, 0.0), step_tokens=step.tokens, step_patches=step.patches,
        step_pairs=step.pairs,
    )  # fmt: skip
