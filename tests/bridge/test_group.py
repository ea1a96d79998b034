"""Groups of episodes, as the Cookbook's strategies and executors use them.

1. A builder makes envs as often as it is asked, and ``cleanup`` closes all of them, once.
2. It pickles whole, into processes that were spawned; what could not is refused at once.
3. Group rewards compare trajectories: one finite number each.
4. Transitions are put in lineage order, so that sub-agents give one datum each; the one that ends
   the episode stays last, with its metrics and the report.
5. Under each strategy of the Cookbook, failing agents leave nothing running.
6. In training, a group with no token to learn from is dropped, under every strategy.
"""

import asyncio
import functools
import itertools
import math
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import (
    do_group_rollout,
    do_group_rollout_and_filter_constant_reward,
    set_rollout_executor,
)
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.episode.agent import NO_TASK, Outcome
from evert.bridge.errors import (
    AgentError,
    EnvClosedError,
    InvalidAgentError,
    InvalidDatasetError,
    RewardError,
)
from evert.bridge.groups.group import (
    Batch,
    ChatAgentGroupBuilder,
    load_agent,
    require_import_path,
    sort_by_lineage,
)
from evert.bridge.tokens.bases import default_renderer
from evert.envs.identity import identity_agent

IDENTITY = "evert.envs.identity:identity_agent"
HONEST = ScriptedPolicy(lambda prompt: "I am 7" if "you are 7" in prompt else "Who?")


async def ask(client: Any, text: str) -> str:
    completion = await client.chat.completions.create(messages=[{"role": "user", "content": text}])
    return completion.choices[0].message.content or ""


def blocking_agent(client: BlockingAgentClient) -> float:
    for _ in range(3):
        client.chat.completions.create(messages=[{"role": "user", "content": "Again?"}])
    return 1.0


class LocalName:
    class Inner:
        async def __call__(self, client: AgentClient) -> float:
            return 1.0


runs = itertools.count()
failing: set[int] = set()
"""Numbers of the runs of ``fails_sometimes`` that fail."""


@pytest.fixture(autouse=True)
def _fresh_counts() -> None:
    global runs
    runs = itertools.count()
    failing.clear()


async def fails_sometimes(client: AgentClient) -> float:
    number = next(runs)
    await ask(client, f"Run {number}?")
    if number in failing:
        raise ValueError(f"Run {number} fails.")
    await ask(client, f"Run {number} again?")
    return float(number)


async def two_sub_agents(client: AgentClient) -> float:
    histories: list[list[Any]] = [
        [{"role": "user", "content": f"You are sub-agent {name}."}] for name in "AB"
    ]
    for _ in range(3):
        for messages in histories:
            completion = await client.chat.completions.create(messages=messages)
            messages += [completion.choices[0].message, {"role": "user", "content": "Go on."}]
    return 1.0


def prefers_the_first(trajectories: list[Trajectory]) -> list[float]:
    return [1.0, *(0.0 for _ in trajectories[1:])]


def too_few(trajectories: list[Trajectory]) -> list[float]:
    return [1.0]


def not_a_number(trajectories: list[Trajectory]) -> list[float]:
    return [math.nan for _ in trajectories]


def envs_of(builder: ChatAgentGroupBuilder) -> list[ChatAgentEnv]:
    return list(builder._envs)


def remembered(builder: ChatAgentGroupBuilder) -> list[ChatAgentEnv]:
    """All envs that ``builder`` will ever make; ``cleanup`` forgets its own list."""
    made: list[ChatAgentEnv] = []
    make_envs = builder.make_envs

    async def make() -> Sequence[Any]:
        envs = await make_envs()
        made.extend(cast("Sequence[ChatAgentEnv]", envs))
        return envs

    builder.make_envs = make  # type: ignore[method-assign]
    return made


# -- making and closing --------------------------------------------------------------------------


async def test_a_group_has_its_size_of_unused_envs() -> None:
    envs = await ChatAgentGroupBuilder(identity_agent, 7, 3).make_envs()

    assert len(set(map(id, envs))) == 3
    assert all(isinstance(env, ChatAgentEnv) and not env.is_running for env in envs)


async def test_a_retry_gets_new_envs() -> None:
    builder = ChatAgentGroupBuilder(identity_agent, 7, 2)
    first = list(await builder.make_envs())
    second = list(await builder.make_envs())

    assert not set(map(id, first)) & set(map(id, second))


async def test_options_reach_every_env() -> None:
    renderer = default_renderer()
    builder = ChatAgentGroupBuilder(
        fails_sometimes, group_size=2, on_agent_error=-3.0, renderer=renderer
    )
    failing.update((0, 1))
    group = await do_group_rollout(builder, ScriptedPolicy(lambda _: "Yes."))

    assert group.get_total_rewards() == [-3.0, -3.0]


@pytest.mark.parametrize("agent", [two_sub_agents, blocking_agent])
async def test_cleanup_closes_all_envs_of_all_rounds_the_running_ones_too(agent: Any) -> None:
    builder = ChatAgentGroupBuilder(agent, group_size=2)
    first = cast("list[ChatAgentEnv]", await builder.make_envs())
    second = cast("list[ChatAgentEnv]", await builder.make_envs())
    for env in (first[0], second[1]):
        await env.initial_observation()
    assert [env.is_running for env in first + second] == [True, False, False, True]

    await builder.cleanup()

    assert not any(env.is_running for env in first + second)
    for env in first + second:
        with pytest.raises(EnvClosedError):
            await env.step([1])


async def test_cleanup_while_a_sibling_steps_ends_its_step() -> None:
    async def waits(client: AgentClient) -> float:
        await ask(client, "One?")
        await asyncio.Event().wait()
        return 1.0

    builder = ChatAgentGroupBuilder(two_sub_agents)
    env = ChatAgentEnv(waits)
    builder._envs.append(env)
    await env.initial_observation()
    step = asyncio.create_task(env.step([1]))
    await asyncio.sleep(0)

    await builder.cleanup()

    with pytest.raises(EnvClosedError):
        await step


async def test_cleanup_may_come_early_and_often() -> None:
    builder = ChatAgentGroupBuilder(identity_agent, 7, 2)
    await builder.cleanup()
    await builder.make_envs()
    await builder.cleanup()
    await builder.cleanup()

    assert len(await builder.make_envs()) == 2


async def test_cleanup_logs_what_fails_and_closes_the_rest(
    caplog: pytest.LogCaptureFixture,
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
    assert "Closing an environment failed: OSError('stuck')" in caplog.text


@pytest.mark.parametrize("size", [0, -1])
def test_a_group_has_at_least_one_env(size: int) -> None:
    with pytest.raises(InvalidDatasetError) as caught:
        ChatAgentGroupBuilder(identity_agent, 7, size)

    assert str(caught.value) == f"group_size must be at least 1, got {size}."


def test_tags_are_the_cookbooks_logging_tags() -> None:
    assert ChatAgentGroupBuilder(identity_agent, 7, tags=("a", "b")).logging_tags() == ["a", "b"]
    assert ChatAgentGroupBuilder(identity_agent, 7).logging_tags() == []


# -- agents by name ------------------------------------------------------------------------------


def test_an_agent_may_be_named_by_its_import_path() -> None:
    assert load_agent(IDENTITY) is identity_agent
    assert load_agent(identity_agent) is identity_agent
    assert ChatAgentGroupBuilder(IDENTITY, 7).agent is identity_agent
    assert load_agent("pathlib:Path.cwd") == Path.cwd


@pytest.mark.parametrize("path", ["", "agent", "evert.envs.identity", "module:", ":agent"])
def test_a_path_of_another_form_is_refused(path: str) -> None:
    with pytest.raises(InvalidAgentError) as caught:
        load_agent(path)

    assert str(caught.value) == (
        f"Got {path!r} for the agent; expected an import path 'package.module:name'."
    )


@pytest.mark.parametrize("path", ["evert.nowhere:agent", "evert.envs.identity:nobody", "..:x"])
def test_a_path_with_nothing_there_is_refused_with_the_reason(path: str) -> None:
    with pytest.raises(InvalidAgentError) as caught:
        load_agent(path)

    assert str(caught.value).startswith(f"No agent at {path!r}: ")
    assert "Expected an importable 'package.module:name'" in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("task", [NO_TASK, None])
def test_what_is_no_agent_of_these_arguments_is_refused(task: object) -> None:
    agent: Any = identity_agent if task is NO_TASK else two_sub_agents
    with pytest.raises(InvalidAgentError, match="cannot be called with"):
        ChatAgentGroupBuilder(agent, task)


async def _inner(client: AgentClient) -> float:
    return 1.0


def unreachable_agents() -> list[Any]:
    async def inner(client: AgentClient) -> float:
        return 1.0

    class Local:
        async def __call__(self, client: AgentClient) -> float:
            return 1.0

        async def method(self, client: AgentClient) -> float:
            return 1.0

    return [
        lambda client: 1.0,
        inner,
        functools.partial(inner),
        functools.partial(functools.partial(lambda client, size: 1.0, size=2)),
        Local(),
        Local().method,
    ]


@pytest.mark.parametrize("agent", unreachable_agents())
def test_only_pickling_an_agent_without_an_import_path_is_refused_with_the_reason(
    agent: Any,
) -> None:
    builder = ChatAgentGroupBuilder(agent)
    assert builder.agent is agent

    with pytest.raises(InvalidAgentError) as caught:
        pickle.dumps(builder)

    message = str(caught.value)
    assert message.startswith("The agent ")
    assert (
        " has no import path, so this group builder cannot be pickled for rollouts in another "
        "process, where a lambda or an inner function cannot be found. Define it at the top level "
        "of a module (functools.partial may bind arguments), or play the rollouts in this process."
    ) in message


async def test_a_lambda_and_an_inner_function_are_played() -> None:
    async def inner(client: AgentClient) -> float:
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return 1.0

    for agent in (inner, lambda client: 1.0):
        group = await do_group_rollout(ChatAgentGroupBuilder(agent, group_size=2), YES())
        assert group.get_total_rewards() == [1.0, 1.0]


@pytest.mark.parametrize(
    "agent", [_inner, functools.partial(_inner), LocalName.Inner(), LocalName.Inner().__call__]
)
def test_an_agent_with_an_import_path_is_taken(agent: Any) -> None:
    require_import_path(agent)

    assert ChatAgentGroupBuilder(agent).agent is agent


def test_a_group_reward_needs_an_import_path_too_where_it_is_pickled() -> None:
    builder = ChatAgentGroupBuilder(
        identity_agent, 7, group_reward=lambda group: [0.0 for _ in group]
    )
    with pytest.raises(InvalidAgentError, match=r"The group reward .*<lambda> has no import path"):
        pickle.dumps(builder)


# -- pickling ------------------------------------------------------------------------------------


def test_a_builder_pickles_whole() -> None:
    builder = ChatAgentGroupBuilder(
        IDENTITY,
        {"number": 7},
        3,
        tags=["a"],
        renderer=default_renderer(),
        on_agent_error=-1.0,
    )
    received = pickle.loads(pickle.dumps(builder))

    assert received.agent is identity_agent
    assert received.task == {"number": 7}
    assert received.group_size == 3
    assert received.tags == ["a"]
    assert received.options["on_agent_error"] == -1.0
    assert type(received.options["renderer"]) is type(default_renderer())


def test_a_builder_without_a_task_still_has_none_after_pickling() -> None:
    received = pickle.loads(pickle.dumps(ChatAgentGroupBuilder(blocking_agent)))

    assert received.task is NO_TASK


async def test_running_episodes_stay_in_their_process() -> None:
    builder = ChatAgentGroupBuilder(identity_agent, 7)
    [env] = cast("list[ChatAgentEnv]", await builder.make_envs())
    await env.initial_observation()

    received = pickle.loads(pickle.dumps(builder))

    assert envs_of(received) == []
    assert envs_of(builder) == [env]
    await builder.cleanup()


ELSEWHERE = '''
"""Agents, rewards and a scripted model that a spawned process can import."""
import numpy as np
import tinker
from evert import ScriptedPolicy


async def polite_agent(client, task):
    completion = await client.chat.completions.create(
        messages=[{"role": "user", "content": f"Say {task}."}]
    )
    client.reward(0.25)
    return float(completion.choices[0].message.content == task)


def first_wins(trajectories):
    return [10.0, *(0.0 for _ in trajectories[1:])]


class Model:
    """A sampling client in which only the model is scripted."""

    async def sample_async(self, prompt, num_samples, sampling_params):
        said = await ScriptedPolicy(["please"])(prompt, [], max_tokens=sampling_params.max_tokens)
        sequence = tinker.SampledSequence(
            stop_reason="stop",
            sequence_id="",
            tokens_np=np.array(said.tokens),
            logprobs_np=np.array(said.maybe_logprobs),
        )
        return tinker.SampleResponse(sequences=[sequence])

    sample = sample_async  # what the Cookbook awaits since 0.6
'''


async def test_a_builder_rolls_out_in_a_spawned_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evert_test_elsewhere.py").write_text(ELSEWHERE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import evert_test_elsewhere as elsewhere  # type: ignore[import-not-found]

    builder = ChatAgentGroupBuilder(
        "evert_test_elsewhere:polite_agent",
        "please",
        2,
        group_reward=elsewhere.first_wins,
        renderer=default_renderer(),
    )
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        set_rollout_executor(pool)
        try:
            group = await do_group_rollout_and_filter_constant_reward(
                elsewhere.Model(), builder, 50, 1.0, False, enable_logging=False
            )
        finally:
            set_rollout_executor(None)
    sys.modules.pop("evert_test_elsewhere")

    assert group is not None
    assert group.get_total_rewards() == [11.25, 1.25]


# -- group rewards -------------------------------------------------------------------------------


async def test_a_group_reward_is_added_to_what_the_trajectories_earned() -> None:
    builder = ChatAgentGroupBuilder(
        IDENTITY, 7, 3, group_reward=prefers_the_first, tags=["identity"]
    )
    group = await do_group_rollout(builder, HONEST)

    assert group.get_total_rewards() == [2.0, 1.0, 1.0]
    assert group.metrics_G == [{}, {}, {}]


async def test_without_a_group_reward_nothing_is_added() -> None:
    group = await do_group_rollout(ChatAgentGroupBuilder(IDENTITY, 7, 2), HONEST)

    assert group.final_rewards_G == [0.0, 0.0]
    assert group.get_total_rewards() == [1.0, 1.0]


async def test_a_group_reward_of_the_wrong_length_is_an_error_that_names_it() -> None:
    with pytest.raises(InvalidAgentError) as caught:
        await do_group_rollout(ChatAgentGroupBuilder(IDENTITY, 7, 3, group_reward=too_few), HONEST)

    assert str(caught.value) == (
        f"The group reward {__name__}.too_few returned 1 rewards for 3 trajectories; expected one "
        "each, in order."
    )


async def test_a_group_reward_that_is_no_finite_number_is_an_error_that_names_it() -> None:
    with pytest.raises(RewardError, match=r"A reward of .*not_a_number is nan \(float\)"):
        await do_group_rollout(
            ChatAgentGroupBuilder(IDENTITY, 7, 2, group_reward=not_a_number), HONEST
        )


# -- lineage order -------------------------------------------------------------------------------


async def test_two_alternating_sub_agents_of_three_turns_give_two_datums() -> None:
    builder = ChatAgentGroupBuilder(two_sub_agents, group_size=2)
    policy = ScriptedPolicy(lambda prompt: f"Yes, {len(prompt)}.")
    group = await do_group_rollout(builder, policy)

    for trajectory in group.trajectories_G:
        assert len(trajectory.transitions) == 6
        assert len(trajectory_to_data(trajectory, 1.0)) == 2
        alternating = Trajectory(trajectory.transitions[:], trajectory.final_ob)
        alternating.transitions[:] = [
            trajectory.transitions[turn] for turn in (0, 3, 1, 4, 2, 5)
        ]  # as they were played
        assert len(trajectory_to_data(alternating, 1.0)) == 6
        assert sum(turn.reward for turn in trajectory.transitions) == 1.0


async def main_and_sub_agent(client: AgentClient) -> Outcome:
    """The main conversation ends the episode, after a sub-agent's that began later."""
    main: list[Any] = [{"role": "user", "content": "main"}]
    sub: list[Any] = [{"role": "user", "content": "sub"}]
    for number, messages in enumerate((main, sub, main)):
        completion = await client.chat.completions.create(messages=messages)
        messages.append({"role": "assistant", "content": completion.choices[0].message.content})
        messages.append({"role": "user", "content": "more"})
        client.metric("calls", number + 1)
        client.metric(f"call {number}", 1)
    return Outcome(1.0, {"solved": 1.0}, {"answer": "x"})


async def test_the_transition_that_ends_the_episode_is_the_last_in_lineage_order_too() -> None:
    """The Cookbook's recipes and its evaluations read ``transitions[-1].metrics``."""
    group = await do_group_rollout(ChatAgentGroupBuilder(main_and_sub_agent), YES())
    [trajectory] = group.trajectories_G
    *others, last = trajectory.transitions

    assert [transition.logs["lineage"] for transition in trajectory.transitions] == [1, 0, 0]
    expected = {"calls": 3, "call 2": 1, "solved": 1.0, "stop/completed": 1.0, "lineages": 2}
    assert last.metrics.items() >= expected.items()
    assert last.logs["answer"] == "x"
    assert [transition.episode_done for transition in trajectory.transitions] == [
        False,
        False,
        True,
    ]
    assert [transition.metrics for transition in others] == [
        {"calls": 2, "call 1": 1},
        {"calls": 1, "call 0": 1},
    ]
    assert len(trajectory_to_data(trajectory, 1.0)) == 2


async def test_each_metric_of_an_episode_in_lineage_order_is_counted_once() -> None:
    group = await do_group_rollout(ChatAgentGroupBuilder(main_and_sub_agent), YES())
    metrics = compute_trajectory_metrics([group], [[]])

    assert metrics["env/all/solved"] == 1.0
    assert metrics["env/all/lineages"] == 2.0
    assert metrics["env/all/calls"] == 2.0  # the mean over the three transitions that have it


def numbered_trajectory(count: int) -> Trajectory:
    empty = tinker.ModelInput.empty()
    turns = [
        Transition(empty, TokensWithLogprobs([number], [0.0]), 0.0, False)
        for number in range(count)
    ]
    return Trajectory(turns, empty)


@pytest.mark.parametrize(
    ("lineages", "order"),
    [
        ([], []),
        ([0], [0]),
        ([0, 0, 0], [0, 1, 2]),
        ([0, 1, 0, 1], [0, 2, 1, 3]),
        ([2, 1, 0], [0, 1, 2]),
        ([0, 1, 0], [1, 0, 2]),
        ([0, 1, 2, 1, 0], [2, 1, 3, 0, 4]),
        ([1, 0, 1, 0, 1], [1, 3, 0, 2, 4]),
        ([0, 1, 0, 5, 5], [1, 0, 2]),  # turns that the runner did not keep
    ],
)
def test_the_sort_is_in_place_and_what_ends_last_stays_last(
    lineages: list[int], order: list[int]
) -> None:
    trajectory = numbered_trajectory(len(order))
    turns = trajectory.transitions
    sort_by_lineage(trajectory, lineages)

    assert trajectory.transitions is turns
    assert [turn.ac.tokens for turn in turns] == [[number] for number in order]


def test_an_episode_without_a_turn_keeps_its_one_made_up_transition() -> None:
    trajectory = numbered_trajectory(1)
    sort_by_lineage(trajectory, [])

    assert len(trajectory.transitions) == 1


async def test_an_agent_that_makes_no_call_goes_through_a_group() -> None:
    group = await do_group_rollout(
        ChatAgentGroupBuilder(LocalName.Inner(), group_size=2), ScriptedPolicy([])
    )

    assert group.get_total_rewards() == [1.0, 1.0]


# -- strategies ----------------------------------------------------------------------------------

YES: Callable[[], ScriptedPolicy] = functools.partial(ScriptedPolicy, lambda _: "Yes.")


async def test_fail_fast_raises_the_agents_error_and_leaves_nothing_running() -> None:
    builder = ChatAgentGroupBuilder(fails_sometimes, group_size=3)
    made = remembered(builder)
    failing.add(1)

    with pytest.raises(AgentError, match=r"Run 1 fails\.") as caught:
        await do_group_rollout(builder, YES(), FailFast())

    assert isinstance(caught.value.__cause__, ValueError)
    await asyncio.sleep(0)
    assert len(made) == 3
    assert not any(env.is_running for env in made)


async def test_retry_on_failure_plays_the_failed_episode_again() -> None:
    builder = ChatAgentGroupBuilder(fails_sometimes, group_size=3)
    made = remembered(builder)
    failing.update((0, 2))

    group = await do_group_rollout(builder, YES(), RetryOnFailure(max_retries=2))

    assert sorted(group.get_total_rewards()) == [1.0, 3.0, 4.0]
    # The Cookbook counts errors by the name of their class: the agent's own stays visible.
    assert {error.error_type for error in group.rollout_errors} == {"AgentError.ValueError"}
    assert len(group.rollout_errors) == 2
    assert len(made) == 9  # a whole group for each retry, of which one env is played
    assert not any(env.is_running for env in made)
    assert envs_of(builder) == []


async def test_retries_that_run_out_raise_and_leave_nothing_running() -> None:
    builder = ChatAgentGroupBuilder(fails_sometimes, group_size=2)
    made = remembered(builder)
    failing.update(range(10))

    with pytest.raises(AgentError):
        await do_group_rollout(builder, YES(), RetryOnFailure(max_retries=1))

    assert not any(env.is_running for env in made)


async def test_a_retry_after_a_timeout_leaves_no_agent_behind() -> None:
    builder = ChatAgentGroupBuilder(blocking_agent, group_size=2)
    made = remembered(builder)
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
    assert not any(env.is_running for env in made)


async def test_a_minimal_viable_group_goes_on_with_those_that_succeeded() -> None:
    builder = ChatAgentGroupBuilder(fails_sometimes, group_size=4, group_reward=prefers_the_first)
    made = remembered(builder)
    failing.add(3)

    strategy = MinViableGroup(min_successful=3, max_retries=0)
    group = await do_group_rollout(builder, YES(), strategy)

    assert len(group.trajectories_G) == 3
    assert sorted(group.final_rewards_G) == [0.0, 0.0, 1.0]
    assert len(group.rollout_errors) == 1
    assert not any(env.is_running for env in made)


async def test_a_group_below_the_minimum_is_dropped_and_closed() -> None:
    builder = ChatAgentGroupBuilder(fails_sometimes, group_size=4)
    made = remembered(builder)
    failing.update(range(20))

    with pytest.raises(AllTrajectoriesFailedError):
        await do_group_rollout(builder, YES(), MinViableGroup(min_successful=3, max_retries=1))

    assert not any(env.is_running for env in made)


# -- nothing to learn from -------------------------------------------------------------------------


def in_training(agent: Any, **options: Any) -> ChatAgentGroupBuilder:
    builder = ChatAgentGroupBuilder(agent, group_size=2, **options)
    builder.batch = Batch(index=0, groups=1)
    return builder


@pytest.mark.parametrize("strategy", [FailFast(), RetryOnFailure(), MinViableGroup()])
async def test_a_group_without_a_call_is_dropped_in_training_and_closed(strategy: Any) -> None:
    builder = in_training(LocalName.Inner())

    with pytest.raises(
        AllTrajectoriesFailedError, match="Nothing can be learned from 2 episodes of the agent .*In"
    ):
        await do_group_rollout(builder, ScriptedPolicy([]), strategy)

    assert envs_of(builder) == []


async def test_a_group_of_masked_replies_alone_is_dropped_and_one_with_another_is_not() -> None:
    masks = ParseErrorPolicy(mask_error_turns=True)
    broken = '<tool_call>\n{"name": oops}\n</tool_call>'
    agent = blocking_agent
    with pytest.raises(AllTrajectoriesFailedError, match="or every reply is masked"):
        await do_group_rollout(
            in_training(agent, parse_error_policy=masks), ScriptedPolicy([broken, broken])
        )

    replies = itertools.chain([broken], itertools.repeat("Yes."))
    one_is_fine = ScriptedPolicy(lambda prompt: next(replies))
    group = await do_group_rollout(in_training(agent, parse_error_policy=masks), one_is_fine)
    assert len(group.trajectories_G) == 2


async def test_a_group_in_which_one_episode_calls_is_kept_whole() -> None:
    calls = itertools.cycle([True, False])

    async def agent(client: AgentClient) -> float:
        if next(calls):
            await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return 1.0

    group = await do_group_rollout(in_training(agent), YES())

    called = [bool(played.transitions[0].ac.tokens) for played in group.trajectories_G]
    assert sorted(called) == [False, True]


# -- what the runner ends --------------------------------------------------------------------------


async def rewrites_its_history(client: AgentClient) -> float:
    """Goes on for ever, with a history that it changes each time."""
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    while True:
        completion = await client.chat.completions.create(messages=messages)
        said = {"role": "assistant", "content": f"{completion.choices[0].message.content}!"}
        messages = [messages[0], said, {"role": "user", "content": "and?"}]


async def test_an_episode_that_the_runner_ends_reports_its_drift_too() -> None:
    builder = ChatAgentGroupBuilder(
        rewrites_its_history, group_size=2, limits=RolloutLimits(max_sampled_tokens=12)
    )
    group = await do_group_rollout(builder, ScriptedPolicy(lambda prompt: "x y"))

    assert {t.stop_reason for t in group.trajectories_G} == {"max_sampled_tokens"}
    for trajectory in group.trajectories_G:
        *others, last = [transition.metrics for transition in trajectory.transitions]
        assert last["lineages"] > 1
        assert last["drift"] > 0
        assert not any("lineages" in metrics for metrics in others)
    assert group.metrics_G == [{}, {}]


async def test_an_episode_that_ended_itself_is_reported_once() -> None:
    group = await do_group_rollout(ChatAgentGroupBuilder(two_sub_agents), YES())

    assert group.metrics_G == [{}]
