"""When a child counts as hung, and when one that is well is replaced; what a job costs, and what it may take.

| what is looked at | of whom | it is hung when |
|---|---|---|
| messages, and work that the kernel counts of it (`work_of`) | all | there is neither for --pulse-seconds |
| `Loading.steps` | who is not ready | they do not grow for --load-seconds |
| `WorkerPulse.busy_seconds` | a worker | they exceed --step-seconds and what its job may take (`cost_of`) |
| `WorkerPulse.still_seconds` | a worker | they exceed 1.5 x --pulse-seconds and what one call of its job may take |
| `EnginePulse.step_seconds` | the engine | they exceed --step-seconds and what its tokens and patches may take |
| canaries (canary.py) | the engine | UNANSWERED in a row got no token |

A worker that keeps more memory of earlier jobs than it should (`WorkerGrown`) is replaced: between two jobs, and only
while all other workers serve (workers.py). The supervisor asks every WATCH_SECONDS and does what is said here.
"""

import heapq
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from configs.serve import MediaConfig, ServeConfig
from model.engine.messages import EnginePulse, EngineReady, StepDone
from shm import Loading, work_of
from tokenization.chat.parts import Fetched, Kind, Media
from tokenization.messages import Compile, Draw, Encode, Job, Lane, Measured, WorkerGrown, WorkerPulse

# Times --pulse-seconds for which a worker's job may get no further: more than once, so that a worker that is stopped is
# known for that first, and its job done by another.
STILL_PULSES = 1.5
# What each unit of work adds to the time that a step may take: generous for a large model on a small CPU.
SECONDS_PER_TOKEN = 0.5
SECONDS_PER_PATCH = 0.05
SECONDS_PER_PAIR = 1e-5  # of patches that see each other; two busy cores took 4e-6 in a tower of 32 full blocks
UNANSWERED = 3  # canaries in a row

# Seconds of a worker: of each job, of each character of text, of each medium and of each character of its source.
# Measured on 2026-11-22: a BPE tokenizer on prose, JPEGs of 640 x 480 to 12 megapixels, 10 s of 720p.
JOB = 0.001
TEXT = 1e-6
EXPECTED: Mapping[Kind, tuple[float, float]] = {"image": (0.002, 5e-8), "audio": (0.02, 1e-7), "video": (0.1, 1.5e-7)}
FILE_CHARACTERS = 1 << 20  # what a path may lead to counts as so much
# Seconds that a job may take at most until it has told what it holds, beside --step-seconds: a busy machine, the worst
# file. A picture's header is read, a video's packets are gone through, a sound is decoded.
MAY_TEXT = 1e-5  # for each character; one call of the tokenizer, too
MAY_CHARACTER = 2e-6  # for each of a source
MAY_SOUND_CHARACTER = 5e-5  # the same of a sound: 750 bytes hold a second of speech
MAY_SOUND_SECOND = 0.1  # and no more than this for each second that it may last
DRAW_SECONDS = 40.0  # the same of drawing on a picture: a PNG is written in one call
COMPILE_SECONDS = 40.0  # the same of compiling a form: the worker itself ends it after 20 s, and may load before
QUICK_SECONDS = 0.5  # a text that is expected to take longer would hold up the others: its turn is among the media


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCost:
    """Of one job."""

    seconds: float  # right within a factor of some: they order jobs, and hold until the job has told the truth
    may_take: float  # seconds beside --step-seconds, until the worker has measured all
    one_call: float  # the part of them in which nothing is heard of the job
    size: int  # characters that are sent
    lane: Lane  # "text", "picture": the worker of such may take it, and so may any other
    compiles: bool = False  # a form of answers: as long as it lasts, its worker waits


def cost_of(job: Job, limits: MediaConfig, *, short: bool = True) -> JobCost:
    """short: the worker of pictures has not handed it back."""
    if isinstance(job, Draw):
        seconds, _, size = of_medium(job.media, limits)
        return JobCost(seconds=seconds, may_take=DRAW_SECONDS, one_call=DRAW_SECONDS, size=size, lane="media")
    if isinstance(job, Compile):  # never in the way of texts, nor of pictures: a hostile one takes seconds
        size = len(job.grammar.source)
        return JobCost(
            seconds=JOB, may_take=COMPILE_SECONDS, one_call=COMPILE_SECONDS, size=size, lane="media", compiles=True
        )
    media = () if isinstance(job, Encode) else job.chat.media
    size = characters = len(job.text) if isinstance(job, Encode) else job.chat.characters
    seconds, of_text = JOB + TEXT * characters, MAY_TEXT * characters
    lane: Lane = "text" if seconds <= QUICK_SECONDS else "media"
    if media:
        lane = "picture" if short else "media"
    of_media = []
    for medium in media:
        expected, most, n = of_medium(medium, limits)
        seconds += expected
        of_media.append(most)
        size += n
        if medium.kind != "image":
            lane = "media"
    may_take = of_text + sum(heapq.nlargest(limits.max_items, of_media))
    return JobCost(seconds=seconds, may_take=may_take, one_call=of_text, size=size, lane=lane)


def of_medium(medium: Media, limits: MediaConfig) -> tuple[float, float, int]:
    """The seconds that are expected, those that it may take until it is measured, and characters of its sources."""
    once, each = EXPECTED["image" if medium.frames else medium.kind]
    seconds, size, sent = 0.0, 0, 0
    for source in medium.frames or (medium.source,):
        n = len(source.data if isinstance(source, Fetched) else source)
        sent += n
        whole = isinstance(source, Fetched) or source[:5].lower() == "data:"  # it holds what it says; a path does not
        seconds += once + each * (n if whole else FILE_CHARACTERS)
        size += n if whole else limits.max_file_bytes
    most = MAY_CHARACTER * size
    if medium.kind == "audio" or medium.options.use_audio:
        most += min(MAY_SOUND_CHARACTER * size, MAY_SOUND_SECOND * limits.max_audio_seconds)
    return seconds, most, sent


class Liveness:
    """What one child has said and done of late, begun anew with each incarnation. Times are monotonic seconds."""

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self.begin(0, time.monotonic())

    def begin(self, pid: int, now: float) -> None:
        """A new incarnation."""
        self.ready = False
        self._pid = pid
        self._work, self._worked = work_of(pid), now  # what the kernel counted, and when that last moved
        self._heard = self._further = now
        self._steps = 0
        self.kept_bytes: int | None = None  # by a worker, of earlier jobs, where that is more than it should
        self.begin_job(None)
        self._spent: float | None = None  # on its job or step, as it last said
        self.unanswered = 0  # canaries in a row that this incarnation gave no token
        self.last_token = self.last_work = now  # when the one was sampled, when the other was seen

    def begin_job(self, request_id: str | None, cost: JobCost | None = None) -> None:
        """A worker has this job from now on, or none. What its last pulse told was about another one."""
        self._job, self._cost = request_id, cost
        self._spent, self._doing = 0.0, "on one job"
        self._still = 0.0
        self._most = self._config.step_seconds + (0.0 if cost is None else cost.may_take)
        self.exceeded: float | None = None  # the limit that its job has passed

    def hear(self, message: Any, now: float) -> None:
        self._heard = now
        match message:
            case Loading():
                if message.steps > self._steps:
                    self._steps, self._further = message.steps, now
            case Measured() if self._cost is not None and message.request_id == self._job:
                self._most = self._config.step_seconds + self._cost.may_take + message.seconds
            case WorkerPulse():
                of_job = message.request_id == self._job
                self._spent, self._still = (message.busy_seconds, message.still_seconds) if of_job else (0.0, 0.0)
            case WorkerGrown():
                self.kept_bytes = message.nbytes
            case StepDone():
                self.last_work = now
                if message.tokens:
                    self.last_token = now
            case EnginePulse():
                self._spent, self._doing = message.step_seconds, "in one step"
                self._most = self._config.step_seconds + SECONDS_PER_TOKEN * message.step_tokens
                self._most += SECONDS_PER_PATCH * message.step_patches + SECONDS_PER_PAIR * message.step_pairs
                if message.step_seconds:
                    self.last_work = now
            case EngineReady():
                self.last_token = self.last_work = now  # of its warm-up

    def excuse(self, seconds: float) -> None:
        """The watcher itself was stopped or starved for so long: what was said meanwhile is unread."""
        self._heard += seconds
        self._further += seconds

    def hang_reason(self, now: float) -> str | None:
        """Why it counts as hung, or None.

        One import or one call into C may hold the interpreter, and with it the pulse, for minutes: then the kernel
        tells that it works, and the time of its job bounds it. A child that is stopped, or waits for itself, does
        nothing that the kernel would count.
        """
        if (work := work_of(self._pid)) != self._work:
            self._work, self._worked = work, now
        idle = now - max(self._heard, self._worked)
        if idle > self._config.pulse_seconds:
            return f"silent for {idle:.1f} s{'' if self.ready else ' while it loads'}"
        if self.ready:
            return self.overdue(now - self._heard)
        still = now - self._further
        return f"no further for {still:.0f} s while it loads" if still > self._config.load_seconds else None

    def overdue(self, silent: float) -> str | None:
        """Why its work counts as hung although it lives, or None. It was last heard `silent` seconds ago.

        A call into a decoder that does not return lets go of the lock, and the pulse goes on: the job does not.
        """
        self.exceeded = None
        if self._spent is None:
            return None
        if self.unanswered >= UNANSWERED:
            return f"{self.unanswered} requests for one token in a row without one"
        spent, still = self._spent + silent, self._still + silent
        if spent > self._most:
            self.exceeded = self._most  # whoever asks kills it for that
            return f"{spent:.0f} s {self._doing}"
        if self._cost is None:
            return None
        most_still = STILL_PULSES * self._config.pulse_seconds + self._cost.one_call
        if still > most_still:
            self.exceeded = most_still
            return f"{still:.0f} s in one call of a job"
        return None
