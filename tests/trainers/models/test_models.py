"""``evert.models``: several models in training, side by side on one base.

1. They share the base's weights, and each has an adapter and a name of its own.
2. Log-probabilities are arrays, one a target, and those that a sampler reports.
3. A model learns what it is given, and no other one does.
4. A step submits both of its requests before it waits; nothing to learn from is no step.
5. Seats are played by models of their own, which learn side by side.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker

import evert
from evert import InvalidDatasetError, InvalidModelError, Model, ModelInputError
from evert.bridge.tokens.renderer import prompt_renderer
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.loop.scoring import lesson_datum

NAMES = ("player", "judge")


@pytest.fixture(autouse=True)
def running(tmp_path: Path) -> Iterator[Engine]:
    """The embedded engine, training adapters."""
    with embedded_engine(tmp_path / "store", device="cpu", full_parameter=False) as engine:
        yield engine


async def pair() -> tuple[Model, Model]:
    player, judge = await evert.models("evert-tiny", NAMES, rank=4, learning_rate=0.01)
    return player, judge


def told(prompt: str, reply: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]


async def likelihood(model: Model, prompt: str = "Who?", reply: str = "Me.") -> float:
    [found] = await model.logprobs([prompt], [reply])
    return float(found.sum())


async def say_five(client: Any, task: str) -> float:
    """Earns as many points as its reply has fives."""
    completion = await client.chat.completions.create(messages=[{"role": "user", "content": task}])
    return float(str(completion.choices[0].message.content).count("5"))


async def duel(client: Any, task: str) -> dict[str, float]:
    player, judge = client.seat("player"), client.seat("judge")
    await player.chat.completions.create(messages=[{"role": "user", "content": task}])
    await judge.chat.completions.create(messages=[{"role": "user", "content": task}])
    return {"player": 1.0, "judge": 0.5}


# -- 1. opening ------------------------------------------------------------------------------------


async def test_models_share_the_weights_of_the_base() -> None:
    places = []
    for model in await pair():
        trained: Any = model.client
        weights = trained._run.trainer.model.state_dict()
        places.append({w.data_ptr() for name, w in weights.items() if "lora" not in name})

    assert places[0] == places[1]
    assert len(places[0]) > 10


async def test_models_have_their_names_and_rank_and_know_their_context() -> None:
    models = await pair()

    assert [model.name for model in models] == ["player", "judge"]
    assert [model.client.get_info().lora_rank for model in models] == [4, 4]
    assert {model.context_length for model in models} == {8192}


@pytest.mark.parametrize("names", ["ab", (), ("one", "one")])
async def test_models_need_different_names(names: Any) -> None:
    with pytest.raises(InvalidModelError, match="expected one different name a model"):
        await evert.models("evert-tiny", names)


async def test_a_base_that_is_trained_whole_is_in_memory_once_a_model_which_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), embedded_engine(tmp_path / "whole", device="cpu"):
        await evert.models("evert-tiny", NAMES, rank=4)

    assert "trains all weights of evert-tiny, so that rank=4 counts for nothing" in caplog.text


# -- 2. log-probabilities --------------------------------------------------------------------------


async def test_log_probabilities_are_those_that_a_sampler_reports() -> None:
    model, _ = await pair()
    prompts, targets = [[5, 6, 7], [8, 9]], [[10, 11], [12, 13, 14, 15]]

    found = await model.logprobs(prompts, targets)

    assert [each.shape for each in found] == [(2,), (4,)]
    sampler = await model.sampler()
    for prompt, target, ours in zip(prompts, targets, found, strict=True):
        whole = tinker.ModelInput.from_ints([*prompt, *target])
        theirs = await sampler.compute_logprobs(whole)
        np.testing.assert_allclose(ours, np.array(theirs[len(prompt) :], float), atol=1e-4)


async def test_a_text_is_a_users_message_and_its_target_the_reply_with_its_end() -> None:
    model, _ = await pair()
    tokenizer: Any = model.renderer.tokenizer
    asked = tokenizer.encode("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    reply = tokenizer.encode("Me.<|im_end|>")

    texts, messages, ids = await model.logprobs(
        ["Who?", [{"role": "user", "content": "Who?"}], asked], ["Me.", "Me.", reply]
    )

    np.testing.assert_allclose(texts, ids, atol=1e-5)
    np.testing.assert_allclose(messages, ids, atol=1e-5)
    assert await model.logprobs([], []) == []


async def test_text_that_names_a_control_token_stays_text() -> None:
    model, _ = await pair()
    end = model.renderer.tokenizer.encode("<|im_end|>")

    [spelled, real] = await model.logprobs(["Who?", "Who?"], ["<|im_end|>", end])

    assert len(real) == 1
    assert len(spelled) > 5


async def test_prompts_and_targets_come_in_pairs_and_hold_something() -> None:
    model, _ = await pair()

    with pytest.raises(ModelInputError, match="expected a list of each, of one length"):
        await model.logprobs(["Who?"], [])
    with pytest.raises(ModelInputError, match="expected a list of each, of one length"):
        await model.logprobs("Who?", "Me.!")
    with pytest.raises(ModelInputError, match="a prompt of 0 tokens and a target of 2"):
        await model.logprobs([[]], [[1, 2]])


# -- 3. learning -----------------------------------------------------------------------------------


async def test_a_model_learns_what_it_is_told_and_the_other_one_does_not() -> None:
    player, judge = await pair()
    before = await likelihood(player)

    steps = [await player.sft([told("Who?", "Me.")]) for _ in range(3)]

    assert await likelihood(player) > before + 1
    assert await likelihood(judge) == pytest.approx(before, abs=1e-4)
    assert steps[2]["nll"] < steps[0]["nll"]
    assert steps[0]["optim/grad_norm"] > 0


async def test_a_prompt_and_its_reply_are_learned_as_the_conversation_they_are() -> None:
    player, judge = await pair()

    as_pair = await player.sft([("Who?", "Me."), ([{"role": "user", "content": "So?"}], "No.")])
    as_messages = await judge.sft([told("Who?", "Me."), told("So?", "No.")])

    assert as_pair == pytest.approx(as_messages, rel=1e-4)
    assert await likelihood(player) == pytest.approx(await likelihood(judge), abs=1e-3)


async def test_of_a_pair_the_reply_alone_is_learned() -> None:
    player, _ = await pair()
    renderer = prompt_renderer(player.renderer)
    talk = [*told("Who?", "Me."), {"role": "user", "content": "So?"}]
    whole: list[Any] = [*talk, {"role": "assistant", "content": "No."}]

    def learned(lesson: Any) -> int:
        return int((lesson_datum(renderer, lesson).loss_fn_inputs["weights"].to_numpy() > 0).sum())

    assert learned((talk, "No.")) == 3
    assert learned(whole) == 7


async def test_what_nobody_says_cannot_be_learned() -> None:
    model, _ = await pair()

    with pytest.raises(ModelInputError, match="a conversation in which user speaks"):
        await model.sft([[{"role": "user", "content": "Who?"}]])
    assert await model.sft([]) == {}


async def test_a_model_earns_more_where_its_steps_are_on_what_it_earned() -> None:
    model, _ = await pair()
    tasks = ["Guess a number between 1 and 999."] * 4
    rewards = []
    for step in range(5):
        batch = await model.rollout(say_five, tasks, group_size=8, max_tokens=12, seed=step)
        rewards.append(batch.rewards.mean())
        await model.step(batch, loss="importance_sampling", learning_rate=0.02)

    assert rewards[-1] > rewards[0] + 0.3


# -- 4. a step -------------------------------------------------------------------------------------


class Watched:
    """A training client whose requests and waits are written down."""

    def __init__(self, client: Any, seen: list[str]) -> None:
        self._client, self._seen = client, seen

    def __getattr__(self, name: str) -> Any:
        async def wait(request: Any) -> Any:
            self._seen.append(f"{name} awaited")
            return await request

        def ask(*args: Any, **kwargs: Any) -> Any:
            self._seen.append(name)
            return wait(getattr(self._client, name)(*args, **kwargs))

        return ask


async def test_both_requests_of_a_step_are_made_before_either_is_waited_for() -> None:
    model, _ = await pair()
    seen: list[str] = []
    watched: Any = Watched(model.client, seen)
    model.client = watched

    await model.sft([told("Who?", "Me.")])

    assert seen == [
        "forward_backward", "optim_step", "forward_backward awaited", "optim_step awaited"
    ]  # fmt: skip


async def test_nothing_to_learn_from_is_no_step() -> None:
    model, _ = await pair()
    before = await likelihood(model)

    assert await model.step([]) == {}
    assert await likelihood(model) == before


async def test_a_sampler_is_of_the_weights_it_was_asked_for_and_made_once() -> None:
    model, _ = await pair()

    first = await model.sampler()
    assert await model.sampler() is first
    await model.sft([told("Who?", "Me.")])

    assert await model.sampler() is not first


# -- 5. seats --------------------------------------------------------------------------------------


async def test_each_seat_is_played_by_a_model_of_its_own() -> None:
    player, judge = await pair()
    await judge.sft([told("Who?", "Me.")], learning_rate=0.02)

    batch = await evert.rollout(
        duel, ["Who?"], seats={"player": player, "judge": judge}, group_size=2, max_tokens=8
    )

    for name, model, other in (("player", player, judge), ("judge", judge, player)):
        turns = [episode.transitions[0] for episode in batch.seats[name].trajectories[0] if episode]
        prompts, replies = [t.ob.to_ints() for t in turns], [t.ac.tokens for t in turns]
        sampled = np.concatenate([turn.ac.logprobs for turn in turns])
        own = np.concatenate(await model.logprobs(prompts, replies))
        others = np.concatenate(await other.logprobs(prompts, replies))
        np.testing.assert_allclose(sampled, own, atol=1e-3)
        assert np.abs(sampled - others).max() > 0.01


async def test_the_models_of_the_seats_learn_side_by_side() -> None:
    player, judge = await pair()
    batch = await evert.rollout(
        duel, ["Who?"], seats={"player": player, "judge": judge}, group_size=2, max_tokens=8
    )
    before = await likelihood(player), await likelihood(judge)

    learned = await asyncio.gather(
        player.step(batch.seats["player"], advantages=[[1.0, 1.0]]),
        judge.step(batch.seats["judge"], advantages=[[-1.0, 1.0]]),
    )

    assert all(each["optim/grad_norm"] > 0 for each in learned)
    after = await likelihood(player), await likelihood(judge)
    assert after[0] != before[0]
    assert after[1] != before[1]
    assert after[0] != after[1]


async def test_seats_are_of_models_on_one_base() -> None:
    player, _ = await pair()
    [judge] = await evert.models("evert-tiny-20q", ("judge",), rank=4)

    with pytest.raises(InvalidDatasetError, match="models on different bases"):
        await evert.rollout(duel, ["Who?"], seats={"player": player, "judge": judge})
    with pytest.raises(InvalidDatasetError, match="rollout got no policy"):
        await evert.rollout(duel, ["Who?"])
