"""``evert.models``: several models trained on one base."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tests.bridge.tokens.test_images import chunks, data_url, seen, vision
from tests.kit import ask, assistant, user

import evert
from evert import InvalidDatasetError, InvalidModelError, Model, ModelInputError
from evert.bridge.tokens.renderer import prompt_renderer
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.loop.scoring import lesson_datum, target_datum

NAMES = ("player", "judge")


@pytest.fixture(autouse=True)
def running(tmp_path: Path) -> Iterator[Engine]:
    with embedded_engine(tmp_path / "store", device="cpu", full_parameter=False) as engine:
        yield engine


async def pair() -> tuple[Model, Model]:
    player, judge = await evert.models("evert-tiny", NAMES, rank=4, learning_rate=0.01)
    return player, judge


def told(prompt: str, reply: str) -> list[dict[str, str]]:
    return [user(prompt), assistant(reply)]


async def likelihood(model: Model, prompt: str = "Who?", reply: str = "Me.") -> float:
    [logprobs] = await model.logprobs([prompt], [reply])
    return float(logprobs.sum())


async def say_five(client: Any, task: str) -> float:
    """Earn one point for each digit 5 in the reply."""
    return float((await ask(client, task)).count("5"))


async def duel(client: Any, task: str) -> dict[str, float]:
    await ask(client.seat("player"), task)
    await ask(client.seat("judge"), task)
    return {"player": 1.0, "judge": 0.5}


async def test_models_share_the_weights_of_their_base() -> None:
    models, places = await pair(), []
    for model in models:
        trained: Any = model.client
        weights = trained._run.trainer.model.state_dict()
        places.append({w.data_ptr() for name, w in weights.items() if "lora" not in name})
    assert places[0] == places[1]
    assert len(places[0]) > 10
    assert [model.name for model in models] == ["player", "judge"]
    assert [model.client.get_info().lora_rank for model in models] == [4, 4]
    assert {model.context_length for model in models} == {8192}


@pytest.mark.parametrize("names", ["ab", (), ("one", "one")])
async def test_models_need_different_names(names: Any) -> None:
    with pytest.raises(InvalidModelError, match="expected a unique name for each model"):
        await evert.models("evert-tiny", names)


async def test_seats_need_models_of_one_base() -> None:
    player, _ = await pair()
    [judge] = await evert.models("evert-tiny-20q", ("judge",), rank=4)
    with pytest.raises(InvalidDatasetError, match="models have different base models"):
        await evert.rollout(duel, ["Who?"], seats={"player": player, "judge": judge})
    with pytest.raises(InvalidDatasetError, match="rollout got no policy"):
        await evert.rollout(duel, ["Who?"])


async def test_an_ignored_rank_gives_a_warning(tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING), embedded_engine(tmp_path / "whole", device="cpu"):
        await evert.models("evert-tiny", NAMES, rank=4)
    assert "trains all weights of evert-tiny, so rank=4 is ignored" in caplog.text


async def test_log_probabilities_match_those_of_a_sampler() -> None:
    model, _ = await pair()
    prompts, targets = [[5, 6, 7], [8, 9]], [[10, 11], [12, 13, 14, 15]]
    logprobs = await model.logprobs(prompts, targets)
    assert [row.shape for row in logprobs] == [(2,), (4,)]
    sampler = await model.sampler()
    assert await model.sampler() is sampler
    for prompt, target, ours in zip(prompts, targets, logprobs, strict=True):
        whole = tinker.ModelInput.from_ints([*prompt, *target])
        theirs = await sampler.compute_logprobs(whole)
        np.testing.assert_allclose(ours, np.array(theirs[len(prompt) :], float), atol=1e-4)


async def test_a_text_prompt_is_a_user_message_and_a_text_target_the_complete_reply() -> None:
    model, _ = await pair()
    tokenizer: Any = model.renderer.tokenizer
    prompt = tokenizer.encode("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    reply, end = tokenizer.encode("Me.<|im_end|>"), tokenizer.encode("<|im_end|>")
    texts, messages, ids, spelled, real = await model.logprobs(
        ["Who?", [user("Who?")], prompt, "Who?", "Who?"], ["Me.", "Me.", reply, "<|im_end|>", end]
    )
    np.testing.assert_allclose(texts, ids, atol=1e-5)
    np.testing.assert_allclose(messages, ids, atol=1e-5)
    assert len(real) == 1
    assert len(spelled) > 5  # special-token strings are encoded as plain text
    assert await model.logprobs([], []) == []


async def test_invalid_prompts_and_data_are_refused_without_taking_a_step() -> None:
    model, _ = await pair()
    before = await likelihood(model)
    for prompts, targets, text in (
        (["Who?"], [], "expected two lists of the same length"),
        ("Who?", "Me.!", "expected two lists of the same length"),
        ([[]], [[1, 2]], "a prompt with 0 tokens and a target with 2"),
    ):
        with pytest.raises(ModelInputError, match=text):
            await model.logprobs(prompts, targets)
    with pytest.raises(ModelInputError, match="a conversation with the roles: user"):
        await model.sft([[user("Who?")]])
    assert await model.sft([]) == await model.step([]) == {}
    assert await likelihood(model) == before


async def test_sft_trains_only_its_own_model() -> None:
    player, judge = await pair()
    before = await likelihood(player)
    steps = [await player.sft([told("Who?", "Me.")]) for _ in range(3)]
    assert await likelihood(player) > before + 1
    assert await likelihood(judge) == pytest.approx(before, abs=1e-4)
    assert steps[2]["nll"] < steps[0]["nll"]
    assert steps[0]["optim/grad_norm"] > 0


async def test_sft_on_a_pair_equals_sft_on_the_conversation() -> None:
    player, judge = await pair()
    as_pair = await player.sft([("Who?", "Me."), ([user("So?")], "No.")])
    as_messages = await judge.sft([told("Who?", "Me."), told("So?", "No.")])
    assert as_pair == pytest.approx(as_messages, rel=1e-4)
    assert await likelihood(player) == pytest.approx(await likelihood(judge), abs=1e-3)
    renderer, talk = prompt_renderer(player.renderer), [*told("Who?", "Me."), user("So?")]
    pair_and_whole: list[Any] = [(talk, "No."), [*talk, assistant("No.")]]
    data = [lesson_datum(renderer, lesson) for lesson in pair_and_whole]
    learned = [int((datum.loss_fn_inputs["weights"].to_numpy() > 0).sum()) for datum in data]
    assert learned == [3, 7]  # for a pair, only the reply is trained on


@pytest.mark.parametrize("target", ["Red.", [7, 8]])
def test_an_image_stays_in_the_prompt_of_a_text_or_token_target(target: Any) -> None:
    datum = target_datum(prompt_renderer(vision()), seen(data_url()), target)
    assert len(chunks(datum.model_input)) == 1
    weights = datum.loss_fn_inputs["weights"].to_numpy()
    assert len(weights) == datum.model_input.length > weights.sum() > 1


async def test_steps_on_rollouts_raise_the_reward() -> None:
    model, _ = await pair()
    tasks = ["Guess a number between 1 and 999."] * 4
    rewards = []
    for step in range(5):
        batch = await model.rollout(say_five, tasks, group_size=8, max_tokens=12, seed=step)
        rewards.append(batch.rewards.mean())
        await model.step(batch, loss="importance_sampling", learning_rate=0.02)
    assert rewards[-1] > rewards[0] + 0.3


class Watched:
    """A training client that records each request, and the moment when its result is awaited."""

    def __init__(self, client: Any) -> None:
        self._client, self.seen = client, list[str]()

    def __getattr__(self, name: str) -> Any:
        async def wait(request: Any) -> Any:
            self.seen.append(f"{name} awaited")
            return await request

        def ask(*args: Any, **kwargs: Any) -> Any:
            self.seen.append(name)
            return wait(getattr(self._client, name)(*args, **kwargs))

        return ask


async def test_a_step_sends_both_requests_before_it_awaits_them() -> None:
    model, _ = await pair()
    sampler = await model.sampler()
    watched: Any = Watched(model.client)
    model.client = watched
    await model.sft([told("Who?", "Me.")])
    assert watched.seen == [
        "forward_backward", "optim_step", "forward_backward awaited", "optim_step awaited"
    ]  # fmt: skip
    assert await model.sampler() is not sampler  # a new one for the new weights


async def test_each_seat_may_have_its_own_trained_model() -> None:
    player, judge = await pair()
    await judge.sft([told("Who?", "Me.")], learning_rate=0.02)
    batch = await evert.rollout(
        duel, ["Who?"], seats={"player": player, "judge": judge}, group_size=2, max_tokens=8
    )
    for name, model, other in (("player", player, judge), ("judge", judge, player)):
        turns = [episode.transitions[0] for episode in batch.seats[name].trajectories[0] if episode]
        prompts, replies = [t.ob.to_ints() for t in turns], [t.ac.tokens for t in turns]
        sampled = np.concatenate([turn.ac.logprobs for turn in turns])
        logprobs = np.concatenate(await model.logprobs(prompts, replies))
        others = np.concatenate(await other.logprobs(prompts, replies))
        np.testing.assert_allclose(sampled, logprobs, atol=1e-3)
        assert np.abs(sampled - others).max() > 0.01
    before = await likelihood(player), await likelihood(judge)
    learned = await asyncio.gather(
        player.step(batch.seats["player"], advantages=[[1.0, 1.0]]),
        judge.step(batch.seats["judge"], advantages=[[-1.0, 1.0]]),
    )
    assert all(metrics["optim/grad_norm"] > 0 for metrics in learned)
    after = await likelihood(player), await likelihood(judge)
    assert len({*before, *after}) == 4
