"""Random sampling requests give the same replies and scores as transformers.

The requests vary in shared prefixes, number of samples, length, temperature, truncation, stops and
seeds. They arrive in bursts and while other requests run, and are followed by another turn and by
scoring. Models of each family use the fused or the generic path, and several adapters run at once.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nightly import draws
from tests.trainers.engine.sampling.oracle import GENERIC, LEAN, VOCABULARY, World, key_of
from tests.trainers.engine.training.test_trainer import some
from tinker import types

WORLDS = [
    "qwen3 by the fused path",
    "qwen3 by the generic path",
    "adapters of one base",
    "adapters beside learned positions",
    *LEAN,
    *GENERIC,
]
BEGINNINGS = [some(130, 1, high=VOCABULARY), some(40, 2, high=VOCABULARY), []]

prompts = st.builds(
    lambda beginning, shared, rest, seed: beginning[:shared] + some(rest, seed, high=VOCABULARY),
    st.sampled_from(BEGINNINGS),
    st.sampled_from([2, 40, 130]),
    st.integers(1, 9) | st.just(40),
    st.integers(0, 2),
)
stops = st.sampled_from([None, [], [7, 8, 9, *range(20, 30)], [40], "a", ["5", "Q", "bc"], ["%&"]])
shapes = st.builds(
    lambda stop, **fields: types.SamplingParams(stop=stop, **fields),
    stops,
    max_tokens=st.integers(1, 14),
    temperature=st.sampled_from([1.0, 1.0, 0.0, 0.5, 2.0]),
    top_k=st.sampled_from([-1, -1, 5, 40]),
    top_p=st.sampled_from([1.0, 1.0, 0.8, 0.3]),
    seed=st.sampled_from([None, None, 0, 5]),
)
request = st.tuples(st.integers(0, 3), prompts, st.integers(1, 3), shapes, st.booleans())


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest, tiny_model: str) -> World:
    return World(request.param, tiny_model)


@settings(max_examples=draws(30), deadline=None)
@given(
    requests=st.lists(request, min_size=1, max_size=8),
    room=st.sampled_from([10**6, 10**6, 90, 0]),
    chunk=st.sampled_from([1024, 64]),
    stems=st.booleans(),
    last=st.sampled_from([None, 5, 1]),
)
def test_replies_and_scores_match_transformers(
    world: World, requests: list[Any], room: int, chunk: int, stems: bool, last: int | None
) -> None:
    before: Counter[tuple[int, ...]] = Counter()

    def ask(prompt: list[int], params: types.SamplingParams) -> int:
        """Return how often this prompt has already been sampled without a seed."""
        key = (number, *prompt)
        before[key] += params.seed is None
        return before[key] - 1

    with world.samplers(room, chunk, stems=stems) as samplers:
        waiting = []
        for which, prompt, count, params, waits in requests:
            number = which % len(samplers)
            times = ask(prompt, params)
            future = samplers[number].sample(prompt, count, params)
            waiting.append((number, prompt, params, times, future))
            if waits:
                waiting[len(waiting) // 2][-1].result(timeout=60)
        for number, prompt, params, times, future in waiting:
            for index, reply in enumerate(future.result(timeout=60)):
                world.check(number, prompt, params, key_of(prompt, params, times, index), reply)
        for number, prompt, params, _, future in waiting[:4]:
            follow = [*prompt, *future.result()[0].tokens, 1, 2]
            times = ask(follow, params)
            scored = samplers[number].score(follow, last)
            [reply] = samplers[number].sample(follow, 1, params).result(timeout=60)
            world.check(number, follow, params, key_of(follow, params, times, 0), reply)
            known = min(last or len(follow), len(follow) - 1)
            values, expected = scored.result(timeout=60), world.scores(number, follow)
            assert values[:-known] == [None] * (len(follow) - known)
            assert values[-known:] == pytest.approx(expected[-known:], abs=2e-4)
