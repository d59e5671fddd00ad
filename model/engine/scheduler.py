"""Continuous batching as bookkeeping: who runs in the next step, with which blocks. Knows no tensors and no clock."""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from model.engine.block_keys import PrefixCache
from model.engine.encoder_cache import EncoderCache
from model.engine.kv_blocks import BlockAllocator, BlockError
from model.engine.messages import Token, TokenEvent
from model.engine.plan import Chunk, Outcome, Plan
from model.engine.scheduling.client_line import ClientLine
from model.engine.scheduling.giving_way import Scarce, StepAdmission, victim_of_growth
from model.engine.scheduling.step_budget import Limits, StepBudget
from model.engine.sequence import Key, Seat, Sequence, Status


class Scheduler:
    """Clients take turns, whoever was given fewest tokens first; within one it is first come, first served.

    At its turn a client's decodes get a token each, then its prompts, oldest first, what the step has left of tokens
    and of what encoders may do, and then its waiting sequences are let in. A prompt stops before a medium that finds no
    room in the step, and others take its tokens. There are never more running sequences than tokens in a step, so that
    the oldest prompt has one. Where tokens, or the blocks that a step's tables may name, do not suffice, some wait a
    step: of a client whoever waited longest goes first, and nobody new of it comes in.

    Blocks for all known tokens are taken at admission, so only a decode can run out of them. Who then gives its blocks
    back and waits at the front, and who does for a client that stays within its share, is in scheduling/giving_way.py.
    Whoever is admitted takes over the blocks that hold the beginning of its tokens, whoever computed them, and computes
    one token at least. The answers to one prompt are sequences: one computes the prompt, and the others come in with
    the step that ends it, and draw their first tokens from the same row.
    """

    def __init__(self, allocator: BlockAllocator, limits: Limits) -> None:
        self.allocator = allocator
        self.limits = limits
        self.preemptions = 0
        self.gave_way = 0  # of the preemptions, those that made room for another client's share
        self.embeddings = EncoderCache(
            limits.embedding_bytes, limits.device_embedding_bytes, keeps=limits.keeps_embeddings
        )
        self.prefixes = PrefixCache(allocator, outlive=limits.prefix_cache)
        self.max_running = min(limits.max_seqs, limits.max_batched_tokens)
        self._sequences: dict[Key, Sequence] = {}  # in order of arrival
        self._answers: dict[str, list[Sequence]] = {}  # by request: those that have not ended, by index
        self._line = ClientLine()
        self._running: list[Sequence] = []  # oldest first
        self._n_arrived = 0
        self._lacking: list[str] = []  # what the next plan says of it
        self._rows = list(range(self.max_running))  # of the array of block tables: those that nobody has

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._answers

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __getitem__(self, key: Key) -> Sequence:
        return self._sequences[key]

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._line)

    @property
    def waits_for_masks(self) -> bool:
        """Whether a sequence that runs has no part of a step before its mask is there."""
        return any(sequence.late for sequence in self._running)

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
        self.prefixes.add(answers)
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
        """The next step; without chunks only when there is no sequence that can go on."""
        self._grow_tables()
        step = StepBudget(self.limits, self.embeddings, blocks_for=self.allocator.blocks_for)
        turns = self._line.clocks.turns()
        admission: StepAdmission | None = None
        running: dict[int, list[Sequence]] = {client: [] for client in turns}
        for sequence in self._running:
            if sequence.late:
                sequence.late = not sequence.history.ready
            if not sequence.late:
                running[sequence.client].append(sequence)
        for client in turns:
            complete = step.deal(running[client])
            if self._line.head(client) is not None:
                admission = admission or StepAdmission(
                    line=self._line, turns={name: i for i, name in enumerate(turns)}, running=self._running,
                    allocator=self.allocator, max_running=self.max_running, embeddings=self.embeddings.held,
                )  # fmt: skip
                self._admit_waiting(client, step, admission, answers_alone=not complete)
        inside = {s.request_id for s in self._running if s.media and s.n_computed < s.n_prompt}
        freed, offloaded = self.embeddings.plan(inside, step.encodes)
        chunks = tuple([self._chunk(sequence, stop, step.followers) for sequence, stop in step.parts])
        encodes, lacking, self._lacking = tuple(step.encodes), tuple(self._lacking), []
        return Plan(chunks=chunks, freed=freed, offloaded=offloaded, encodes=encodes, lacking=lacking)

    def commit(self, plan: Plan, outcome: Outcome) -> list[TokenEvent]:
        """Book a finished step, and drop what failed or ended. -> what each answer got, and how it ended, if it did."""
        self.embeddings.commit(outcome)
        for key in outcome.spoiled:  # whatever made them not finite is taken over by nobody
            self.prefixes.forget(self[key])
            self.embeddings.spoil(self[key].media)
        failed = outcome.failed_requests
        for request_id in failed:
            self.remove(request_id)
        events: list[TokenEvent] = []
        ended: list[Sequence] = []
        given: dict[int, int] = {}  # tokens that were computed for the first time, by client
        for chunk in plan.chunks:
            if chunk.request_id in failed:
                continue
            sequence = self._sequences[chunk.key]
            if chunk.stop > sequence.n_charged:  # what it took over, nobody computed
                new = chunk.stop - max(sequence.n_charged, chunk.start)
                given[sequence.client] = given.get(sequence.client, 0) + new
                sequence.n_charged = chunk.stop
            # A row that is drawn from before all masks are there is computed again.
            late = bool(outcome.late) and not outcome.late.isdisjoint(chunk.sampled_keys)
            sequence.n_computed, sequence.n_scored = chunk.stop - late, max(sequence.n_scored, chunk.scored[1])
            if chunk.start < sequence.n_prompt:
                self.prefixes.keep(sequence, chunk.start)
            for key in chunk.sampled_keys:
                if chunk.followers:  # the prompt was computed once, for all of them
                    sequence = self._sequences[key]
                    sequence.n_computed, sequence.n_charged = chunk.stop - late, max(sequence.n_charged, chunk.stop)
                    sequence.status = Status.RUNNING
                if not late:
                    events += self._append(sequence, outcome.tokens[key], ended)
                sequence.late = late or sequence.history.is_slow
        self._line.charge(given)
        for sequence in ended:
            self._forget(sequence)
        return events

    def _append(self, sequence: Sequence, tokens: Iterable[Token], ended: list[Sequence]) -> list[TokenEvent]:
        """What its answer got; one that ends with it is put to `ended`."""
        events: list[TokenEvent] = []
        for token in tokens:
            finish = sequence.append(token.id)
            events.append(TokenEvent(request_id=sequence.request_id, token=token, finish=finish, index=sequence.index))
            if finish is not None:
                ended.append(sequence)
                break
        return events

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
        if sorted(rows) != list(range(self.max_running)) or any(s.seat is None for s in self._running):
            raise BlockError("the rows of the block tables do not add up")
        self.embeddings.check_integrity(self._answers)

    def _forget(self, sequence: Sequence) -> None:
        siblings = self._answers[sequence.request_id]
        siblings.remove(sequence)
        del self._sequences[sequence.key]
        if sequence.status is Status.WAITING:
            self._line.take(sequence)
        else:
            self._running.remove(sequence)
        self._line.clocks.leave(sequence.client)
        self._give_back(sequence)
        self.prefixes.remove(sequence)
        if not siblings:
            del self._answers[sequence.request_id]
            self.embeddings.release(sequence.request_id)

    def _admit_waiting(self, client: int, step: StepBudget, admission: StepAdmission, *, answers_alone: bool) -> None:
        """Let in whoever of a client waits and fits; what they compute in this step is put to it.

        answers_alone: only those that have nothing to compute in it.
        """
        while (sequence := self._line.head(client)) is not None:
            leader = self._leader_of(sequence)
            if leader is not None and not step.ends(leader):
                return  # the prompt is computed once
            reserved = self.embeddings.reserves(sequence.request_id)
            if not reserved and self.embeddings.lacks(sequence.media):
                self.remove(sequence.request_id)
                self._lacking.append(sequence.request_id)
                continue
            if self.embeddings.spoiled and not reserved:
                media = self.embeddings.unspoiled(sequence.media)
                for answer in self._answers[sequence.request_id]:
                    answer.media = media
            if (leader is None and (answers_alone or step.room <= 0)) or (admission.closed and not reserved):
                return
            size = self.allocator.block_size
            shared = leader.block_table[: leader.n_prompt // size] if leader else self.prefixes.find(sequence)
            stop, encodes = step.reach(sequence, len(shared) * size)
            if leader is None and not step.names(stop):
                return
            needs: dict[Scarce, int] = {
                "seats": 1,
                "blocks": self.allocator.blocks_for(sequence.n_tokens) - self.allocator.n_held(shared),
                "embeddings": 0 if reserved else sequence.embedding_bytes,
            }
            victims = admission.room_for(client, needs, shared)
            if victims is None:
                return
            for victim in victims:
                self._preempt(victim)
                self.gave_way += 1
            self._line.take(sequence)
            self._admit(sequence, shared)
            admission.changed()
            if leader is None:
                step.give(sequence, stop, encodes)
            else:
                step.followers.setdefault(leader.key, []).append(sequence)

    def _leader_of(self, answer: Sequence) -> Sequence | None:
        """Who computes the prompt of this answer, that has nothing but it."""
        siblings = self._answers[answer.request_id] if answer.sampling.n > 1 and answer.is_fresh else ()
        return next((s for s in siblings if s.status is Status.RUNNING and s.is_fresh), None)

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
        if sequence.history.form is not None:
            sequence.history.form.end()
        # Of what was generated all at once: until it has ended, its client cannot go on with it.
        self.prefixes.keep(sequence, sequence.n_prompt)
        self.allocator.free(sequence.block_table)
        if sequence.seat is not None:
            self._rows.append(sequence.seat.row)
            sequence.seat = None

    def _admit(self, sequence: Sequence, shared: list[int]) -> None:
        sequence.block_table = self.allocator.allocate(sequence.n_tokens, shared)
        sequence.seat = Seat(self._rows.pop())
        sequence.n_computed = len(shared) * self.allocator.block_size
        sequence.status = Status.RUNNING
        if sequence.history.form is not None:
            sequence.history.form.begin()
        sequence.late = False
        sequence.n_waited = 0
        sequence.n_admitted = sequence.n_tokens
        insort(self._running, sequence, key=attrgetter("arrived"))
        if not self.embeddings.reserves(sequence.request_id):
            self.prefixes.count(sequence)
            self.embeddings.reserve(sequence.request_id, sequence.client, sequence.media, sequence.n_cached)

    def _chunk(self, sequence: Sequence, stop: int, followers: Mapping[Key, list[Sequence]]) -> Chunk:
        start, samples = sequence.n_computed, stop == sequence.n_tokens
        if start >= sequence.n_prompt:  # nothing of what concerns prompts
            return Chunk(request_id=sequence.request_id, index=sequence.index, start=start, stop=stop, samples=samples)
        others = followers.get(sequence.key, [])
        cut = sequence.n_prompt % self.allocator.block_size > 0  # the prompt ends inside a block, which answers fill on
        return Chunk(
            request_id=sequence.request_id, index=sequence.index, start=start, stop=stop, samples=samples,
            scored=sequence.scored_until(stop),
            followers=tuple(s.index for s in others),
            copies=tuple((sequence.block_table[-1], s.block_table[-1]) for s in others) if cut else (),
        )  # fmt: skip
