"""Play agents with a scripted policy and the Cookbook's runner, and check their trajectories."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup

from evert import (
    AgentClient,
    BlockingAgentClient,
    ChatAgentEnv,
    ChatAgentGroupBuilder,
    Recorder,
    RolloutRecord,
    ScriptedPolicy,
    read_records,
)

Reply = str | Callable[[str], str]


def policy_of(*replies: Reply, **options: Any) -> ScriptedPolicy:
    """Return a policy that gives these replies in order, or calls a function on each prompt. By
    default, it always says "Fine."."""
    if replies and callable(replies[0]):
        return ScriptedPolicy(replies[0], **options)
    return ScriptedPolicy([str(reply) for reply in replies] or (lambda prompt: "Fine."), **options)


def _completer(script: tuple[Reply | TokenCompleter, ...], **options: Any) -> TokenCompleter:
    if script and isinstance(script[0], TokenCompleter):
        return script[0]
    return policy_of(*script, **options)  # type: ignore[arg-type]


class Numbered(ScriptedPolicy):
    """A policy that gives each token a different log-probability and collects these numbers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.logprobs: list[float] = []

    async def __call__(self, *arguments: Any, **options: Any) -> TokensWithLogprobs:
        action = await super().__call__(*arguments, **options)
        begin = len(self.logprobs) + 1
        logprobs = [-(begin + number) / 8 for number in range(len(action.tokens))]
        self.logprobs += logprobs
        return TokensWithLogprobs(action.tokens, logprobs, action.stop_reason)


async def play(agent: Any, *script: Reply | TokenCompleter, **options: Any) -> Trajectory:
    """Play an episode with a policy or with scripted replies. ``options`` are passed to
    ``ChatAgentEnv``, including ``task``."""
    policy = _completer(script, renderer=options.get("renderer"))
    return await do_single_rollout(policy, ChatAgentEnv(agent, **options))


async def play_group(
    agent: Any, size: int, *script: Reply | TokenCompleter, strategy: Any = None, **options: Any
) -> TrajectoryGroup:
    """Like ``play``, for a group. ``options`` are passed to ``ChatAgentGroupBuilder``."""
    builder = ChatAgentGroupBuilder(agent, group_size=size, **options)
    return await do_group_rollout(builder, _completer(script), strategy)


async def play_recorded(
    folder: Path,
    agent: Any,
    *script: Reply | TokenCompleter,
    runner: Callable[..., Any] = do_single_rollout,
    **options: Any,
) -> tuple[RolloutRecord, Trajectory]:
    """Like ``play``, but also record to ``rollouts.jsonl``. Returns the record and trajectory."""
    recorder = Recorder(folder / "rollouts.jsonl")
    env = recorder.watch(ChatAgentEnv(agent, **options))
    trajectory = await runner(_completer(script, renderer=options.get("renderer")), env)
    recorder.add([trajectory], [env])
    return [*read_records(folder)][-1], trajectory


async def start(agent: Any, *task: Any, **options: Any) -> ChatAgentEnv:
    """Start an episode, and wait until its agent has made a call or has ended without one."""
    env = ChatAgentEnv(agent, *task, **options)
    await env.initial_observation()
    return env


async def play_without_a_call(agent: Any, **options: Any) -> None:
    """Play an agent that never calls the policy and returns 1.0 after its assertions."""
    end: Any = await ChatAgentEnv(agent, **options).initial_observation()
    assert end.reward == 1.0


def as_agent(*script: Reply, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turn an agent with assertions into a test. All parameters except ``client`` are fixtures.

    Without a script, the agent must not call the policy.
    """

    def test_of(body: Callable[..., Any]) -> Callable[..., Any]:
        parameters = dict(inspect.signature(body).parameters)
        has_client = parameters.pop("client", None) is not None

        @wraps(body)
        async def test(**fixtures: Any) -> None:
            async def agent(client: AgentClient) -> float:
                await body(*[client] * has_client, **fixtures)
                return 1.0

            def blocking(client: BlockingAgentClient) -> float:
                body(*[client] * has_client, **fixtures)
                return 1.0

            of_its_kind = agent if inspect.iscoroutinefunction(body) else blocking
            if script:
                assert reward(await play(of_its_kind, *script, **options)) == 1.0
            else:
                await play_without_a_call(of_its_kind, **options)

        test.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
        return test

    return test_of


def assert_extends(trajectory: Trajectory) -> None:
    """Assert that each prompt starts with the previous prompt and its exact sampled tokens."""
    for before, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
        prefix = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(prefix)] == prefix


def rewards(trajectory: Trajectory) -> list[float]:
    """Return the reward of each transition."""
    return [transition.reward for transition in trajectory.transitions]


def reward(trajectory: Trajectory) -> float:
    """Return the reward of the whole episode."""
    return sum(rewards(trajectory))
