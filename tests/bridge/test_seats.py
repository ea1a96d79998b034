"""Seats: an agent with several trained roles gives one Env a role.

1. Each role's calls are the observations of its own Env, under the Cookbook's unchanged runner.
2. Rewards and notes are the role's own; one number is for all. Each role has a baseline.
3. What ends an episode at one seat ends it at all, and each is told.
4. A seat that is slow is the trainer's business: the others do not time out.
5. Names are checked; seats are played together or not at all.
6. Strategies that play a failed trajectory again play whole episodes, and nothing hangs.
"""

import asyncio
import itertools
from typing import Any

import openai
import pytest
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.data_processing import compute_advantages, trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import InitialObservationOverflow, Trajectory

from evert import (
    AgentClient,
    AgentError,
    AgentTimeoutError,
    BlockingAgentClient,
    ChatAgentGroupBuilder,
    EnvClosedError,
    EnvStateError,
    InvalidAgentError,
    RewardError,
    ScriptedPolicy,
)
from evert.bridge.env import seats
from evert.bridge.env.seats import SeatEnv, seat_envs
from evert.bridge.errors import InvalidDatasetError
from evert.bridge.tokens.renderer import prompt_renderer

SEATS = ("player", "judge")
ROUNDS = 3


async def duel(client: AgentClient) -> dict[str, float]:
    player, judge = client.seat("player"), client.seat("judge")
    said: list[dict[str, Any]] = [{"role": "user", "content": "Play."}]
    heard: list[dict[str, Any]] = [{"role": "system", "content": "Judge."}]
    for _ in range(ROUNDS):
        move = await ask(player, said)
        heard.append({"role": "user", "content": move})
        verdict = await ask(judge, heard)
        heard.append({"role": "assistant", "content": verdict})
        said += [{"role": "assistant", "content": move}, {"role": "user", "content": verdict}]
    return {"player": 1.0, "judge": -1.0}


async def ask(client: AgentClient, messages: list[dict[str, Any]]) -> str:
    completion = await client.chat.completions.create(messages=messages)
    return completion.choices[0].message.content or ""


def policy() -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt: "a verdict" if "Judge." in prompt else "a move")


async def play(agent: Any, **options: Any) -> list[Trajectory]:
    envs = seat_envs(agent, SEATS, **options)
    return [*await asyncio.gather(*(do_single_rollout(policy(), env) for env in envs))]


async def step(env: SeatEnv, text: str = "x") -> Any:
    renderer = prompt_renderer(None)
    return await env.step(renderer.encode(text) + renderer.end_tokens[:1])


# -- 1. one Env a role -----------------------------------------------------------------------------


async def test_each_role_is_played_through_its_own_env() -> None:
    player, judge = await play(duel)

    renderer = prompt_renderer(None)
    for trajectory, word in ((player, "a move"), (judge, "a verdict")):
        assert len(trajectory.transitions) == ROUNDS
        assert len(trajectory_to_data(trajectory, 1.0)) == 1
        said = [renderer.decode(t.ac.tokens) for t in trajectory.transitions]
        assert said == [f"{word}<|im_end|>"] * ROUNDS


async def test_a_group_of_the_cookbook_plays_several_episodes_of_all_seats() -> None:
    builder = ChatAgentGroupBuilder(duel, group_size=3, seats=SEATS)
    group = await do_group_rollout(builder, policy())

    assert [m[f"seat/{s}/reward"] for m, s in zip(group.metrics_G, SEATS * 3, strict=True)] == (
        [1.0, -1.0] * 3
    )
    assert [len(t.transitions) for t in group.trajectories_G] == [ROUNDS] * 6


async def test_a_role_may_be_called_by_its_models_name_from_a_real_sdk() -> None:
    async def agent(client: AgentClient) -> float:
        for name in SEATS:
            completion = await client.openai.chat.completions.create(
                model=f"evert/{name}", messages=[{"role": "system", "content": "Judge."}]
            )
            assert completion.model == f"evert/{name}"
        assert [model.id async for model in client.openai.models.list()] == [
            "evert/player",
            "evert/judge",
        ]
        return 0.5

    player, judge = await play(agent)

    assert len(player.transitions) == len(judge.transitions) == 1
    assert player.transitions[0].reward == judge.transitions[0].reward == 0.5


async def test_a_blocking_agent_has_seats_too() -> None:
    def agent(client: BlockingAgentClient) -> float:
        for name in SEATS:
            seat = client.seat(name)
            assert seat.model == f"evert/{name}"
            seat.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return 1.0

    player, judge = await play(agent)

    assert len(player.transitions) == len(judge.transitions) == 1


async def test_a_client_that_builds_itself_finds_its_seats() -> None:
    async def agent() -> float:
        async with openai.AsyncOpenAI(api_key="x") as sdk:
            for name in SEATS:
                await sdk.chat.completions.create(
                    model=f"evert/{name}", messages=[{"role": "user", "content": "Hi"}]
                )
        return 1.0

    player, judge = await play(agent)

    assert len(player.transitions) == len(judge.transitions) == 1


# -- 2. rewards ------------------------------------------------------------------------------------


async def test_rewards_and_notes_belong_to_the_seat_that_was_given_them() -> None:
    async def agent(client: AgentClient) -> dict[str, float]:
        player, judge = client.seat("player"), client.seat("judge")
        await asyncio.gather(ask(player, [user()]), ask(judge, [user()]))
        player.reward(0.25)
        judge.metric("strictness", 2)
        judge.log(verdict="fair")
        return {"player": 0.5, "judge": 0.0}

    player, judge = await play(agent)

    assert player.transitions[0].reward == 0.75
    assert judge.transitions[0].reward == 0.0
    assert judge.transitions[0].metrics["strictness"] == 2
    assert judge.transitions[0].logs["verdict"] == "fair"
    assert "strictness" not in player.transitions[0].metrics


def user() -> dict[str, Any]:
    return {"role": "user", "content": "Hi"}


async def test_a_seat_that_is_never_called_gets_its_reward_all_the_same() -> None:
    async def agent(client: AgentClient) -> dict[str, float]:
        await ask(client.seat("player"), [user()])
        return {"player": 1.0, "judge": 0.5}

    envs = seat_envs(agent, SEATS)
    _, waiting = await asyncio.gather(
        do_single_rollout(policy(), envs[0]), envs[1].initial_observation()
    )

    assert isinstance(waiting, InitialObservationOverflow)
    assert waiting.reward == 0.5
    assert waiting.metrics["idle"] == 1.0
    assert "no_llm_call" not in waiting.metrics


async def test_a_seat_is_idle_too_where_only_a_frozen_one_was_called() -> None:
    async def agent(client: AgentClient) -> dict[str, float]:
        await ask(client.seat("judge"), [user()])
        return {"player": 0.5, "judge": 0.0}

    models = {"evert/judge": lambda messages: "yes"}
    builder = ChatAgentGroupBuilder(agent, group_size=1, seats=("player",), models=models)
    group = await do_group_rollout(builder, policy())

    assert group.metrics_G[0]["seat/player/idle"] == 1.0


async def test_where_nobody_is_called_every_seat_says_so() -> None:
    async def agent(client: AgentClient) -> float:
        return 1.0

    envs = seat_envs(agent, SEATS)
    ends = await asyncio.gather(*(env.initial_observation() for env in envs))

    overflows = [end for end in ends if isinstance(end, InitialObservationOverflow)]
    assert [end.metrics["no_llm_call"] for end in overflows] == [1.0, 1.0]


@pytest.mark.parametrize("value", [{"player": 1.0}, {"player": 1.0, "judge": 0.0, "x": 1}, {}])
async def test_rewards_for_other_seats_are_an_error(value: Any) -> None:
    async def agent(client: AgentClient) -> Any:
        await ask(client.seat("player"), [user()])
        return value

    envs = seat_envs(agent, SEATS)
    results = await asyncio.gather(
        *(do_single_rollout(policy(), env) for env in envs), return_exceptions=True
    )

    assert all(isinstance(result, RewardError) for result in results)
    assert "its seats are player, judge" in str(results[0])


async def test_each_seat_has_a_baseline_of_its_own() -> None:
    """A judge who always earns the same learns nothing from how the player fares."""
    wins = iter([1.0, 1.0, 1.0, 0.0])

    async def agent(client: AgentClient) -> dict[str, float]:
        await asyncio.gather(*(ask(client.seat(name), [user()]) for name in SEATS))
        return {"player": next(wins), "judge": 0.5}

    builder = ChatAgentGroupBuilder(agent, group_size=4, seats=SEATS)
    group = await do_group_rollout(builder, policy())
    advantages = compute_advantages([group])[0].tolist()

    assert advantages[0::2] == pytest.approx([0.25, 0.25, 0.25, -0.75])
    assert advantages[1::2] == pytest.approx([0.0] * 4)
    earned = [m["seat/player/reward"] for m in group.metrics_G if "seat/player/reward" in m]
    assert earned == [1.0, 1.0, 1.0, 0.0]


# -- 3. one end for all ----------------------------------------------------------------------------


async def test_a_limit_at_one_seat_stops_the_others() -> None:
    async def agent(client: AgentClient) -> float:
        while True:
            await ask(client.seat("player"), [user()])
            await ask(client.seat("judge"), [user()])
            client.seat("judge").reward(0.25)

    player, judge = await play(agent, limits=RolloutLimits(max_turns=2))

    assert player.transitions[-1].metrics["stop/max_turns"] == 1.0
    assert judge.transitions[-1].metrics["stop/peer_stopped"] == 1.0
    assert [t.reward for t in judge.transitions] == [0.25, 0.25]


async def test_a_seat_that_waits_is_told_when_another_is_closed() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client.seat("player"), [user()])
        await ask(client.seat("judge"), [user()])
        return 1.0

    player, judge = seat_envs(agent, SEATS)
    waiting = asyncio.create_task(judge.initial_observation())
    await player.initial_observation()
    await player.close()

    told = await asyncio.wait_for(waiting, 5)
    assert isinstance(told, InitialObservationOverflow)
    assert told.metrics["stop/peer_stopped"] == 1.0
    assert not judge.is_running


async def test_a_seat_that_is_being_sampled_is_told_at_its_next_step() -> None:
    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(ask(client.seat(name), [user()]) for name in SEATS))
        return 1.0

    player, judge = seat_envs(agent, SEATS)
    await asyncio.gather(player.initial_observation(), judge.initial_observation())
    await player.close()
    result = await step(judge)

    assert result.episode_done
    assert result.metrics["stop/peer_stopped"] == 1.0


async def test_an_agent_that_raises_raises_at_every_seat() -> None:
    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(ask(client.seat(name), [user()]) for name in SEATS))
        raise KeyError("lost")

    envs = seat_envs(agent, SEATS)
    results = await asyncio.gather(
        *(do_single_rollout(policy(), env) for env in envs), return_exceptions=True
    )

    assert all(isinstance(result, AgentError) for result in results)


async def test_cleanup_closes_all_seats_and_leaves_nothing() -> None:
    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(ask(client.seat(name), [user()]) for name in SEATS))
        return 1.0

    builder = ChatAgentGroupBuilder(duel, group_size=2, seats=SEATS)
    builder.agent = agent
    envs = await builder.make_envs()
    await asyncio.gather(*(env.initial_observation() for env in envs))
    await builder.cleanup()

    assert len(asyncio.all_tasks()) == 1
    with pytest.raises(EnvClosedError):
        await step(envs[0])  # type: ignore[arg-type]


# -- 4. time ---------------------------------------------------------------------------------------


async def test_a_seat_does_not_time_out_while_another_is_being_sampled() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client.seat("player"), [user()])
        await ask(client.seat("judge"), [user()])
        return 1.0

    player, judge = seat_envs(agent, SEATS, agent_timeout=0.1)
    waiting = asyncio.create_task(judge.initial_observation())
    await player.initial_observation()
    await asyncio.sleep(0.4)  # the trainer takes its time
    assert not waiting.done()
    playing = asyncio.create_task(step(player))
    await waiting
    assert (await step(judge)).episode_done
    assert (await playing).episode_done


async def test_an_agent_that_hangs_times_out_at_every_seat() -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client.seat("player"), [user()])
        await asyncio.sleep(60)
        return 1.0

    player, judge = seat_envs(agent, SEATS, agent_timeout=0.1)
    waiting = asyncio.create_task(judge.initial_observation())
    await player.initial_observation()
    results = await asyncio.gather(step(player), waiting, return_exceptions=True)

    assert any(isinstance(result, AgentTimeoutError) for result in results)
    assert not player.is_running
    assert not judge.is_running


# -- 5. names and order ----------------------------------------------------------------------------


@pytest.mark.parametrize("seats", ["player", ["player"], ["a", "a"], ["a", ""], ["a", 1], []])
def test_seats_are_two_or_more_different_names(seats: Any) -> None:
    with pytest.raises(InvalidDatasetError, match="two or more different names"):
        seat_envs(duel, seats)


async def test_a_seat_that_is_not_there_is_an_error_that_names_those_that_are() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(InvalidAgentError, match="Its seats: player, judge"):
            client.seat("referee")
        for name in SEATS:
            await ask(client.seat(name), [user()])
        with pytest.raises(openai.BadRequestError, match="There is no model 'gpt-x'"):
            await client.chat.completions.create(model="gpt-x", messages=[user()])
        return 1.0

    await play(agent)


async def test_without_seats_there_is_none_to_take() -> None:
    from evert import ChatAgentEnv

    async def agent(client: AgentClient) -> float:
        with pytest.raises(InvalidAgentError, match="give the builder seats="):
            client.seat("player")
        return 1.0

    await ChatAgentEnv(agent).initial_observation()


async def test_an_episode_that_is_given_up_before_it_began_ends_for_who_waits() -> None:
    player, judge = seat_envs(duel, SEATS)
    waiting = asyncio.create_task(player.initial_observation())
    await asyncio.sleep(0)
    await judge.close()

    with pytest.raises(EnvClosedError, match="the seat 'player' waited for judge"):
        await waiting


async def test_a_seat_cannot_be_renewed_alone() -> None:
    (player, _) = seat_envs(duel, SEATS)

    with pytest.raises(EnvStateError, match="has no new episode of its own"):
        player.renewed()


# -- 6. strategies ---------------------------------------------------------------------------------


def failing(times: int) -> Any:
    """An agent whose first ``times`` episodes fail at both seats."""
    episodes = itertools.count()

    async def agent(client: AgentClient) -> dict[str, float]:
        await ask(client.seat("player"), [user()])
        await ask(client.seat("judge"), [user()])
        if next(episodes) < times:
            raise OSError("the sandbox is gone")
        return {"player": 1.0, "judge": 0.0}

    return agent


@pytest.mark.parametrize("group_size", [1, 2])
async def test_a_failed_episode_is_played_again_at_all_of_its_seats(group_size: int) -> None:
    builder = ChatAgentGroupBuilder(failing(1), group_size=group_size, seats=SEATS)
    rollout = do_group_rollout(builder, policy(), RetryOnFailure(max_retries=2))
    group = await asyncio.wait_for(rollout, 30)

    assert len(group.trajectories_G) == 2 * group_size
    assert {e.error_type for e in group.rollout_errors} == {"AgentError.OSError"}
    earned = [name for metrics in group.metrics_G for name in metrics if name.endswith("/reward")]
    assert sorted(earned) == sorted(f"seat/{name}/reward" for name in SEATS * group_size)
    assert len(asyncio.all_tasks()) == 1


async def test_a_seat_that_is_played_again_without_the_others_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three of four is enough for this strategy, so it plays one seat again and not the other."""
    monkeypatch.setattr(seats, "LONE_SEAT_PATIENCE", 0.05)
    builder = ChatAgentGroupBuilder(failing(1), group_size=2, seats=SEATS)
    rollout = do_group_rollout(builder, policy(), MinViableGroup(min_successful=3, max_retries=1))

    with pytest.raises(AllTrajectoriesFailedError):
        await asyncio.wait_for(rollout, 30)
    assert len(asyncio.all_tasks()) == 1


async def test_a_builder_serves_one_group_after_the_other() -> None:
    builder = ChatAgentGroupBuilder(failing(0), group_size=2, seats=SEATS)
    for _ in range(2):
        group = await do_group_rollout(builder, policy())
        assert len(group.trajectories_G) == 4


async def test_seats_are_told_at_once_when_the_agent_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(env: SeatEnv, roles: object, seed: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(SeatEnv, "_start", fails)
    envs = seat_envs(duel, ["a", "b"], agent_timeout=100.0)
    told = asyncio.gather(*(env.initial_observation() for env in envs), return_exceptions=True)
    first, last = await asyncio.wait_for(told, 50)
    assert isinstance(first, EnvClosedError)
    assert "could not be started when the last seat was taken. RuntimeError: can't" in str(first)
    assert isinstance(last, RuntimeError)
    await asyncio.gather(*(env.close() for env in envs))


async def test_a_seat_is_closed_from_another_event_loop() -> None:
    first, second = seat_envs(duel, ["a", "b"])
    waiting = asyncio.create_task(first.initial_observation())
    await asyncio.sleep(0)
    # asyncio's debug mode refuses what is not safe between threads
    asyncio.get_running_loop().set_debug(True)
    await asyncio.to_thread(asyncio.run, second.close())
    with pytest.raises(EnvClosedError, match="given up before its agent began"):
        await asyncio.wait_for(waiting, 50)
