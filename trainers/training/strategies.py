"""Rollout strategies that play groups, drop failed episodes, and keep statistics.

    LeaveOut    drops episodes whose agent failed; this is the default
    Accounted   wraps a strategy and keeps a summary of the group that it plays
    Counted     wraps a strategy and reports the summary of every group to a ``Tally``

Errors that were not caused by an agent, for example in the engine, stop the run.
"""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.rollout_strategy import RolloutResult, RolloutStrategy
from tinker_cookbook.rl.train import Config
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RolloutError, Trajectory

from evert.bridge.env.endings import AGENT_ERROR, AGENT_TIMEOUT
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.parallel import ParallelRollouts, do_parallel_rollout
from evert.bridge.groups.group import BatchPosition
from evert.bridge.records.sequences import dialogue
from evert.bridge.redaction import redacted_logs
from evert.trainers.episodes.failures import Failure, failure_of
from evert.trainers.training.failing_batches import BatchSummary, Tally

LOGGED_GROUPS, LOGGED_CHARACTERS = 2, 6_000
"""How many groups per batch have an episode logged, and the maximum length of a logged text."""


@dataclass(frozen=True)
class FailedRollout(RolloutError):
    """The Cookbook's record of a dropped episode, with its ``Failure``."""

    failure: Failure = field(kw_only=True)


class GroupFailedError(AllTrajectoriesFailedError):
    """All episodes of a group failed, so the Cookbook drops the group."""

    def __init__(self, errors: Sequence[RolloutError]) -> None:
        super().__init__(f"All {len(errors)} episodes of a group failed: {errors[0].error_message}")
        self.errors = list(errors)


@dataclass(frozen=True)
class LeaveOut(RolloutStrategy):
    """Plays the episodes of a group concurrently and drops failed episodes."""

    async def execute(
        self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter
    ) -> RolloutResult:
        """Play a group."""
        envs = await env_group_builder.make_envs()
        ends = await asyncio.gather(*(_play(policy, env) for env in envs))
        errors: list[RolloutError] = [end for end in ends if isinstance(end, RolloutError)]
        if envs and len(errors) == len(envs):
            raise GroupFailedError(errors)
        pairs = [
            (end, env)
            for end, env in zip(ends, envs, strict=True)
            if not isinstance(end, RolloutError)
        ]
        return RolloutResult([end for end, _ in pairs], [env for _, env in pairs], errors)


async def _play(policy: TokenCompleter, env: Env) -> Trajectory | FailedRollout:
    try:
        return await do_parallel_rollout(policy, env)
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        return FailedRollout(type(error).__name__, str(error), failure=failure)


def strategy_of(config: Config) -> RolloutStrategy:
    """Return the strategy set in the config (default: ``LeaveOut``)."""
    if config.rollout_error_tolerance is None:
        return LeaveOut()
    strategy = config.effective_rollout_strategy()
    return strategy if isinstance(strategy, ParallelRollouts) else ParallelRollouts(strategy)


class Accounted(RolloutStrategy):
    """Plays one group, and then keeps its summary in ``account``.

    If an error stops the run, ``account`` remains None.
    """

    def __init__(self, inner: RolloutStrategy) -> None:
        self.inner = inner
        self.account: BatchSummary | None = None

    @property
    def catches_group_errors(self) -> bool:
        """See the wrapped strategy."""
        return self.inner.catches_group_errors

    async def execute(
        self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter
    ) -> RolloutResult:
        """Play a group."""
        try:
            result = await self.inner.execute(env_group_builder, policy)
        except Exception as error:
            if isinstance(error, AllTrajectoriesFailedError) or self.catches_group_errors:
                self.account = BatchSummary.of([], _failures_of_group(error))
            raise
        batch: BatchPosition | None = getattr(env_group_builder, "batch", None)
        if batch is not None and batch.number < LOGGED_GROUPS and result.trajectories:
            _log_texts(result.trajectories[0], result.envs[0])
        failures = [_failure_of_rollout(error) for error in result.errors]
        self.account = BatchSummary.of(result.trajectories, failures)
        return result


class Counted(RolloutStrategy):
    """Wraps a strategy and counts its groups, no matter where they are played.

    It is pickled as an ``Accounted``: the worker returns a summary of the group, and the executor
    passes the summary to ``count_group`` in this process (``workers/executor.py``). ``held_out``
    limits the number of concurrent groups of held-out tasks (default: no limit).
    """

    def __init__(
        self, inner: RolloutStrategy, tally: Tally, held_out: asyncio.Semaphore | None = None
    ) -> None:
        self.inner = inner  # public, so that the Cookbook includes it in config.json
        self._tally = tally
        self._held_out = held_out

    def __deepcopy__(self, memo: dict[int, Any]) -> "Counted":
        return self  # the Cookbook copies its config, but all copies must share the tally

    def __reduce__(self) -> tuple[Any, ...]:
        return Accounted, (self.inner,)

    @property
    def catches_group_errors(self) -> bool:
        """See the wrapped strategy."""
        return self.inner.catches_group_errors

    async def execute(
        self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter
    ) -> RolloutResult:
        """Play a group."""
        accounted = Accounted(self.inner)
        is_held_out = getattr(env_group_builder, "batch", None) is None
        try:
            async with (self._held_out if is_held_out else None) or nullcontext():
                result = await accounted.execute(env_group_builder, policy)
        except Exception as error:
            self.count_group(env_group_builder, accounted.account, error)
            raise
        self.count_group(env_group_builder, accounted.account, None)
        return result

    def count_group(
        self, group: EnvGroupBuilder, account: BatchSummary | None, error: BaseException | None
    ) -> None:
        """Count a group. If it has no summary, stop the run with the group's error."""
        batch: BatchPosition | None = getattr(group, "batch", None)
        if account is not None and batch is not None:
            self._tally.count(batch, account)
        elif account is None and isinstance(error, Exception):
            self._tally.end(error)

    def count_lost(self, why: str) -> None:
        """Count a group that was lost because its worker died."""
        self._tally.count_lost(why)


def _log_texts(trajectory: Trajectory, env: Env) -> None:
    """Add the text of every turn to its logs, which the Cookbook writes to rollout files."""
    if isinstance(env, ChatAgentEnv):
        turns = dialogue(trajectory, env.renderer.tokenizer)
        for transition, turn in zip(trajectory.transitions, turns, strict=True):
            cut = {name: text[:LOGGED_CHARACTERS] for name, text in turn.items()}
            transition.logs |= {**redacted_logs(cut), **transition.logs}


def _failures_of_group(error: Exception) -> list[Failure]:
    """Return a group's failures. If the strategy stops at the first failure, there is only one."""
    if isinstance(error, GroupFailedError):
        return [_failure_of_rollout(rollout_error) for rollout_error in error.errors]
    return [failure_of(error) or Failure(AGENT_ERROR, f"{type(error).__name__}: {error}")]


def _failure_of_rollout(error: RolloutError) -> Failure:
    if isinstance(error, FailedRollout):
        return error.failure
    text = f"{error.error_type}: {error.error_message}"
    return Failure(AGENT_TIMEOUT if "Timeout" in error.error_type else AGENT_ERROR, text)
