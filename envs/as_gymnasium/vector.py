"""``AgentVectorEnv``: plays many episodes of an agent concurrently, on one event loop.

We leave seeding, autoreset and the format of infos to Gymnasium's ``SyncVectorEnv``, which calls
the environments (``Member``) one by one. Before that, ``AgentVectorEnv`` advances all environments
concurrently, so each environment already has its result when it is called.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from gymnasium import error
from gymnasium.utils import EzPickle
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from evert.bridge.errors import EvertError
from evert.envs.as_gymnasium.arguments import NO_LIMIT, require_count, require_one_of
from evert.envs.as_gymnasium.env import AgentGymEnv, Observation, Work
from evert.envs.as_gymnasium.episode import Moment
from evert.envs.as_gymnasium.loop import Loop
from evert.envs.as_gymnasium.registration import wrap

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class AgentVectorEnv(SyncVectorEnv, EzPickle):
    """Plays many episodes of a chat agent concurrently. A step waits for the slowest episode.

    Create one with ``gymnasium.make_vec`` and any of evert's ids. The results for given seeds and
    actions are the same as with ``SyncVectorEnv``, which plays the episodes one after the other.
    Copying or unpickling an environment creates a new one with the same arguments.

    If an episode fails (``AgentError``, ``AgentTimeoutError``, ``RewardError``, ...), the others
    continue. The failed episode is truncated: its reward is NaN, its last observation is returned
    again, and the exception is in ``infos["error"]``. If an episode fails to start, its observation
    is ``()``, and it is truncated at the next step. Pass ``on_agent_error=-1.0`` to give such
    episodes a reward instead.

    Args:
        num_envs: Number of environments.
        autoreset_mode: "NextStep", "SameStep" or "Disabled", or Gymnasium's ``AutoresetMode``.
        max_episode_steps: Steps after which an episode is truncated (default: no limit).
        **arguments: Arguments for ``AgentGymEnv``.

    Raises:
        EnvArgumentError: An argument is unknown or has an invalid value.
        InvalidAgentError: ``agent`` is not an agent, or has the wrong signature.
        InvalidDatasetError: ``tasks`` is not a sequence, or is empty.
    """

    envs: list["Member"]  # type: ignore[assignment]

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        **arguments: Any,
    ) -> None:
        require_count("num_envs", num_envs)
        if max_episode_steps is not None:
            require_count("max_episode_steps", max_episode_steps, NO_LIMIT)
        if not isinstance(autoreset_mode, AutoresetMode):
            require_one_of("autoreset_mode", autoreset_mode, [mode.value for mode in AutoresetMode])
        arguments = {name: wrap(value) for name, value in arguments.items()}
        make = partial(Member, max_episode_steps, **arguments)
        members = [make] * num_envs  # no need to copy, as observations are new objects
        SyncVectorEnv.__init__(self, members, copy=False, autoreset_mode=autoreset_mode)
        settings = {"autoreset_mode": autoreset_mode, "max_episode_steps": max_episode_steps}
        EzPickle.__init__(self, num_envs, **settings, **arguments)  # for copies
        self._loop: Loop | None = None

    # -- Gymnasium -------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Stop the running episodes and start a new one in each environment.

        Args:
            seed: Seed for the first environment (the others use consecutive seeds), or a list with
                one seed per environment (default: don't reseed).
            options: Pass ``{"task": task}`` to play this task in all environments, or
                ``{"reset_mask": boolean array}`` to reset only some of them.

        Raises:
            EnvArgumentError: An option is unknown, or the task is not one of the tasks.
            EvertError: All episodes failed to start; this is the error of the first one.
        """
        self.closed = False  # can be reset after close(), like a single environment
        reset_options = dict(options or {})
        mask = reset_options.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_))
        seeds = _seeds(seed, self.num_envs)
        if _is_mask(mask, self.num_envs) and len(seeds) == self.num_envs:
            self._clear_results()
            self._start({int(i): seeds[i] for i in np.flatnonzero(mask)}, reset_options)
            failure = self.envs[0].failure
            if failure is not None and all(env.failure for env in self.envs):
                raise failure
        return super().reset(seed=seeds, options=options and dict(options))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Reply to every agent with its action, and wait for all of them.

        Raises:
            gymnasium.error.InvalidAction: An action is not in the action space, or the number of
                actions is wrong. No episode has advanced.
            gymnasium.error.ResetNeeded: No episodes are running, or an episode is over and
                autoreset is disabled.
        """
        actions = _action_tuple(actions, self.num_envs)
        over = {int(i) for i in np.flatnonzero(self._autoreset_envs)}  # set by SyncVectorEnv
        if over and self.autoreset_mode == AutoresetMode.DISABLED:
            raise error.ResetNeeded(
                f"The episodes of environments {sorted(over)} are over, and autoreset is disabled. "
                'Call reset(options={"reset_mask": terminated | truncated}) first.'
            )
        self._clear_results()
        renews = self.autoreset_mode == AutoresetMode.NEXT_STEP
        self._advance(actions, over if renews else set())
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            self._start({i: None for i, env in enumerate(self.envs) if env.is_over}, None)
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        """Stop all episodes concurrently and release the event loop."""
        episodes = [env.detach_episode("the environment was closed") for env in self.envs]
        loop, self._loop = self._loop, None
        if loop is not None and loop.is_ours:
            loop.run(partial(_gather, [episode.close for episode in episodes if episode]))
            loop.leave()
        super().close_extras(**kwargs)

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        """Work around Gymnasium's method, which truncates floats if the first value is an int."""
        for key, value in env_info.items():
            array = vector_infos.get(key)
            if isinstance(array, np.ndarray) and not _holds(array, value):
                values = array.tolist() if array.ndim == 1 else list(array)
                vector_infos[key] = np.full(self.num_envs, None, dtype=object)
                for i in np.flatnonzero(vector_infos[f"_{key}"]):
                    vector_infos[key][i] = values[i]
        return super()._add_info(vector_infos, env_info, env_num)

    # -- concurrent play -------------------------------------------------------------------------

    def _clear_results(self) -> None:
        for env in self.envs:
            env.results.clear()

    def _start(self, seeds: Mapping[int, int | None], options: dict[str, Any] | None) -> None:
        works = {i: self.envs[i].prepare_reset(seed=s, options=options) for i, s in seeds.items()}
        for i, result in self._play(works).items():
            self.envs[i].queue_reset(result)

    def _advance(self, actions: Sequence[Any], over: set[int]) -> None:
        works = {
            i: env.prepare_step(actions[i])
            for i, env in enumerate(self.envs)
            if i not in over and env.failure is None
        }
        resets = {i: self.envs[i].prepare_reset(seed=None, options=None) for i in over}
        results = self._play(works | resets)
        for i, env in enumerate(self.envs):
            if i in over:
                env.queue_reset(results[i])
            else:
                env.queue_step(results[i] if env.failure is None else env.failure)

    def _play(self, works: Mapping[int, Work]) -> dict[int, Moment | EvertError]:
        """Run the environments' work on the loop. Agent errors are returned as results."""
        if self._loop is None or not self._loop.is_ours:
            self._loop = Loop(self)
        results = dict[int, Moment | EvertError]()
        try:
            work = partial(_gather, [partial(_result_or_error, w) for w in works.values()])
            for i, result in zip(works, self._loop.run(work), strict=True):
                if not isinstance(result, Moment | EvertError):
                    raise result
                results[i] = result
        except BaseException as problem:
            for i in works:
                self.envs[i].record_failure(problem)
            raise
        for i, result in results.items():
            if isinstance(result, EvertError):
                logger.warning("The episode of environment %d failed: %s", i, result)
        return results


class Member(AgentGymEnv):
    """One of the vector's environments. ``reset`` and ``step`` return results prepared in advance.

    Attributes:
        results: The prepared results, in order. If empty, ``reset`` and ``step`` run normally.
        failure: The error with which the episode failed to start, or None.
        is_over: Whether the latest step ended the episode.
    """

    def __init__(self, max_episode_steps: int | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.results: deque[tuple[Any, ...]] = deque()
        self.failure: EvertError | None = None
        self.is_over = False
        self._max_steps = math.inf if max_episode_steps is None else max_episode_steps
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Return the result that ``queue_reset`` prepared."""
        return self.results.popleft() if self.results else super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Return the result that ``queue_step`` prepared."""
        return self.results.popleft() if self.results else super().step(action)

    def queue_reset(self, result: Moment | EvertError) -> None:
        """Prepare the result of a reset."""
        self._steps, self.is_over, self.failure = 0, False, None
        if isinstance(result, EvertError):
            self.failure = result
            self.record_failure(result)
            self.results.append(((), {"error": result}))
        else:
            self.results.append(self.finish_reset(result))

    def queue_step(self, result: Moment | EvertError) -> None:
        """Prepare the result of a step."""
        self._steps += 1
        if isinstance(result, Moment):
            observation, reward, terminated, truncated, info = self.finish_step(result)
        else:
            latest = None if self.failure is not None else self._moment
            observation = () if latest is None else self._observation(latest)
            reward, terminated, truncated, info = math.nan, False, True, {"error": result}
            self.record_failure(result)
        truncated = truncated or self._steps >= self._max_steps
        self.is_over = terminated or truncated
        self.results.append((observation, reward, terminated, truncated, info))


async def _gather(works: Iterable[Callable[[], Coroutine[Any, Any, Result]]]) -> list[Result]:
    return await asyncio.gather(*(work() for work in works))


async def _result_or_error(work: Work) -> Moment | BaseException:
    try:
        return await work()
    except asyncio.CancelledError:
        raise
    except BaseException as problem:  # let the other environments finish
        return problem


def _seeds(seed: int | list[int | None] | None, length: int) -> list[int | None]:
    if isinstance(seed, int):
        return [seed + i for i in range(length)]
    return [None] * length if seed is None else seed


def _is_mask(mask: Any, length: int) -> bool:
    return isinstance(mask, np.ndarray) and mask.shape == (length,) and mask.dtype == np.bool_


def _action_tuple(actions: Any, length: int) -> tuple[Any, ...]:
    is_many = isinstance(actions, Iterable) and not isinstance(actions, (str, bytes, Mapping))
    items = tuple(actions) if is_many else ()
    if len(items) != length:
        value = f"{len(items)} actions" if is_many else f"{actions!r:.200}"
        raise error.InvalidAction(
            f"{length} environments need a tuple, list or array of {length} actions; got {value}. "
            "Include an action even for episodes that are over; it is ignored."
        )
    return items


def _holds(array: np.ndarray[Any, Any], value: Any) -> bool:
    if array.dtype == object:
        return True
    return bool(array.shape[1:] == np.shape(value) and array.dtype == np.asarray(value).dtype)
