"""When a child counts as hung, and when one that is well is replaced: one policy for workers and engine.

| what is looked at | of whom | it is hung when |
|---|---|---|
| messages, and work that the kernel counts of it (`work_of`) | all | there is neither for --pulse-seconds |
| `Loading.steps` | who is not ready | they do not grow for --load-seconds |
| `WorkerPulse.busy_seconds` | a worker | they exceed --step-seconds and what its job may take (job_cost.py) |
| `WorkerPulse.still_seconds` | a worker | they exceed 1.5 x --pulse-seconds and what one call of its job may take |
| `EnginePulse.step_seconds` | the engine | they exceed --step-seconds and what its tokens and patches may take |
| canaries (canary.py) | the engine | UNANSWERED in a row got no token |

A worker that keeps more memory of earlier jobs than it should (`WorkerGrown`) is replaced: between two jobs, and only
while all other workers serve (workers.py). The supervisor asks every WATCH_SECONDS and does what is said here.
"""

import time
from pathlib import Path
from typing import Any

from configs.serve import ServeConfig
from model.engine.messages import EnginePulse, EngineReady, StepDone
from server.children.job_cost import JobCost
from shm import Loading
from tokenization.messages import Measured, WorkerGrown, WorkerPulse

# Times --pulse-seconds for which a worker's job may get no further: more than once, so that a worker that is stopped is
# known for that first, and its job done by another.
STILL_PULSES = 1.5
# What each unit of work adds to the time that a step may take: generous for a large model on a small CPU.
SECONDS_PER_TOKEN = 0.5
SECONDS_PER_PATCH = 0.05
SECONDS_PER_PAIR = 1e-5  # of patches that see each other; two busy cores took 4e-6 in a tower of 32 full blocks
UNANSWERED = 3  # canaries in a row


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


def work_of(pid: int) -> tuple[int, int] | None:
    """Pages that a process had to wait for, and its processor time in clock ticks; None where the kernel tells none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[9]), int(fields[11]) + int(fields[12])
