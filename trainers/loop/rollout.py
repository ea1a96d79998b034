"""``evert.rollout``: plays episodes concurrently.

    batch = await evert.rollout(agent, tasks, policy, group_size=8, max_tokens=64, seed=step)

Each task becomes a Cookbook group (``ChatAgentGroupBuilder``). The sampled tokens depend on
``seed`` and on the indices of the task, episode and seat, but not on the order in which episodes
are played.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, starmap
from typing import Any, Protocol, TypeAlias, Unpack, runtime_checkable

import tinker
from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.types import Env, Trajectory

from evert.bridge.env.options import EnvOptions
from evert.bridge.env.parallel import do_parallel_rollout
from evert.bridge.episode.agent import Agent
from evert.bridge.episode.seeds import seed_of
from evert.bridge.errors import AgentError, EvertError, InvalidDatasetError, repr_of
from evert.bridge.groups.advantages import Group
from evert.bridge.groups.group import ChatAgentGroupBuilder, lineage_order
from evert.bridge.groups.rewards import GroupReward
from evert.bridge.groups.tasks import load_tasks
from evert.bridge.models.tinker_model import context_length_here
from evert.bridge.records.recorder import Recorder
from evert.bridge.tokens.bases import model_renderer
from evert.trainers.config.fields import at_a_time
from evert.trainers.episodes.failures import Failure, Failures, failure_in, failure_of
from evert.trainers.episodes.playing import gather_seats, side_by_side
from evert.trainers.episodes.policies import SeededPolicy
from evert.trainers.loop.batch import Batch, TaskEpisodes
from evert.trainers.serving.client import ServedSamplingClient


@runtime_checkable
class InTraining(Protocol):
    """A model in training, as returned by ``evert.models``."""

    renderer: Renderer
    context_length: int | None

    async def sampler(self) -> tinker.SamplingClient:
        """Return a client that samples from the current weights."""
        ...


Sampled: TypeAlias = tinker.SamplingClient | ServedSamplingClient | TokenCompleter
"""Anything that can sample replies to an agent's calls."""

Policy: TypeAlias = Sampled | InTraining
"""``Sampled``, or a model in training, which plays with its current weights."""


async def rollout(
    agent: Agent | str,
    tasks: Sequence[Any],
    policy: Policy | Mapping[str, Policy] | None = None,
    *,
    group_size: int = 8,
    seats: Sequence[str] | Mapping[str, Policy] = (),
    max_tokens: int = 256,
    temperature: float = 1.0,
    seed: int = 0,
    parallel: int | None = None,
    group_reward: GroupReward | None = None,
    record: Recorder | None = None,
    **options: Unpack[EnvOptions],
) -> Batch:
    """Play ``group_size`` episodes for each task.

    Failed episodes are excluded (``batch.failures``), unless ``on_agent_error`` scores them.

    Args:
        agent: The agent, or its import path.
        tasks: P tasks, or their import path. There is one group of episodes per task.
        policy: A sampling client, a model from ``evert.models``, or a ``TokenCompleter`` (with its
            own limits and seeds). For an agent with seats, pass one policy or a mapping from seats.
        group_size: G, the number of episodes per task.
        seats: Names of the agent's trained roles, or a mapping from these names to policies.
        max_tokens: Maximum number of tokens in a reply.
        temperature: Sampling temperature.
        seed: Seed for sampling and for the agents' random numbers. Use a new seed for each step.
        parallel: Maximum number of concurrent episodes (default: 16 per core, up to 256).
        group_reward: Computes additional rewards by comparing a group's trajectories.
        record: Records all trajectories, if set.
        **options: ``ChatAgentEnv`` options. By default, ``renderer`` and ``context_length`` match
            the base model.

    Raises:
        AgentError: All episodes failed.
        InvalidAgentError, InvalidDatasetError: See ``ChatAgentGroupBuilder``; or no task or policy.
    """
    tasks = _load(tasks)
    names, policies = _by_seat(policy, seats)
    _check(policies)
    options = _with_model(options, policies)
    samplers = [await p.sampler() if isinstance(p, InTraining) else p for p in policies]
    draws = _Draws(samplers, max_tokens, temperature, seed)
    build = partial(ChatAgentGroupBuilder, agent, group_size=group_size, seats=names)
    build = partial(build, group_reward=group_reward, record=record)
    builders = [build(task=t, seed=seed_of(seed, n), **options) for n, t in enumerate(tasks)]
    groups = await _play_all(builders, draws, asyncio.Semaphore(at_a_time(parallel)))
    return _batch(tasks, group_size, names, groups)


def _load(tasks: Sequence[Any]) -> Sequence[Any]:
    sequence = load_tasks(tasks)
    if len(sequence) == 0:
        raise InvalidDatasetError("rollout got no tasks; expected at least one task.")
    return sequence


@dataclass(frozen=True)
class _Draws:
    policies: Sequence[Sampled]
    max_tokens: int
    temperature: float
    seed: int

    def policy(self, place: int, member: int, seat: int) -> TokenCompleter:
        """Return a completer, given the indices of a task, an episode in its group, and a seat."""
        policy = self.policies[seat]
        if isinstance(policy, TokenCompleter):
            return policy
        number = seed_of(self.seed, place, member, seat) >> 1
        return SeededPolicy(policy, self.max_tokens, self.temperature, number)


def _by_seat(
    policy: Policy | Mapping[str, Policy] | None, seats: Sequence[str] | Mapping[str, Policy]
) -> tuple[tuple[str, ...], list[Policy]]:
    """Return the names and policies of the seats. Without seats, return one policy and no names."""
    if policy is None and isinstance(seats, Mapping):
        policy = seats
    if policy is None:
        raise InvalidDatasetError(
            "rollout got no policy. Pass one policy, or one for each seat: "
            'seats={"player": player, "judge": judge}.'
        )
    if not isinstance(policy, Mapping):
        return tuple(seats), [policy] * max(1, len(seats))
    names = tuple(seats) or tuple(policy)
    if policy.keys() != set(names):
        raise InvalidDatasetError(
            f"policy has the seats {', '.join(policy) or 'none'}, but the agent has "
            f"{', '.join(names) or 'none'}. Pass a policy for each seat, or one for all."
        )
    return names, [policy[seat] for seat in names]


def _check(policies: Sequence[object]) -> None:
    for policy in policies:
        samples = isinstance(policy, TokenCompleter | InTraining) or hasattr(policy, "sample_async")
        if not samples:
            raise InvalidDatasetError(
                f"The policy is {repr_of(policy)}; expected a sampling client, a model from "
                "evert.models, or a TokenCompleter such as ScriptedPolicy. To create a sampling "
                "client for a base model, use "
                "tinker.ServiceClient().create_sampling_client(base_model='evert-tiny')."
            )


def _check_vocabularies(policies: Sequence[Policy]) -> None:
    """Raise an error if the seats' vocabularies differ. All prompts use the same vocabulary."""
    tokenizers: list[Any] = [
        policy.renderer.tokenizer for policy in policies if isinstance(policy, InTraining)
    ]
    clients = [
        policy
        for policy in dict.fromkeys(policies)
        if isinstance(policy, tinker.SamplingClient | ServedSamplingClient)
    ]
    bases = {client.get_base_model(): client for client in clients}
    if len(bases) + len(tokenizers) > 1:
        tokenizers += [client.get_tokenizer() for client in bases.values()]
    by_name = {getattr(tokenizer, "name_or_path", tokenizer): tokenizer for tokenizer in tokenizers}
    if len(by_name) > 1 and any(
        first.get_vocab() != second.get_vocab() for first, second in pairwise(by_name.values())
    ):
        raise InvalidDatasetError(
            f"The seats' models have different base models ({', '.join(map(str, by_name))}), but "
            "all seats must use the same tokens. Use models with the same base model, for example "
            "from a single call to evert.models."
        )


def _with_model(options: EnvOptions, policies: Sequence[Policy]) -> EnvOptions:
    """If renderer or context length is not set, use that of the first policy's base model."""
    sampled = [candidate for candidate in policies if not isinstance(candidate, TokenCompleter)]
    policy = sampled[0] if sampled else None
    _check_vocabularies(sampled)
    renderer, context = options.get("renderer"), options.get("context_length")
    if isinstance(policy, InTraining):
        renderer, context = renderer or policy.renderer, context or policy.context_length
    elif isinstance(policy, tinker.SamplingClient | ServedSamplingClient):
        base = policy.get_base_model()
        renderer, context = renderer or model_renderer(base), context or context_length_here(base)
    env_options: EnvOptions = {**options}
    if renderer is not None:
        env_options["renderer"] = renderer
    if context is not None:
        env_options["context_length"] = context
    return env_options


# -- playing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GroupResult:
    by_seat: Sequence[TaskEpisodes]
    failures: Sequence[Failure]
    error: Exception | None
    """The first agent error that ended an episode without a reward, if any."""


async def _play_all(
    builders: Sequence[ChatAgentGroupBuilder], draws: _Draws, places: asyncio.Semaphore
) -> list[_GroupResult]:
    return await side_by_side(
        _play(builder, partial(draws.policy, place), places)
        for place, builder in enumerate(builders)
    )


async def _play(
    builder: ChatAgentGroupBuilder,
    policy_of: Callable[[int, int], TokenCompleter],
    places: asyncio.Semaphore,
) -> _GroupResult:
    """Play a group, and close its Envs even if there is an error."""
    width = max(1, len(builder.seats))

    async def play_episode(member: int, envs: Sequence[Env]) -> list[Trajectory] | EvertError:
        policies = [policy_of(member, seat) for seat in range(width)]
        async with places:
            try:
                return await gather_seats(list(map(do_parallel_rollout, policies, envs)))
            except EvertError as error:
                if failure_of(error) is None:
                    raise
                return error

    try:
        envs = await builder.make_envs()
        episodes = [envs[first : first + width] for first in range(0, len(envs), width)]
        ends = await side_by_side(starmap(play_episode, enumerate(episodes)))
        ended = {member: end for member, end in enumerate(ends) if isinstance(end, list)}
        errors = [end for end in ends if not isinstance(end, list)]
        by_seat = await _add_rewards(builder, ended, [episodes[member] for member in ended])
    finally:
        await builder.cleanup()
    scored = [failure_in(seats[0]) for seats in ended.values() if seats]
    failures = [failure_of(error) for error in errors]
    return _GroupResult(
        by_seat,
        [failure for failure in [*failures, *scored] if failure is not None],
        errors[0] if errors else None,
    )


async def _add_rewards(
    builder: ChatAgentGroupBuilder,
    ended: Mapping[int, Sequence[Trajectory]],
    envs: Sequence[Sequence[Env]],
) -> list[TaskEpisodes]:
    flat = [trajectory for episode in ended.values() for trajectory in episode]
    places: list[Any] = [env for episode in envs for env in episode]
    # compute_group_rewards sorts the transitions, so save their order first
    order = [lineage_order(t, env.turn_lineages) for t, env in zip(flat, places, strict=True)]
    added = list[float]()
    if flat:
        pairs = await builder.compute_group_rewards(flat, places)
        added = [further for further, _ in pairs]
        for number, (_, metrics) in enumerate(pairs if builder.seats else ()):
            seat = builder.seats[number % len(builder.seats)]
            earned = math.fsum(turn.reward for turn in flat[number].transitions)
            # this metric is the total before compute_group_rewards shifts the seats' rewards
            added[number] = metrics[f"seat/{seat}/reward"] - earned
    names = builder.seats or ("",)
    width = len(names)
    return [
        TaskEpisodes(
            Group(builder.task, flat[at::width], order[at::width], added[at::width], seat),
            [*ended],
        )
        for at, seat in enumerate(names)
    ]


def _batch(
    tasks: Sequence[Any], group_size: int, seats: Sequence[str], groups: Sequence[_GroupResult]
) -> Batch:
    all_failures = [failure for group in groups for failure in group.failures]
    failures = Failures.of(len(tasks) * group_size, [(failure, 1) for failure in all_failures])
    if not any(episodes.members for group in groups for episodes in group.by_seat):
        first = next(group.error for group in groups if group.error is not None)
        raise AgentError(
            f"All episodes failed: {failures.summary()}. First error: {first}"
        ) from first
    names = seats or ("",)
    by_seat = {seat: [group.by_seat[at] for group in groups] for at, seat in enumerate(names)}
    return Batch(tasks, group_size, by_seat, failures)
