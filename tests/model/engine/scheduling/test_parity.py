"""Two clients, few seats and few blocks: answers give way to each other, and have the tokens that they have alone."""

import msgspec
import pytest

from model.engine.messages import SamplingParams
from model.net.multimodal import MultimodalLM
from tests.model.engine.engine_harness import GREEDY, Alone, EngineHarness, Parts, engine_at, picture
from tests.tables import each_of

pytestmark = pytest.mark.network

PARTS: dict[str, Parts] = {
    "picture": ["look: ", picture(60, 40, 1), "what is it?"],
    "short": ["one two three"],
    "long": ["one two three four five six seven eight nine ten"],
}
SEEDED = SamplingParams(max_tokens=40, temperature=1.2, top_k=40, top_p=0.95, seed=1234)
BLOCK = 4  # tokens


@each_of(
    ("tokens", "seqs", "room", "sampling"),
    [(2048, 4, 8, msgspec.structs.replace(GREEDY, max_tokens=40)), (7, 8, 3, SEEDED)],
    ids=["few seats, greedy", "few blocks, cut prompts, seeded"],
)
def test_who_gave_way_has_the_same_tokens(
    model: MultimodalLM, harness: EngineHarness, alone: Alone, tokens: int, seqs: int, room: int,
    sampling: SamplingParams,
) -> None:  # fmt: skip
    """One client asks for everything at once; of another one a chat comes from time to time.

    room: of the longest answers with their prompts, in the cache.
    """
    expected = {name: alone(parts, sampling) for name, parts in PARTS.items()}
    asked = {f"{name}-{i}-{client}": client for i in range(4) for name in PARTS for client in (1, 2)}
    generates = {name: harness.prepare(name, PARTS[name.partition("-")[0]], sampling) for name in asked}
    longest = max(len(generate.prepared.input_ids) for generate in generates.values()) + 40
    blocks = room * -(-longest // BLOCK)
    engine = engine_at(
        model, harness.root, tokens=tokens, seqs=seqs, block_size=BLOCK, kv_tokens=blocks * BLOCK, max_model_len=longest
    )
    for name, client in asked.items():
        if client == 1:
            harness.submit(engine, msgspec.structs.replace(generates[name], client=client))
    for name, client in asked.items():
        if client == 2:
            for _ in range(30):
                harness.book(engine.step())
                engine.check_integrity()
            harness.submit(engine, msgspec.structs.replace(generates[name], client=client))
    harness.run(engine)
    assert 1 < engine.stats.gave_way <= engine.stats.preemptions
    assert {name: harness.tokens(name) for name in asked} == {name: expected[name.partition("-")[0]] for name in asked}
    assert all(len(harness.read[name]) == 1 for name in asked if name.startswith("picture")), "each is read once"
    harness.assert_clean(engine)
