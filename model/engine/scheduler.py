"""Continuous batching as bookkeeping: who runs in the next step, with which blocks. Knows no tensors and no clock."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from model.engine.kv_blocks import BlockAllocator, BlockError
from model.engine.plan import Chunk, Outcome, Plan
from model.engine.sequence import Finish, Key, Sequence, Status
from model.engine.shares.client_line import ClientLine
from model.engine.shares.fair_shares import Holdings
from model.engine.shares.giving_way import Scarce, StepAdmission, victim_of_growth
from model.engine.shares.step_budget import StepBudget
from model.staging.tables import Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_seqs: int  # running sequences
    max_batched_tokens: int  # tokens computed in one step
    embedding_bytes: int  # embeddings of running and preempted sequences
    # Blocks that the sequences of a step may name together, shared ones counted for each; at least those of the cache.
    max_table_blocks: int | None = None


class Scheduler:
    """Clients take turns, whoever was given fewest tokens first; within one it is first come, first served.

    At its turn a client's running sequences are dealt tokens, oldest first, and then its waiting ones are let in. So
    only the youngest running sequence of a client can be inside its prompt; the others decode, one token each. There
    are never more running sequences than tokens in a step: one is left for that prompt. Where a step's tokens or the
    blocks that its tables may name do not suffice, some wait a step: of a client whoever waited longest goes first,
    and nobody new of it comes in.

    Blocks for all known tokens are taken at admission, so only a decode can run out of them. Who then gives its blocks
    back and waits at the front, and who does for a client that stays within its share, is in giving_way.py. The
    answers to one prompt are sequences that share the prompt's whole blocks: one computes the prompt, and the others
    follow it until its first token is drawn.
    """

    def __init__(self, allocator: BlockAllocator, limits: Limits) -> None:
        self.allocator = allocator
        self.limits = limits
        self.preemptions = 0
        self.gave_way = 0  # of the preemptions, those that made room for another client's share
        self._embeddings: Holdings[int] = Holdings(limits.embedding_bytes)  # bytes that are reserved, by client
        self._max_running = min(limits.max_seqs, limits.max_batched_tokens)
        self._sequences: dict[Key, Sequence] = {}  # in order of arrival
        self._answers: dict[str, list[Sequence]] = {}  # by request: those that have not ended, by index
        self._reserved: dict[str, int] = {}  # by request: bytes of embeddings, from its first admission to its end
        self._line = ClientLine()
        self._running: list[Sequence] = []  # oldest first
        self._n_arrived = 0
        self._rows = list(range(self._max_running))  # of the array of block tables: those that nobody has

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._answers

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __getitem__(self, key: Key) -> Sequence:
        return self._sequences[key]

    @property
    def embedding_bytes(self) -> int:
        """Reserved now."""
        return int(self._embeddings.total)

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._line)

    def refuse(self, sequence: Sequence) -> str | None:
        """Why `sequence` could never run here, or None."""
        if self.allocator.blocks_for(sequence.limit) > self.allocator.n_blocks:
            return f"{sequence.limit} tokens do not fit into the KV cache"
        if sequence.embedding_bytes > self.limits.embedding_bytes:
            most = self.limits.embedding_bytes
            return f"its media need {sequence.embedding_bytes} bytes of embeddings, all requests together have {most}"
        return None

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that refuse() accepts, and its further answers. Raises ValueError for an id that is here."""
        if sequence.request_id in self._answers:
            raise ValueError("a request with this id is already in the engine")
        answers = [sequence, *(sequence.answer(i) for i in range(1, sequence.sampling.n))]
        self._answers[sequence.request_id] = answers
        self._sequences.update({answer.key: answer for answer in answers})
        for answer in answers:
            self._n_arrived += 1
            answer.arrived = self._n_arrived
        self._line.add(answers)

    def remove(self, request_id: str, index: int | None = None) -> bool:
        """Forget a request, or one of its answers, in any state; False when it is not here."""
        found = [answer for answer in self._answers.get(request_id, ()) if index in (None, answer.index)]
        for answer in reversed(found):
            self._forget(answer)
        return bool(found)

    def plan(self) -> Plan:
        """The next step; empty only when there is no sequence."""
        self._grow_tables()
        step = StepBudget(self.allocator.blocks_for, self.limits.max_batched_tokens, self.limits.max_table_blocks)
        turns = self._line.turns()
        admission = StepAdmission(
            line=self._line, turns={client: i for i, client in enumerate(turns)}, running=self._running,
            allocator=self.allocator, max_running=self._max_running, embeddings=self._embeddings,
        )  # fmt: skip
        running: dict[int, list[Sequence]] = {client: [] for client in turns}
        for sequence in self._running:
            running[sequence.client].append(sequence)
        for client in turns:
            if step.deal(running[client]):
                self._admit_waiting(client, step, admission)
        return Plan(chunks=tuple(self._chunk(s, step.stops[s.key]) for s in self._running if s.key in step.stops))

    def commit(self, plan: Plan, outcome: Outcome) -> dict[Key, Finish | None]:
        """Book a finished step, and drop what failed or ended. Says how each answer with a token ended, if it did."""
        for request_id in outcome.failed:
            self.remove(request_id)
        finishes: dict[Key, Finish | None] = {}
        chunks = plan.without(outcome.failed).chunks
        self._line.charge((self[chunk.key], chunk.stop) for chunk in chunks)
        for chunk in chunks:
            computed = self[chunk.key]
            computed.n_computed, computed.n_scored = chunk.stop, max(computed.n_scored, chunk.scored[1])
            for key in chunk.draws:
                sequence, token = self[key], outcome.tokens[key].id
                sequence.n_computed = chunk.stop
                sequence.n_charged = max(sequence.n_charged, chunk.stop)  # of a follower, too
                sequence.status = Status.RUNNING
                sequence.append(token)
                finishes[key] = sequence.finish(token)
                if finishes[key] is not None:
                    self._forget(sequence)
        return finishes

    def check_integrity(self) -> None:
        """Raise BlockError unless blocks, queues and the embedding budget add up."""
        self.allocator.check_integrity(sequence.block_table for sequence in self)
        order = sorted([*self._running, *self._line], key=lambda s: s.client)
        if [s.key for s in order] != [s.key for s in sorted(self, key=lambda s: s.client)]:
            raise BlockError("the queues do not hold every sequence once, those of a client in order of arrival")
        if [s.key for s in self] != [s.key for answers in self._answers.values() for s in answers]:
            raise BlockError("the requests do not hold every sequence once, in order of arrival")
        if any(s.block_table or s.n_computed or s.status is not Status.WAITING for s in self._line):
            raise BlockError("a waiting sequence holds blocks")
        rows = [*self._rows, *(s.seat.row for s in self if s.seat is not None)]
        if sorted(rows) != list(range(self._max_running)) or any(s.seat is None for s in self._running):
            raise BlockError("the rows of the block tables do not add up")
        if any(s.status is Status.FOLLOWING and self._leader_of(s) is None for s in self._running):
            raise BlockError("a sequence follows none")
        if self.embedding_bytes != sum(self._reserved.values()) or not self._reserved.keys() <= self._answers.keys():
            raise BlockError("the embedding budget does not add up")

    def _forget(self, sequence: Sequence) -> None:
        siblings = self._answers[sequence.request_id]
        siblings.remove(sequence)
        del self._sequences[sequence.key]
        if sequence.status is Status.WAITING:
            self._line.take(sequence)
        else:
            self._running.remove(sequence)
        self._line.ended(sequence)
        followers = [s for s in siblings if s.status is Status.FOLLOWING]
        if followers and sequence.is_fresh and self._leader_of(followers[0]) is None:
            # The whole blocks that are computed are common to both; what stood in the leader's last block is lost.
            followers[0].n_computed = sequence.n_computed - sequence.n_computed % self.allocator.block_size
            followers[0].status = Status.RUNNING
        self._give_back(sequence)
        if not siblings:
            del self._answers[sequence.request_id]
            if sequence.request_id in self._reserved:
                self._embeddings.give(sequence.client, self._reserved.pop(sequence.request_id))

    def _admit_waiting(self, client: int, step: StepBudget, admission: StepAdmission) -> None:
        """Let in whoever of a client waits and fits."""
        # A preempted sequence does not return in this step: a part of its blocks is taken, and it needs all of them.
        while (sequence := self._line.head(client)) is not None:
            if admission.closed and sequence.request_id not in self._reserved:
                return
            share = self._share_for(sequence)
            start = len(share.blocks) * self.allocator.block_size
            stop = step.stop_for(sequence, start)
            if not share.follows and not step.allows(start, stop):
                return
            needs: dict[Scarce, int] = {
                "seats": 1,
                "blocks": self.allocator.blocks_for(sequence.n_tokens) - len(share.blocks),
                "embeddings": 0 if sequence.request_id in self._reserved else sequence.embedding_bytes,
            }
            victims = admission.room_for(client, needs)
            if victims is None:
                return
            for victim in victims:
                self._preempt(victim)
                self.gave_way += 1
            if not share.follows:
                step.take(sequence, start, stop)
            self._line.take(sequence)
            self._admit(sequence, share)
            admission.changed()

    def _grow_tables(self) -> None:
        """Give each running sequence the block for its newest token; others are preempted for it."""
        for sequence in tuple(self._running):
            if len(sequence.block_table) * self.allocator.block_size >= sequence.n_tokens:
                continue
            while sequence.status is Status.RUNNING and (
                self.allocator.blocks_for(sequence.n_tokens) - len(sequence.block_table) > self.allocator.n_free
            ):
                self._preempt(victim_of_growth(self._running))
            if sequence.status is Status.RUNNING:
                self.allocator.append(sequence.block_table, sequence.n_tokens)

    def _preempt(self, sequence: Sequence) -> None:
        """It loses its blocks, keeps its embeddings, and computes prompt and generated tokens again."""
        self._running.remove(sequence)
        self._give_back(sequence)
        sequence.n_computed = 0
        sequence.status = Status.WAITING
        self._line.put_back(sequence)
        self.preemptions += 1

    def _give_back(self, sequence: Sequence) -> None:
        self.allocator.free(sequence.block_table)
        if sequence.seat is not None:
            self._rows.append(sequence.seat.row)
            sequence.seat = None

    def _leader_of(self, sequence: Sequence) -> Sequence | None:
        """The answer that computes the prompt of this fresh one."""
        siblings = self._answers[sequence.request_id]
        return next((s for s in siblings if s.status is Status.RUNNING and s.is_fresh and s is not sequence), None)

    def _share_for(self, sequence: Sequence) -> "_Share":
        """A sibling's whole blocks of the prompt, which no answer writes."""
        size = self.allocator.block_size
        leader = self._leader_of(sequence) if sequence.is_fresh else None
        if leader is not None:
            return _Share(blocks=tuple(leader.block_table[: sequence.n_prompt // size]), follows=True)
        found: tuple[int, ...] = ()
        for sibling in self._answers[sequence.request_id]:
            if sibling.status is Status.RUNNING:
                # The last known token is computed again in any case: a step without a row draws nothing.
                n = min(sibling.n_computed, sequence.n_prompt, sequence.n_tokens - 1) // size
                found = max(found, tuple(sibling.block_table[:n]), key=len)
        return _Share(blocks=found, follows=False)

    def _admit(self, sequence: Sequence, share: "_Share") -> None:
        sequence.block_table = self.allocator.allocate(sequence.n_tokens, share.blocks)
        sequence.seat = Seat(self._rows.pop())
        sequence.n_computed = 0 if share.follows else len(share.blocks) * self.allocator.block_size
        sequence.status = Status.FOLLOWING if share.follows else Status.RUNNING
        sequence.n_waited = 0
        insort(self._running, sequence, key=attrgetter("arrived"))
        if sequence.request_id not in self._reserved:
            self._reserved[sequence.request_id] = sequence.embedding_bytes
            self._embeddings.take(sequence.client, sequence.embedding_bytes)

    def _chunk(self, sequence: Sequence, stop: int) -> Chunk:
        start, samples = sequence.n_computed, stop == sequence.n_tokens
        if start >= sequence.n_prompt:  # nothing of what concerns prompts
            return Chunk(request_id=sequence.request_id, index=sequence.index, start=start, stop=stop, samples=samples)
        followers: list[Sequence] = []
        if samples and sequence.is_fresh:
            followers = [s for s in self._answers[sequence.request_id] if s.status is Status.FOLLOWING]
        cut = sequence.n_prompt % self.allocator.block_size > 0  # the prompt ends inside a block, which answers fill on
        return Chunk(
            request_id=sequence.request_id, index=sequence.index, start=start, stop=stop, samples=samples,
            encode=sequence.unread_until(stop), scored=sequence.scored_until(stop),
            followers=tuple(s.index for s in followers),
            copies=tuple((sequence.block_table[-1], s.block_table[-1]) for s in followers) if cut else (),
        )  # fmt: skip


class _Share(NamedTuple):
    """Blocks of a sibling, and whether it is still computing them."""

    blocks: tuple[int, ...]
    follows: bool
