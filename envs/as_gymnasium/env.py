"""``AgentGymEnv``: a chat agent as a synchronous ``gymnasium.Env``.

An observation is the agent's model call, and an action is the reply. ``reset`` draws a task and
starts the agent (``episode.py``) on the event loop that all environments share (``loop.py``).
``step`` waits for the agent's next call. This file handles arguments, seeds, spaces and results.
"""

import copy
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal, Unpack

import gymnasium
from gymnasium import error
from gymnasium.utils import EzPickle

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.episode.agent import NO_TASK, Agent, inspect_agent
from evert.bridge.episode.seeds import seed_of
from evert.bridge.errors import RendererMismatchError
from evert.bridge.groups.group import load_agent
from evert.bridge.groups.kept import unwrap
from evert.bridge.tokens.renderer import prompt_renderer
from evert.envs.as_gymnasium.arguments import (
    is_same_task,
    read_options,
    read_tasks,
    require_one_of,
    require_supported,
)
from evert.envs.as_gymnasium.episode import AgentEpisode, Moment, copy_json
from evert.envs.as_gymnasium.loop import Loop
from evert.envs.as_gymnasium.registration import wrap
from evert.envs.as_gymnasium.spaces import (
    AnyText,
    message_observation,
    message_space,
    text_action,
    token_action,
    token_space,
)
from evert.envs.as_gymnasium.transcript import Screen, transcript
from evert.envs.games import EnvArgumentError

Level = Literal["messages", "tokens"]
LEVELS: tuple[Level, ...] = ("messages", "tokens")

Observation = tuple[dict[str, str], ...] | tuple[int, ...]

Work = Callable[[], Coroutine[Any, Any, Moment]]
"""A coroutine function to run on the loop."""


class AgentGymEnv(gymnasium.Env[Any, Any], EzPickle):
    """A chat agent as a Gymnasium environment.

    Make it with ``gymnasium.make``; ``evert.register_agent`` gives an agent an id. An instance has
    the ``__doc__`` of its agent. A copy made by ``copy`` or ``pickle`` is a new environment with
    the same arguments.

    ## Action Space

    level="messages": ``Text``, the reply; evert adds the end of the turn. Text that looks like a
    control token stays text. The renderer still parses tool calls and the like.
    level="tokens": ``Sequence(Discrete(vocabulary))``, the sampled tokens with the end of the turn,
    used exactly as given.

    ## Observation Space

    level="messages": ``Sequence(Dict(role: Text, content: Text))``, the conversation the agent asks
    the policy to continue, and at the end also the last reply. An image becomes "[image_url]".
    level="tokens": ``Sequence(Discrete(vocabulary))``, the same conversation, as tokens.

    ## Starting State

    A task drawn uniformly from ``tasks`` with the environment's seeded generator, or
    ``options={"task": ...}``; the agent's first model call.

    ## Reward

    What the agent gives for the action (``client.reward``), plus its return value at the end.

    ## Episode End

    Terminated: the agent returned. Truncated: a budget was used up, and ``info["stop_reason"]`` is
    max_turns, max_tokens, max_sampled_tokens or max_tool_calls; or the agent returned
    ``Outcome(reward, truncated=True)``, and the reason is "truncated".

    ## Information

    ``task`` (absent without tasks), ``messages`` (OpenAI's format, with tool calls and images),
    ``tokens`` (absent with images), ``tools``, ``stop``, ``max_tokens`` (absent without a cap; a
    longer action is cut). After a step also ``action_tokens``, ``metrics`` and ``logs``; after the
    last one ``stop_reason``.

    ## Arguments

    agent: The agent, or its import path 'package.module:function'.
    tasks: Sequence of tasks, or its import path. None: the agent takes no task.
    level: "messages" or "tokens".
    render_mode: None, "ansi" (``render()`` returns the conversation) or "human" (it is printed).
    max_turns: Maximum number of actions in an episode. None: no limit.
    options: Options of ``ChatAgentEnv`` (``renderer``, ``limits``, ``agent_timeout``, ...).

    Raises:
        EnvArgumentError: An argument has a wrong value or an unknown name.
        InvalidAgentError: ``agent`` is not an agent, or takes other arguments.
        InvalidDatasetError: ``tasks`` is not a sequence, or is empty.
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012 (Gymnasium's)

    def __init__(
        self,
        agent: Agent | str,
        tasks: Sequence[Any] | str | None = None,
        *,
        level: Level = "messages",
        render_mode: str | None = None,
        max_turns: int | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        settings = {"level": level, "render_mode": render_mode, "max_turns": max_turns, **options}
        settings = {name: wrap(value) for name, value in settings.items()}
        EzPickle.__init__(self, wrap(agent), wrap(tasks), **settings)  # for copies
        require_one_of("level", level, LEVELS)
        require_one_of("render_mode", render_mode, (None, "ansi", "human"))
        self._agent = load_agent(unwrap(agent))
        self.tasks = read_tasks(unwrap(tasks))
        self._form = inspect_agent(self._agent, NO_TASK if self.tasks is None else None)
        self.level = level
        self.render_mode = render_mode
        self._options = read_options(options, max_turns)
        self._renderer = prompt_renderer(self._options.get("renderer"))
        self._vocabulary = len(self._renderer.renderer.tokenizer)
        if level == "messages":
            self.observation_space, self.action_space = message_space(), AnyText()
        else:  # two objects, since each has its own seed
            self.observation_space = token_space(self._vocabulary)
            self.action_space = token_space(self._vocabulary)
        self.__doc__ = inspect.getdoc(self._agent) or type(self).__doc__
        self._loop: Loop | None = None
        self._episode: AgentEpisode | None = None
        self._task: Any = NO_TASK
        self._episode_index = -1
        self._moment: Moment | None = None
        self._total = 0.0
        self._screen = Screen()
        self._why_over = "reset() was never called"

    # -- Gymnasium -------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Stop the running episode, if any, and start a new one.

        Args:
            seed: Seed for the generators of tasks and of the agent. None: keep the current ones.
            options: ``{"task": task}`` plays this task instead of a random one.

        Raises:
            EnvArgumentError: Unknown option, or a task that is not among the tasks.
            EnvStateError: The agent ended before its first call.
            AgentError, AgentTimeoutError, RewardError: As in ``ChatAgentEnv``.
        """
        return self.finish_reset(self._run(self.prepare_reset(seed=seed, options=options)))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Reply to the agent's call with ``action``.

        Raises:
            gymnasium.error.InvalidAction: The action is not in the action space.
            gymnasium.error.ResetNeeded: No episode is running.
            AgentError, AgentTimeoutError, RewardError: As in ``ChatAgentEnv``. The episode is over.
        """
        return self.finish_step(self._run(self.prepare_step(action)))

    def render(self) -> str | None:
        """Return the conversation so far as text ("ansi"), or print it and return None ("human").

        Raises:
            gymnasium.error.ResetNeeded: There is no episode yet.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render() was called on an environment made without a render_mode. Make it with "
                'gymnasium.make(..., render_mode="ansi") or "human".'
            )
            return None
        if self._moment is None:
            raise error.ResetNeeded("There is nothing to render yet: call reset() first.")
        if self.render_mode == "human":
            self._screen.show(self._moment, self._total)
            return None
        return transcript(self._moment, self._total)

    def close(self) -> None:
        """Stop the running episode and release the loop. Idempotent; ``reset`` starts again."""
        episode = self.detach_episode("the environment was closed")
        loop, self._loop = self._loop, None
        if loop is not None:
            if episode is not None:
                loop.run(episode.close)
                loop.at_end = None
            loop.leave()

    # -- reset and step in two halves: the work on the loop, and what to do with its result --------

    def prepare_reset(self, *, seed: int | None, options: dict[str, Any] | None) -> Work:
        """Prepare a reset, and return the work that stops the old episode and starts a new one."""
        super().reset(seed=seed)
        self._episode_index = 0 if seed is not None else self._episode_index + 1
        self._task = self._choose_task(options or {})
        own_seed = seed_of(self.np_random_seed, self._episode_index)
        env = ChatAgentEnv(self._agent, self._task, seed=own_seed, **self._options)
        old = self.detach_episode("its start failed")
        if self._loop is None:
            self._loop = Loop(self)
        episode = self._episode = AgentEpisode(env, self._renderer)
        self._loop.at_end = episode.close
        self._total = 0.0
        self._screen = Screen()
        return episode.start if old is None else partial(_restart, old, episode)

    def finish_reset(self, moment: Moment) -> tuple[Observation, dict[str, Any]]:
        """Record the moment after a reset, and return the result of ``reset``."""
        self._record(moment)
        return self._observation(moment), self._info(moment)

    def prepare_step(self, action: Any) -> Work:
        """Check ``action``, and return the work that answers the agent. Nothing changes yet."""
        episode = self._running_episode()
        if self.level == "messages":
            tokens = episode.encode(text_action(action))
        else:
            tokens = token_action(action, self._vocabulary)
        return partial(episode.act, tokens)

    def finish_step(self, moment: Moment) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Record the moment after a step, and return the result of ``step``."""
        assert self._loop is not None
        self._record(moment)
        is_over = moment.stop_reason is not None
        if is_over:
            self.detach_episode(f"the last one ended ({moment.stop_reason})")
            self._loop.at_end = None
        truncated = moment.is_truncated
        info = self._info(moment)
        return self._observation(moment), moment.reward, is_over and not truncated, truncated, info

    def record_failure(self, problem: BaseException) -> None:
        """Record that the work failed, which ends the episode."""
        self._why_over = f"the last one ended with {type(problem).__name__}"

    def detach_episode(self, why: str) -> AgentEpisode | None:
        """Detach the running episode, for the caller to close. None if no episode is running."""
        self._notice_fork()
        episode, self._episode = self._episode, None
        self._why_over = why
        return episode

    def _run(self, work: Work) -> Moment:
        assert self._loop is not None
        try:
            return self._loop.run(work)
        except BaseException as problem:
            self.record_failure(problem)
            raise

    def _record(self, moment: Moment) -> None:
        self._why_over = ""
        self._moment = moment
        self._total += moment.reward
        if self.render_mode == "human":
            self._screen.show(moment, self._total)

    def _running_episode(self) -> AgentEpisode:
        self._notice_fork()
        if self._episode is None or self._why_over:
            raise error.ResetNeeded(
                f"step() needs a running episode, and this environment of {self._form.name} has "
                f"none: {self._why_over}. Call reset() to start one."
            )
        return self._episode

    def _notice_fork(self) -> None:
        """In a forked child, forget the parent's episode, whose thread is missing."""
        if self._loop is not None and not self._loop.is_ours:
            self._episode = self._loop = None
            self._why_over = "the last one was started before this process was forked"

    def _choose_task(self, options: dict[str, Any]) -> Any:
        require_supported("reset option", options, ("task",))
        if self.tasks is None:
            if "task" in options:
                raise EnvArgumentError(
                    f"options={options!r:.200}: the agent {self._form.name} takes no task. Leave "
                    "the option out, or make the environment with tasks=[...]."
                )
            return NO_TASK
        if "task" not in options:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        task = options["task"]
        if not any(is_same_task(task, candidate) for candidate in self.tasks):
            raise EnvArgumentError(
                f"The task {task!r:.200} is not among the {len(self.tasks)} tasks of this "
                f"environment, which begin with {self.tasks[0]!r:.200}. Choose one of "
                f"env.unwrapped.tasks, or make the environment with tasks=[{task!r:.60}]."
            )
        return task

    # -- return values ---------------------------------------------------------------------------

    def _observation(self, moment: Moment) -> Observation:
        if self.level == "messages":
            return message_observation(moment.messages)
        if moment.tokens is None:
            raise RendererMismatchError(
                "The prompt has images, which have no token ids, and this environment was made "
                "with level='tokens'. Make it with level='messages', which has them in "
                "info['messages'], or use evert.ChatAgentEnv."
            )
        return moment.tokens

    def _info(self, moment: Moment) -> dict[str, Any]:
        info: dict[str, Any] = {
            "messages": copy_json(moment.messages),
            "tools": moment.tools,
            "stop": moment.stop,
        }
        if moment.tokens is not None:
            info["tokens"] = list(moment.tokens)
        if self._task is not NO_TASK:
            info["task"] = copy.deepcopy(self._task)
        if moment.max_tokens is not None:
            info["max_tokens"] = moment.max_tokens
        if moment.action is not None:
            info["action_tokens"] = list(moment.action)
            info["metrics"] = moment.metrics
            info["logs"] = moment.logs
        if moment.stop_reason is not None:
            info["stop_reason"] = moment.stop_reason
        return info


async def _restart(old: AgentEpisode, new: AgentEpisode) -> Moment:
    await old.close()
    return await new.start()
