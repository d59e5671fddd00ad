"""What is known of one request when it is over: times, tokens, how it ended."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Record:
    """Times are seconds since the start of the run, by one monotonic clock; None where the thing never happened."""

    index: int
    step: int = 0  # of a sweep
    kind: str = "text"  # of its media, such as `image` or `image+audio`
    bucket: str = ""  # sizes
    measured: bool = True  # False: sent while the load was still rising
    due: float = 0.0  # when the arrival process, or the end of the stream's last request, wanted it sent
    sent: float = 0.0  # body ready, before a connection was taken
    first: float | None = None  # first event that carries content
    last: float | None = None  # last event that carries content or says how the answer ended
    ended: float = 0.0
    events: int = 0  # that carry content
    gaps: list[float] = field(default_factory=list)  # seconds between such events
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_by_events: bool = False  # the server sent no usage: output_tokens counts events
    status: int = 0  # of HTTP; 0: there was no answer
    finish: str | None = None
    error: str | None = None
    cancelled: bool = False  # by us, on purpose
    correct: bool | None = None  # None: nobody knows the answer
    answer: str | None = None  # kept where it was checked
    sent_bytes: int = 0
    request_id: str | None = None  # the server's, for its log
    stages: dict[str, float] = field(default_factory=dict)  # seconds, as the server tells them

    @property
    def answered(self) -> bool:
        """It counts for latencies: whole, and without an error."""
        return self.error is None and not self.cancelled

    @property
    def wait(self) -> float:
        return self.sent - self.due

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.sent

    @property
    def e2el(self) -> float | None:
        return None if self.last is None else self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """None where there is no second token."""
        if self.first is None or self.last is None or (self.output_tokens or 0) < 2:
            return None
        return (self.last - self.first) / ((self.output_tokens or 0) - 1)
