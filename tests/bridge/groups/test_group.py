"""Groups of episodes with the Cookbook's rollout strategies and executors."""

import asyncio
import functools
import itertools
import pickle
import threading
from typing import Any, cast

import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st
from tests.kit import Logs, ask, ask_blocking, asks, assistant, play_group, policy_of, user
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import AllTrajectoriesFailedError as AllFailed
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.episode.agent import NO_TASK, Outcome
from evert.bridge.errors import EnvClosedError, InvalidAgentError
from evert.bridge.groups.group import BatchPosition, ChatAgentGroupBuilder, sort_by_lineage
from evert.bridge.tokens.bases import default_renderer
from evert.envs.identity import identity_agent

IDENTITY = "evert.envs.identity:identity_agent"


def blocking_agent(client: BlockingAgentClient) -> float:
    for _ in range(3):
        ask_blocking(client, "Again?")
    return 1.0


class Outer:
    class Inner:
        async def __call__(self, client: AgentClient) -> float:
            return 1.0


async def two_sub_agents(client: AgentClient) -> float:
    histories = [[user(f"You are sub-agent {name}.")] for name in "AB"]
    for _ in range(3):
        for messages in histories:
            messages += [assistant(await ask(client, *messages)), user("Go on.")]
    return 1.0


@pytest.mark.parametrize("agent", [two_sub_agents, blocking_agent])
async def test_cleanup_closes_all_envs_even_running_ones(agent: Any) -> None:
    builder = ChatAgentGroupBuilder(agent, group_size=2)
    await builder.cleanup()  # allowed before make_envs()
    envs = cast("list[ChatAgentEnv]", [*await builder.make_envs(), *await builder.make_envs()])
    for env in (envs[0], envs[3]):
        await env.initial_observation()
    assert [env.is_running for env in envs] == [True, False, False, True]

    await builder.cleanup()
    await builder.cleanup()  # can be called repeatedly

    assert len(set(map(id, envs))) == 4
    assert not any(env.is_running for env in envs)
    for env in envs:
        with pytest.raises(EnvClosedError):
            await env.step([1])
    assert len(await builder.make_envs()) == 2


async def test_cleanup_logs_an_env_that_fails_to_close_and_still_closes_the_others(
    caplog: Logs,
) -> None:
    class CannotClose(ChatAgentEnv):
        async def close(self) -> None:
            raise OSError("stuck")

    builder = ChatAgentGroupBuilder(blocking_agent)
    builder._envs.append(CannotClose(blocking_agent))
    [env] = cast("list[ChatAgentEnv]", await builder.make_envs())
    await env.initial_observation()

    await builder.cleanup()

    assert not env.is_running
    assert "Failed to close an environment: OSError('stuck')" in caplog.text


def unreachable_agents() -> list[Any]:
    async def inner(client: AgentClient) -> float:
        return float(await ask(client) == "Fine.")

    class Local:
        async def __call__(self, client: AgentClient) -> float:
            return await inner(client)

    sized = functools.partial(lambda client, size: 1.0, size=2)
    local = Local()
    return [lambda client: 1.0, inner, functools.partial(sized), local, local.__call__]


async def test_an_agent_without_an_import_path_works_but_cannot_be_pickled() -> None:
    for agent in unreachable_agents():
        builder = ChatAgentGroupBuilder(agent, group_size=2)
        assert (await do_group_rollout(builder, policy_of())).get_total_rewards() == [1.0, 1.0]
        with pytest.raises(InvalidAgentError, match="^The agent .* has no import path, because"):
            pickle.dumps(builder)
    for reachable in (asks, functools.partial(asks), Outer.Inner(), Outer.Inner().__call__):
        assert pickle.loads(pickle.dumps(ChatAgentGroupBuilder(reachable))).task is NO_TASK
    with pytest.raises(InvalidAgentError, match=r"The group reward .*<lambda> has no import path"):
        pickle.dumps(ChatAgentGroupBuilder(asks, group_reward=lambda group: [0.0]))


async def test_a_builder_pickles_without_its_running_episodes() -> None:
    builder = ChatAgentGroupBuilder(
        IDENTITY, {"number": 7}, 3, tags=["a"], renderer=default_renderer(), on_agent_error=-1.0
    )
    envs = cast("list[ChatAgentEnv]", await builder.make_envs())
    await envs[0].initial_observation()
    received = pickle.loads(pickle.dumps(builder))

    assert (received.agent, received.task) == (identity_agent, {"number": 7})
    assert (received.group_size, received.logging_tags()) == (3, ["a"])
    assert received.options["on_agent_error"] == -1.0
    assert type(received.options["renderer"]) is type(default_renderer())
    assert (received._envs, builder._envs) == ([], envs)
    await builder.cleanup()


async def test_two_alternating_sub_agents_of_three_turns_give_two_datums() -> None:
    group = await play_group(two_sub_agents, 2, lambda prompt: f"Yes, {len(prompt)}.")

    for trajectory in group.trajectories_G:
        turns = trajectory.transitions
        assert len(trajectory_to_data(trajectory, 1.0)) == 2
        as_played = Trajectory([turns[n] for n in (0, 3, 1, 4, 2, 5)], trajectory.final_ob)
        assert len(trajectory_to_data(as_played, 1.0)) == 6
        assert sum(turn.reward for turn in turns) == 1.0
    assert group.metrics_G == [{}, {}]


async def main_and_sub_agent(client: AgentClient) -> Outcome:
    """Make a call to the main agent, one to a sub-agent, and a last one to the main agent."""
    main, sub = [user("main")], [user("sub")]
    for number, messages in enumerate((main, sub, main)):
        messages += [assistant(await ask(client, *messages)), user("more")]
        client.metric("calls", number + 1)
        client.metric(f"call {number}", 1)
    return Outcome(1.0, {"solved": 1.0}, {"answer": "x"})


async def test_the_final_transition_stays_last_in_lineage_order() -> None:
    """The Cookbook's recipes and evaluators read ``transitions[-1].metrics``."""
    group = await do_group_rollout(ChatAgentGroupBuilder(main_and_sub_agent), policy_of())
    [trajectory] = group.trajectories_G
    *earlier, last = trajectory.transitions

    assert [transition.logs["lineage"] for transition in trajectory.transitions] == [1, 0, 0]
    expected = {"calls": 3, "call 2": 1, "solved": 1.0, "stop/completed": 1.0, "lineages": 2}
    assert last.metrics.items() >= expected.items()
    assert last.logs["answer"] == "x"
    assert [turn.episode_done for turn in trajectory.transitions] == [False, False, True]
    assert [turn.metrics for turn in earlier] == [
        {"calls": 2, "call 1": 1, "stop/length": 0},
        {"calls": 1, "call 0": 1, "stop/length": 0},
    ]
    assert len(trajectory_to_data(trajectory, 1.0)) == 2
    metrics = compute_trajectory_metrics([group], [[]])
    assert metrics["env/all/solved"] == 1.0
    assert metrics["env/all/lineages"] == 2.0
    assert metrics["env/all/calls"] == 2.0  # the mean over three transitions


def transition(number: int) -> Transition:
    action = TokensWithLogprobs([number], [0.0])
    return Transition(tinker.ModelInput.empty(), action, 0.0, False)


@given(lineages=st.lists(st.integers(0, 3), max_size=8), not_kept=st.lists(st.just(4), max_size=2))
def test_transitions_are_sorted_by_lineage_and_lineages_by_their_last_turn(
    lineages: list[int], not_kept: list[int]
) -> None:
    turns = [transition(number) for number in range(len(lineages))]
    trajectory = Trajectory(turns, tinker.ModelInput.empty())
    order = sort_by_lineage(trajectory, [*lineages, *not_kept])  # the runner may drop some turns

    assert trajectory.transitions is turns
    assert order == [turn.ac.tokens[0] for turn in turns]
    assert sorted(order) == [*range(len(lineages))]
    blocks = [[*block] for _, block in itertools.groupby(order, lineages.__getitem__)]
    assert len(blocks) == len({*lineages})
    assert all(block == sorted(block) for block in blocks)
    ends = [block[-1] for block in blocks]
    assert ends == sorted(ends)


def test_sorting_keeps_the_placeholder_transition_of_an_episode_without_turns() -> None:
    made_up = Trajectory([transition(0)], tinker.ModelInput.empty())
    assert sort_by_lineage(made_up, []) == [0]


async def test_a_retry_after_a_timeout_leaves_no_agent_running() -> None:
    builder = ChatAgentGroupBuilder(blocking_agent, group_size=2)
    stuck = iter([True])

    class Slow(ScriptedPolicy):
        async def __call__(self, *arguments: Any, **options: Any) -> TokensWithLogprobs:
            if next(stuck, False):
                await asyncio.Event().wait()
            return await super().__call__(*arguments, **options)

    strategy = RetryOnFailure(max_retries=1, per_rollout_timeout=0.3)
    group = await do_group_rollout(builder, Slow(lambda _: "Yes."), strategy)

    assert group.get_total_rewards() == [1.0, 1.0]
    assert [error.error_type for error in group.rollout_errors] == ["TimeoutError"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("evert agent")]


def in_training(agent: Any, **options: Any) -> ChatAgentGroupBuilder:
    builder = ChatAgentGroupBuilder(agent, group_size=2, **options)
    builder.batch = BatchPosition(index=0, groups=1)
    return builder


@pytest.mark.parametrize("strategy", [FailFast(), RetryOnFailure(), MinViableGroup()])
async def test_a_training_group_without_any_call_is_dropped_and_closed(strategy: Any) -> None:
    builder, none = in_training(Outer.Inner()), ScriptedPolicy([])

    with pytest.raises(AllFailed, match="Nothing can be learned from 2 episodes of the agent .*In"):
        await do_group_rollout(builder, none, strategy)
    assert builder._envs == []

    builder.batch = None  # as in evaluation
    group = await do_group_rollout(builder, none, strategy)
    assert group.get_total_rewards() == [1.0, 1.0]


async def test_a_group_is_only_dropped_if_all_of_its_replies_are_masked() -> None:
    masks = ParseErrorPolicy(mask_error_turns=True)
    broken = '<tool_call>\n{"name": oops}\n</tool_call>'
    builder = in_training(blocking_agent, parse_error_policy=masks)
    with pytest.raises(AllFailed, match="or because all replies are masked"):
        await do_group_rollout(builder, policy_of(broken, broken))

    replies = itertools.chain([broken], itertools.repeat("Yes."))
    builder = in_training(blocking_agent, parse_error_policy=masks)
    group = await do_group_rollout(builder, policy_of(lambda prompt: next(replies)))
    assert len(group.trajectories_G) == 2


async def test_an_episode_ended_by_the_runner_still_reports_its_drift() -> None:
    async def rewrites_its_history(client: AgentClient) -> float:
        messages = [user("Hi")]
        while True:
            messages = [user("Hi"), assistant(f"{await ask(client, *messages)}!"), user("and?")]

    limits = RolloutLimits(max_sampled_tokens=12)
    group = await play_group(rewrites_its_history, 2, lambda prompt: "x y", limits=limits)

    assert {t.stop_reason for t in group.trajectories_G} == {"max_sampled_tokens"}
    for trajectory in group.trajectories_G:
        *earlier, last = [transition.metrics for transition in trajectory.transitions]
        assert last["lineages"] > 1
        assert last["drift"] > 0
        assert not any("lineages" in metrics for metrics in earlier)
    assert group.metrics_G == [{}, {}]
