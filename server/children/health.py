"""When a child counts as hung, and when one that is well is replaced: one policy for workers and engine.

| what is looked at | of whom | it is hung when |
|---|---|---|
| messages, and work that the kernel counts of it (proc_stat.py) | all | there is neither for --pulse-seconds |
| `Loading.steps` | who is not ready | they do not grow for --load-seconds |
| `WorkerPulse.busy_seconds` | a worker | they exceed --step-seconds and what its job may take (job_cost.py) |
| `WorkerPulse.still_seconds` | a worker | they exceed 1.5 x --pulse-seconds and what one call of its job may take |
| `EnginePulse.step_seconds` | the engine | they exceed --step-seconds and what its tokens and patches may take |
| canaries (canary.py) | the engine | UNANSWERED in a row got no token |

A worker that keeps more memory of earlier jobs than it should (`WorkerGrown`) is replaced: between two jobs, and only
while all other workers serve (workers.py). The supervisor asks every WATCH_SECONDS and does what is said here.
"""

import time
from abc import ABC, abstractmethod
from typing import Any

from configs.serve import ServeConfig
from model.engine.messages import EnginePulse, EngineReady, StepDone
from server.children.job_cost import JobCost
from server.children.proc_stat import ProcStat
from shm import Loading
from tokenization.messages import WorkerGrown, WorkerPulse

# Times --pulse-seconds for which a worker's job may get no further: more than once, so that a worker that is stopped is
# known for that first, and its job done by another.
STILL_PULSES = 1.5
# What each unit of work adds to the time that a step may take: generous for a large model on a small CPU.
SECONDS_PER_TOKEN = 0.5
SECONDS_PER_PATCH = 0.05
SECONDS_PER_PAIR = 1e-5  # of patches that see each other; two busy cores took 4e-6 in a tower of 32 full blocks
UNANSWERED = 3  # canaries in a row


class Health(ABC):
    """What one child has said and done of late, begun anew with each incarnation. Times are monotonic seconds."""

    def __init__(self, config: ServeConfig) -> None:
        self._pulse_seconds = config.pulse_seconds
        self._load_seconds = config.load_seconds
        self._step_seconds = config.step_seconds
        self.begin(0, time.monotonic())

    def begin(self, pid: int, now: float) -> None:
        """A new incarnation."""
        self._stat = ProcStat(pid, now)
        self._heard = self._further = now
        self._steps = 0
        self._ready = False

    def hear(self, message: Any, now: float) -> None:
        self._heard = now
        if isinstance(message, Loading) and message.steps > self._steps:
            self._steps, self._further = message.steps, now

    def ready(self) -> None:
        self._ready = True

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
        idle = now - max(self._heard, self._stat.last_work(now))
        if idle > self._pulse_seconds:
            return f"silent for {idle:.1f} s{'' if self._ready else ' while it loads'}"
        if self._ready:
            return self.overdue(now - self._heard)
        still = now - self._further
        return f"no further for {still:.0f} s while it loads" if still > self._load_seconds else None

    @abstractmethod
    def overdue(self, silent: float) -> str | None:
        """Why its work counts as hung although it lives, or None. It was last heard `silent` seconds ago."""


class WorkerHealth(Health):
    """Of one worker and the job that it has."""

    def begin(self, pid: int, now: float) -> None:
        super().begin(pid, now)
        self.kept_bytes: int | None = None  # of earlier jobs, where that is more than it should
        self.begin_job(None)

    def begin_job(self, request_id: str | None, cost: JobCost | None = None) -> None:
        """It has this job from now on, or none. What its last pulse told was about another one."""
        self._job, self._cost = request_id, cost
        self._busy = self._still = self._measured_seconds = 0.0
        self.exceeded: float | None = None  # the limit that its job has passed

    def measured(self, seconds: float) -> None:
        """Its job will take so long further on, as the worker says once it has measured all of it."""
        self._measured_seconds = seconds

    def hear(self, message: Any, now: float) -> None:
        super().hear(message, now)
        if isinstance(message, WorkerGrown):
            self.kept_bytes = message.nbytes
        elif isinstance(message, WorkerPulse):
            of_job = message.request_id == self._job
            self._busy, self._still = (message.busy_seconds, message.still_seconds) if of_job else (0.0, 0.0)

    def overdue(self, silent: float) -> str | None:
        """A call into a decoder that does not return lets go of the lock, and the pulse goes on: the job does not."""
        busy, still = self._busy + silent, self._still + silent
        most, most_still = self._step_seconds, STILL_PULSES * self._pulse_seconds
        if self._cost is not None:
            most, most_still = most + self._cost.may_take + self._measured_seconds, most_still + self._cost.one_call
        self.exceeded = None  # whoever asks kills it for that
        if busy > most:
            self.exceeded = most
            return f"{busy:.0f} s on one job"
        if self._cost is not None and still > most_still:
            self.exceeded = most_still
            return f"{still:.0f} s in one call of a job"
        return None


class EngineHealth(Health):
    """Of the engine, its steps and the canaries that it was sent."""

    def begin(self, pid: int, now: float) -> None:
        super().begin(pid, now)
        self._pulse: EnginePulse | None = None
        self.unanswered = 0  # canaries in a row that this incarnation gave no token
        self.last_token = self.last_work = now  # when the one was sampled, when the other was seen

    def hear(self, message: Any, now: float) -> None:
        super().hear(message, now)
        match message:
            case StepDone():
                self.last_work = now
                if message.tokens:
                    self.last_token = now
            case EnginePulse():
                self._pulse = message
                if message.step_seconds:
                    self.last_work = now
            case EngineReady():
                self.last_token = self.last_work = now  # of its warm-up

    def overdue(self, silent: float) -> str | None:
        pulse = self._pulse
        if pulse is None:
            return None
        if self.unanswered >= UNANSWERED:
            return f"{self.unanswered} requests for one token in a row without one"
        allowed = self._step_seconds + SECONDS_PER_TOKEN * pulse.step_tokens + SECONDS_PER_PATCH * pulse.step_patches
        allowed += SECONDS_PER_PAIR * pulse.step_pairs
        spent = pulse.step_seconds + silent
        return f"{spent:.0f} s in one step" if spent > allowed else None

    def canary_due(self, every: float, now: float) -> bool:
        """Nobody got a token for `every` seconds, or the last canary got none."""
        return now - self.last_token >= every or self.unanswered > 0

    def canary_ended(self, *, answered: bool) -> None:
        self.unanswered = 0 if answered else self.unanswered + 1
