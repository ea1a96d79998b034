"""``evert.rollout`` returns episodes as arrays, and as data for ``forward_backward``."""

import asyncio
from typing import Any

import numpy as np
import pytest
import tinker
from tests.kit import ask, assistant, system, user
from tests.trainers.kit import sampler_of
from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
from tinker_cookbook.rl.rollouts import do_group_rollout

import evert
from evert import (
    AdvantagesError,
    AgentError,
    ChatAgentGroupBuilder,
    Group,
    InvalidDatasetError,
    ScriptedPolicy,
)
from evert.bridge.tokens.bases import base_path, base_tokenizer, model_renderer
from evert.trainers.serving.service import PolicyService

NAN = float("nan")
SEATS = ("player", "judge")


async def talker(client: Any, turns: int) -> float:
    """Play ``turns`` turns. Each earns its number, and the episode earns 10 at the end."""
    messages: list[dict[str, str]] = []
    for number in range(turns):
        await go_on(client, messages)
        client.reward(number)
    return 10.0


async def go_on(client: Any, messages: list[dict[str, str]]) -> None:
    messages.append(user("go on"))
    messages.append(assistant(await ask(client, *messages)))


async def two_speakers(client: Any, turns: int) -> float:
    """Alternate between two conversations, both of which are trained on."""
    first, second = [system("one")], [system("two")]
    for number in range(turns):
        await go_on(client, first)
        client.reward(number)
        await go_on(client, second)
    return 5.0


async def duel(client: Any, task: str) -> dict[str, float]:
    reply = await ask(client.seat("player"), task)
    await ask(client.seat("judge"), f"Is it {reply}?")
    return {"player": float(len(reply)), "judge": 0.5}


def counting() -> ScriptedPolicy:
    """Return a policy that replies "x", then "xx", and so on."""
    policy = ScriptedPolicy(lambda prompt: "x" * (len(policy.actions) + 1))
    return policy


def advantages_of(datum: tinker.Datum) -> list[float]:
    """Return the advantages of the sampled tokens."""
    inputs = {name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()}
    assert inputs.keys() == {"target_tokens", "logprobs", "advantages"}
    sampled = inputs["logprobs"] != 0
    assert not inputs["advantages"][~sampled].any()
    return [float(value) for value in inputs["advantages"][sampled]]


async def test_a_batch_has_rewards_per_episode_and_per_turn() -> None:
    batch = await evert.rollout(talker, [1, 3], ScriptedPolicy(lambda _: "so"), group_size=2)
    assert batch.rewards.tolist() == [[10, 10], [13, 13]]
    np.testing.assert_equal(batch.turn_rewards, [[[10, NAN, NAN]] * 2, [[0, 1, 12]] * 2])
    assert batch.turns.tolist() == [[1, 1], [3, 3]]
    assert [len(episode.transitions) for episode in batch.trajectories[1] if episode] == [3, 3]
    assert batch.metrics()["env/all/reward/total"] == 11.5
    assert batch.seats == {}
    by_place: Any = {"group_reward": lambda group: range(len(group))}
    batch = await evert.rollout(talker, [2], counting(), group_size=2, **by_place)
    assert batch.turn_rewards.tolist() == [[[0, 11], [0, 12]]]


async def test_turns_are_in_playing_order_and_trajectories_in_lineage_order() -> None:
    batch = await evert.rollout(two_speakers, [2], counting(), group_size=1)
    assert batch.turn_rewards.tolist() == [[[0, 0, 1, 5]]]
    [[trajectory]] = batch.trajectories
    assert trajectory is not None
    lengths = [len(turn.ac.tokens) for turn in trajectory.transitions]
    assert sorted(lengths) == batch.tokens[0][0] != lengths


async def test_data_and_advantages_equal_the_cookbooks() -> None:
    builder = ChatAgentGroupBuilder(two_speakers, 3, group_size=2)
    group = await do_group_rollout(builder, counting())
    theirs, _ = assemble_training_data([group], compute_advantages([group]))
    batch = await evert.rollout(two_speakers, [3], counting(), group_size=2)
    ours = batch.data()
    assert len(ours) == len(theirs) == 4
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.model_input.to_ints() == their.model_input.to_ints()
        for name, tensor in mine.loss_fn_inputs.items():
            expected = their.loss_fn_inputs[name].to_numpy()
            np.testing.assert_allclose(tensor.to_numpy(), expected, atol=1e-6)


async def test_a_function_may_compute_the_advantages_of_each_group() -> None:
    def of_task(group: Group) -> Any:
        return group.rewards * 0 + group.task

    batch = await evert.rollout(talker, [1, 2], counting(), group_size=2)
    assert [{*advantages_of(datum)} for datum in batch.data(of_task)] == [{1}, {1}, {2}, {2}]


async def test_each_turn_has_its_own_advantage_in_its_lineages_datum() -> None:
    batch = await evert.rollout(two_speakers, [2], counting(), group_size=1)
    first, second = batch.data([[[1, 2, 3, 4]]])
    # replies of 1, 2, 3 and 4 letters in playing order, each with an end-of-turn token
    lengths = dict(zip((1, 2, 3, 4), batch.tokens[0][0], strict=True))
    assert advantages_of(first) == [1.0] * lengths[1] + [3.0] * lengths[3]
    assert advantages_of(second) == [2.0] * lengths[2] + [4.0] * lengths[4]


@pytest.mark.parametrize("ragged", [True, False])
async def test_a_users_advantages_may_be_per_episode_turn_or_token(ragged: bool) -> None:
    batch = await evert.rollout(talker, [1, 2], ScriptedPolicy(lambda _: "so"), group_size=2)
    tokens = batch.tokens[0][0][0]
    by_episode = [[1, 2], [3, 4]]
    by_turn = [[[1], [2]], [[3, 5], [4, 6]]] if ragged else batch.turn_rewards * 0 + 1
    by_token = [[[list(range(tokens))]] * 2, [[list(range(tokens))] * 2] * 2]
    expected = [[1] * tokens, [2] * tokens, [3] * 2 * tokens, [4] * 2 * tokens]
    assert [advantages_of(datum) for datum in batch.data(by_episode)] == expected
    last = advantages_of(batch.data(by_turn)[-1])
    assert last == ([4.0] * tokens + [6.0] * tokens if ragged else [1.0] * 2 * tokens)
    assert advantages_of(batch.data(by_token)[-1]) == [*range(tokens), *range(tokens)]


async def test_each_seat_has_its_own_rewards_and_baseline() -> None:
    batch = await evert.rollout(duel, ["Go."], counting(), group_size=3, seats=SEATS)
    player, judge = batch.seats["player"], batch.seats["judge"]
    assert judge.rewards.tolist() == [[0.5] * 3]
    assert len(set(player.rewards[0])) == 3
    np.testing.assert_allclose(batch.rewards, (player.rewards + 0.5) / 2)
    assert {value for datum in judge.data() for value in advantages_of(datum)} == {0.0}
    means = [advantages_of(datum)[0] for datum in player.data()]
    np.testing.assert_allclose(means, player.rewards[0] - player.rewards.mean(), atol=1e-6)
    assert len(batch.data()) == 6
    metrics = batch.metrics()
    assert metrics["env/judge/reward/total"] == 0.5
    assert metrics["env/player/reward/total"] == player.rewards.mean()
    by_seat = batch.data({"player": [[2.0] * 3], "judge": lambda group: [3.0] * 3})
    assert [{*advantages_of(datum)} for datum in by_seat] == [{2.0}] * 3 + [{3.0}] * 3


async def test_each_seat_may_have_its_own_policy() -> None:
    policies = {seat: ScriptedPolicy(lambda _, seat=seat: seat) for seat in SEATS}  # type: ignore[misc]
    batch = await evert.rollout(duel, ["Go."], policies, group_size=2)
    assert batch.seats["player"].rewards.tolist() == [[len("player")] * 2]
    assert all("Is it player?" in prompt for prompt in policies["judge"].prompts)


async def test_advantages_of_the_wrong_shape_are_refused_with_the_expected_shape() -> None:
    batch = await evert.rollout(talker, [1, 2], counting(), group_size=3)
    seats = await evert.rollout(duel, ["Go."], counting(), group_size=1, seats=SEATS)
    message = r"advantages: got shape \(2,\); expected \[P, G\] = \(2, 3\) \(per episode"
    with pytest.raises(AdvantagesError, match=message):
        batch.data([1.0, 2.0])
    with pytest.raises(AdvantagesError, match="advantages has the seats player, but the batch has"):
        seats.data({"player": "group"})
    with pytest.raises(AttributeError, match=r"Use batch.seats\['player'\]"):
        seats.turn_rewards  # noqa: B018 (the property raises)
    with pytest.raises(InvalidDatasetError, match="policy has the seats a, but the agent has"):
        await evert.rollout(duel, ["Go."], {"a": counting()}, seats=SEATS)
    with pytest.raises(InvalidDatasetError, match="at least one task"):
        await evert.rollout(talker, [], counting())


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ({"a": 1}, "tasks is a dict; expected a sequence"),
        (iter([1]), "tasks is a list_iterator; expected a sequence"),
        (7, "tasks is a int; expected a sequence"),
        ("abc", "Got 'abc' for the tasks; expected an import"),
    ],
)
async def test_invalid_tasks_are_refused(tasks: Any, text: str) -> None:
    with pytest.raises(InvalidDatasetError, match=text):
        await evert.rollout(talker, tasks, counting())


@pytest.mark.parametrize("policy", ["evert-tiny", len, [1]])
async def test_an_invalid_policy_is_refused(policy: Any) -> None:
    with pytest.raises(InvalidDatasetError, match=r"The policy is .*; expected a sampling cl"):
        await evert.rollout(talker, [1], policy)


async def picky(client: Any, task: str) -> float:
    reply = await ask(client, task)
    if reply == "xx":
        raise ValueError(reply)
    return 1.0


async def test_a_failed_episode_is_left_out_and_counted() -> None:
    batch = await evert.rollout(picky, ["a"], counting(), group_size=3)
    np.testing.assert_equal(batch.rewards, [[1.0, NAN, 1.0]])
    assert batch.trajectories[0][1] is None
    assert batch.failures.count == 1
    assert "ValueError: xx" in batch.failures.found[0][0].error
    assert len(batch.data([[5.0, NAN, 6.0]])) == len(batch.data()) == 2


async def test_a_batch_without_a_usable_episode_raises() -> None:
    async def broken(client: Any, task: str) -> float:
        raise KeyError(task)

    class Unwell(TokenCompleter):
        async def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise ConnectionError("no answer")

    with pytest.raises(AgentError, match=r"All episodes failed: .*KeyError"):
        await evert.rollout(broken, ["a"], counting(), group_size=2)
    with pytest.raises(ConnectionError, match="no answer"):
        await evert.rollout(talker, [1], Unwell(), group_size=2)


async def test_a_sampling_client_samples_with_the_seed_and_the_data_can_be_trained_on(
    engine: Any,
) -> None:
    trainer = await tinker.ServiceClient().create_lora_training_client_async("evert-tiny", rank=4)
    policy = await trainer.save_weights_and_get_sampling_client_async()

    async def played(seed: int) -> Any:
        return await evert.rollout(talker, [2, 1], policy, group_size=2, max_tokens=4, seed=seed)

    def sampled(batch: evert.Batch) -> list[list[int]]:
        return [datum.loss_fn_inputs["target_tokens"].tolist() for datum in batch.data()]

    same, again, other = await asyncio.gather(played(1), played(1), played(2))
    assert sampled(same) == sampled(again) != sampled(other)
    assert max(count for task in same.tokens for episode in task for count in episode) == 4

    future = await trainer.forward_backward_async(same.data(gamma=1.0), "importance_sampling")
    assert len((await future).loss_fn_outputs) == len(same.data())


async def test_prompts_use_the_tokenizer_of_the_first_sampled_model(engine: Any) -> None:
    base = "evert-tiny-20q"
    client = sampler_of(base)
    script = ScriptedPolicy(lambda _: "so", model_renderer(base))
    expected = base_tokenizer(base).encode("<|im_start|>user\nGo.<|im_end|>\n")
    with PolicyService() as service:
        for sampled in (client, service.offer(client)):
            seats = {"player": script, "judge": sampled}
            batch = await evert.rollout(duel, ["Go."], seats=seats, group_size=1, max_tokens=2)
            [[trajectory]] = batch.seats["player"].trajectories
            assert trajectory is not None
            assert trajectory.transitions[0].ob.to_ints()[: len(expected)] == expected


async def test_seats_on_different_bases_are_refused(engine: Any) -> None:
    player, judge, alike = [
        sampler_of(base) for base in ("evert-tiny", "evert-tiny-20q", str(base_path("evert-tiny")))
    ]
    with PolicyService() as served:
        for pair in ((player, judge), (served.offer(player), served.offer(judge))):
            named: Any = dict(zip(("player", "judge"), pair, strict=True))
            with pytest.raises(InvalidDatasetError, match="different base models .*same tokens"):
                await evert.rollout(duel, ["Go."], seats=named)
    seats = {"player": player, "judge": alike}
    assert await evert.rollout(duel, ["Go."], seats=seats, group_size=1, max_tokens=2)


async def test_the_seed_of_a_batch_determines_the_seeds_of_its_agents() -> None:
    async def draws(client: Any, task: str) -> float:
        await ask(client, task)
        return float(client.seed)

    policy = ScriptedPolicy(lambda _: "!")
    first, again, other = [
        await evert.rollout(draws, ["a", "b"], policy, group_size=2, seed=seed)
        for seed in (1, 1, 2)
    ]

    assert first.rewards.tolist() == again.rewards.tolist()
    drawn = {*first.rewards.ravel().tolist(), *other.rewards.ravel().tolist()}
    assert len(drawn) == 8
