"""Seats: an agent with several trained roles has an Env per role. Opponents are frozen models."""

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.kit import (
    Patch,
    ask,
    ask_blocking,
    assistant,
    call,
    play_group,
    policy_of,
    rewards,
    system,
    tokens_of,
    user,
)
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import InitialObservationOverflow, Trajectory

from evert import (
    AgentClient,
    AgentDataset,
    AgentError,
    BlockingAgentClient,
    ChatAgentEnv,
    ChatAgentGroupBuilder,
    EnvClosedError,
    EnvStateError,
    ScriptedPolicy,
    TinkerModel,
)
from evert.bridge.env import seats
from evert.bridge.env.seats import SeatEnv, seat_envs
from evert.bridge.errors import InvalidDatasetError
from evert.bridge.groups.opponents import Against, League
from evert.bridge.tokens.renderer import prompt_renderer

SEATS = ("player", "judge")
ROUNDS = 3


async def duel(client: AgentClient) -> dict[str, float]:
    player, judge = client.seat("player"), client.seat("judge")
    of_player, of_judge = [user("Play.")], [system("Judge.")]
    for _ in range(ROUNDS):
        move = await ask(player, *of_player)
        of_judge.append(user(move))
        verdict = await ask(judge, *of_judge)
        of_judge.append(assistant(verdict))
        of_player += [assistant(move), user(verdict)]
    return {"player": 1.0, "judge": -1.0}


async def in_turn(client: AgentClient) -> float:
    for name in SEATS:
        await ask(client.seat(name))
    return 1.0


async def at_once(client: AgentClient) -> float:
    await asyncio.gather(*(ask(client.seat(name)) for name in SEATS))
    return 1.0


def policy() -> ScriptedPolicy:
    return policy_of(lambda prompt: "a verdict" if "Judge." in prompt else "a move")


async def play(agent: Any, **options: Any) -> list[Trajectory]:
    envs = seat_envs(agent, SEATS, **options)
    return [*await asyncio.gather(*(do_single_rollout(policy(), env) for env in envs))]


async def step(env: SeatEnv) -> Any:
    return await env.step(tokens_of("x"))


async def test_each_seat_has_its_own_env_in_every_episode_of_a_group() -> None:
    renderer = prompt_renderer(None)
    for trajectory, word in zip(await play(duel), ("a move", "a verdict"), strict=True):
        assert len(trajectory_to_data(trajectory, 1.0)) == 1
        texts = [renderer.decode(turn.ac.tokens) for turn in trajectory.transitions]
        assert texts == [f"{word}<|im_end|>"] * ROUNDS

    builder = ChatAgentGroupBuilder(duel, group_size=3, seats=SEATS)
    for _ in range(2):  # a builder can make several groups
        group = await do_group_rollout(builder, policy())
        metrics = zip(group.metrics_G, SEATS * 3, strict=True)
        assert [seat_metrics[f"seat/{seat}/reward"] for seat_metrics, seat in metrics] == [
            1.0,
            -1.0,
        ] * 3
        assert [len(t.transitions) for t in group.trajectories_G] == [ROUNDS] * 6


async def by_names(client: AgentClient) -> float:
    for name in SEATS:
        completion = await call(client.openai, model=f"evert/{name}")  # type: ignore[arg-type]
        assert completion.model == f"evert/{name}"
    listed = [model.id async for model in client.openai.models.list()]
    assert listed == ["evert/player", "evert/judge"]
    return 0.5


def blocks(client: BlockingAgentClient) -> float:
    for name in SEATS:
        seat = client.seat(name)
        assert seat.model == f"evert/{name}"
        ask_blocking(seat)
    return 0.5


@pytest.mark.parametrize("agent", [by_names, blocks])
async def test_seats_can_be_called_by_name_and_from_threads(agent: Any) -> None:
    assert [rewards(trajectory) for trajectory in await play(agent)] == [[0.5], [0.5]]


async def test_rewards_metrics_and_logs_are_kept_per_seat() -> None:
    async def agent(client: AgentClient) -> dict[str, float]:
        await at_once(client)
        client.seat("player").reward(0.25)
        client.seat("judge").metric("strictness", 2)
        client.seat("judge").log(verdict="fair")
        return {"player": 0.5, "judge": 0.0}

    [player], [judge] = [trajectory.transitions for trajectory in await play(agent)]

    assert (player.reward, judge.reward) == (0.75, 0.0)
    assert judge.metrics["strictness"] == 2
    assert judge.logs["verdict"] == "fair"
    assert "strictness" not in player.metrics


async def test_a_seat_that_is_never_called_still_gets_its_reward() -> None:
    async def agent(client: AgentClient) -> dict[str, float]:
        await ask(client.seat("player"))
        return {"player": 1.0, "judge": 0.5}

    player, judge = seat_envs(agent, SEATS)
    _, waiting = await asyncio.gather(
        do_single_rollout(policy(), player), judge.initial_observation()
    )
    assert isinstance(waiting, InitialObservationOverflow)
    assert (waiting.reward, waiting.metrics["idle"]) == (0.5, 1.0)
    assert "no_llm_call" not in waiting.metrics

    # the judge is also idle if only the frozen player was called
    models = {"evert/player": lambda messages: "yes"}
    group = await play_group(agent, 1, policy(), seats=("judge",), models=models)
    assert group.metrics_G[0]["seat/judge/idle"] == 1.0


async def test_a_limit_reached_by_one_seat_stops_the_others() -> None:
    async def agent(client: AgentClient) -> float:
        while True:
            await in_turn(client)
            client.seat("judge").reward(0.25)

    player, judge = await play(agent, limits=RolloutLimits(max_turns=2))

    assert player.transitions[-1].metrics["stop/max_turns"] == 1.0
    assert judge.transitions[-1].metrics["stop/peer_stopped"] == 1.0
    assert rewards(judge) == [0.25, 0.25]


async def test_closing_one_seat_ends_the_others_whether_waiting_or_being_sampled() -> None:
    player, judge = seat_envs(in_turn, SEATS)
    waiting = asyncio.create_task(judge.initial_observation())
    await player.initial_observation()
    await player.close()
    overflow: Any = await asyncio.wait_for(waiting, 5)
    assert overflow.metrics["stop/peer_stopped"] == 1.0
    assert not judge.is_running

    player, judge = seat_envs(at_once, SEATS)
    await asyncio.gather(player.initial_observation(), judge.initial_observation())
    await player.close()
    result = await step(judge)
    assert result.episode_done
    assert result.metrics["stop/peer_stopped"] == 1.0


async def test_a_seat_does_not_time_out_while_another_is_being_sampled() -> None:
    player, judge = seat_envs(in_turn, SEATS, agent_timeout=1)
    waiting = asyncio.create_task(judge.initial_observation())
    await player.initial_observation()
    await asyncio.sleep(1.5)  # a slow trainer
    assert not waiting.done()
    playing = asyncio.create_task(step(player))
    await waiting
    assert (await step(judge)).episode_done
    assert (await playing).episode_done


def test_seats_must_be_two_or_more_different_names() -> None:
    wrong: Any = ["player", ["player"], ["a", "a"], ["a", ""], ["a", 1], []]
    for names in wrong:
        with pytest.raises(InvalidDatasetError, match="two or more unique names"):
            seat_envs(duel, names)
    with pytest.raises(EnvStateError, match="cannot be renewed on its own"):
        seat_envs(duel, SEATS)[0].renewed()


async def test_requesting_a_seat_in_an_env_without_seats_is_an_error() -> None:
    with pytest.raises(AgentError, match="pass seats= to the builder"):
        await ChatAgentEnv(in_turn).initial_observation()


async def test_closing_an_episode_before_it_starts_ends_the_waiting_seat() -> None:
    player, judge = seat_envs(duel, SEATS)
    waiting = asyncio.create_task(player.initial_observation())
    await asyncio.sleep(0)
    # Close from another event loop. asyncio's debug mode detects calls that are not thread-safe.
    asyncio.get_running_loop().set_debug(True)
    await asyncio.to_thread(asyncio.run, judge.close())

    with pytest.raises(EnvClosedError, match="the seat 'player' was waiting for judge"):
        await asyncio.wait_for(waiting, 50)


async def test_all_seats_fail_immediately_if_the_agent_cannot_be_started(
    monkeypatch: Patch,
) -> None:
    def fails(env: SeatEnv, roles: object, seed: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(SeatEnv, "_start", fails)
    envs = seat_envs(duel, ["a", "b"], agent_timeout=100.0)
    outcomes = asyncio.gather(*(env.initial_observation() for env in envs), return_exceptions=True)
    first, last = await asyncio.wait_for(outcomes, 50)
    assert isinstance(first, EnvClosedError)
    assert "could not be started when the last seat was taken. RuntimeError: can't" in str(first)
    assert isinstance(last, RuntimeError)
    await asyncio.gather(*(env.close() for env in envs))


def fails_once() -> Any:
    """Return an agent whose first episode fails for both seats."""
    episodes = itertools.count()

    async def agent(client: AgentClient) -> float:
        await in_turn(client)
        if next(episodes) == 0:
            raise OSError("the sandbox is gone")
        return 1.0

    return agent


@pytest.mark.parametrize("group_size", [1, 2])
async def test_a_failed_episode_is_retried_for_all_of_its_seats(group_size: int) -> None:
    strategy = RetryOnFailure(max_retries=2)
    rollout = play_group(fails_once(), group_size, policy(), strategy=strategy, seats=SEATS)
    group = await asyncio.wait_for(rollout, 30)

    assert len(group.trajectories_G) == 2 * group_size
    assert {e.error_type for e in group.rollout_errors} == {"AgentError.OSError"}
    earned = [name for metrics in group.metrics_G for name in metrics if name.endswith("/reward")]
    assert sorted(earned) == sorted(f"seat/{name}/reward" for name in SEATS * group_size)
    assert len(asyncio.all_tasks()) == 1


async def test_retrying_one_seat_without_the_others_is_an_error(monkeypatch: Patch) -> None:
    """This strategy only needs three of four rollouts, so it retries one seat but not the other."""
    monkeypatch.setattr(seats, "LONE_SEAT_PATIENCE", 0.05)
    strategy = MinViableGroup(min_successful=3, max_retries=1)
    rollout = play_group(fails_once(), 2, policy(), strategy=strategy, seats=SEATS)

    with pytest.raises(AllTrajectoriesFailedError):
        await asyncio.wait_for(rollout, 30)
    assert len(asyncio.all_tasks()) == 1


# -- opponents -------------------------------------------------------------------------------------


async def debate(client: AgentClient, task: str) -> dict[str, float]:
    text = task
    for seat in SEATS:
        client_of_seat = client.seat(seat)
        text = await ask(client_of_seat, text)
        client_of_seat.reward(0.5)
        client_of_seat.metric("asked", 1.0)
    return {"player": float(text == "no"), "judge": 0.0}


def no(messages: Any) -> str:
    return "no"


async def test_a_seat_played_by_a_frozen_model_has_no_env() -> None:
    requests: list[Any] = []

    def judge(messages: Any) -> str:
        requests.append([dict(message) for message in messages])
        return "no"

    for model in (judge, policy_of("no", "no")):
        models: Any = {"evert/judge": model}
        group = await play_group(debate, 2, "yes", "yes", task="a", seats=["player"], models=models)

        decode = prompt_renderer(None).decode
        texts = [
            [decode(t.ac.tokens) for t in trajectory.transitions]
            for trajectory in group.trajectories_G
        ]
        assert texts == [["yes<|im_end|>"]] * 2
        assert [metrics["seat/player/reward"] for metrics in group.metrics_G] == [1.5, 1.5]
        assert [metrics["seat/player/asked"] for metrics in group.metrics_G] == [1.0, 1.0]
    assert requests == [[{"role": "user", "content": "yes"}]] * 2


def test_a_seat_is_either_trained_or_frozen_and_at_least_one_is_trained() -> None:
    with pytest.raises(InvalidDatasetError, match=r"plus judge \(played by frozen models\)"):
        ChatAgentGroupBuilder(debate, "a", seats=["judge"], models={"evert/judge": no})
    # Without seats=, this is a plain agent, and nothing is checked.
    assert ChatAgentGroupBuilder(debate, "a", models={"evert/judge": no}).seats == ()


def league(folder: Path, share: float = 0.5) -> League:
    records = [
        {"name": f"{batch:06}", "batch": batch, "sampler_path": f"tinker://x/{batch}"}
        for batch in (10, 20, 30)
    ]
    records.insert(1, {"name": "rolling", "batch": 11, "rolling": True, "state_path": "tinker://s"})
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "checkpoints.jsonl").write_text(lines)
    return League(str(folder), share, max_tokens=2)


def test_a_league_draws_evenly_from_the_earlier_checkpoints(tmp_path: Path) -> None:
    assert League(str(tmp_path), 1.0)(SEATS, 0, 0, 7) == {}
    assert league(tmp_path, 1.0)(SEATS, 10, 0, 7) == {}, (
        "no earlier checkpoint: the policy plays all seats"
    )
    full_league = league(tmp_path)
    draws = [full_league(SEATS, 25, 0, seed) for seed in range(400)]

    pairs = [pair for opponents in draws for pair in opponents.items()]
    counts = Counter((seat, model.model_path) for seat, model in pairs)  # type: ignore[union-attr]
    assert set(counts) == {(s, f"tinker://x/{n}") for s in SEATS for n in (10, 20)}
    assert 160 < sum(counts.values()) < 240
    assert min(counts.values()) > 30
    one = next(model for opponents in draws for model in opponents.values())
    assert isinstance(one, TinkerModel)
    assert (one.max_tokens, one.temperature) == (2, 1.0)

    checkpoints = tmp_path / "checkpoints.jsonl"
    checkpoints.write_text("".join(checkpoints.read_text().splitlines(keepends=True)[:-1]))
    redrawn = [full_league(SEATS, 25, 0, seed) for seed in range(50)]
    assert redrawn == draws[:50], "later checkpoints do not change the draws of a resumed run"


async def test_all_episodes_of_a_group_face_the_same_opponent_and_trained_seats_alternate() -> None:
    sizes: Any = {"batch_size": 2, "group_size": 3, "shuffle": False}
    opponents = Against(lambda seed: no)
    dataset = AgentDataset(debate, ["a", "b"], seats=SEATS, opponents=opponents, **sizes)

    first, second = dataset.get_batch(0)

    assert (first.seats, second.seats) == (("player",), ("judge",))
    assert set(first.options.get("models") or {}) == {"evert/judge"}
    group = await do_group_rollout(first, policy_of(lambda prompt: "yes"))
    assert [metrics["seat/player/reward"] for metrics in group.metrics_G] == [1.5] * 3
    assert dataset.group(0).seats == SEATS
    with pytest.raises(InvalidDatasetError, match="requires an agent with at least two roles"):
        AgentDataset(debate, ["a"], opponents=opponents, **sizes)
