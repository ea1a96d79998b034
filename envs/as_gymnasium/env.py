"""``AgentGymEnv``: a chat agent as a synchronous ``gymnasium.Env``.

An observation is the agent's model call, and an action is the reply. ``reset`` draws a task and
starts the agent (``episode.py``) on the event loop shared by all environments (``loop.py``), and
``step`` waits for the agent's next call. This module handles arguments, seeds, spaces and return
values.
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
"""A coroutine function to run on the event loop."""


class AgentGymEnv(gymnasium.Env[Any, Any], EzPickle):
    """A chat agent as a Gymnasium environment.

    Register an agent with ``evert.register_agent``, then create environments with
    ``gymnasium.make``. The ``__doc__`` of an instance is its agent's docstring. Copying or
    unpickling an environment creates a new one with the same arguments.

    ## Action Space

    level="messages": ``Text``, the reply. evert appends the end-of-turn token. Special-token
    strings are encoded as plain text, but the renderer still parses tool calls and so on.
    level="tokens": ``Sequence(Discrete(vocabulary))``, the sampled tokens including the end-of-turn
    token, which are used exactly as given.

    ## Observation Space

    level="messages": ``Sequence(Dict(role: Text, content: Text))``, the conversation so far, which
    the policy should continue. The final observation includes the last reply. Images are shown as
    "[image_url]".
    level="tokens": ``Sequence(Discrete(vocabulary))``, the same conversation, as tokens.

    ## Starting State

    The agent's first model call. The task is drawn uniformly from ``tasks`` using the environment's
    seeded generator, unless you pass ``options={"task": ...}``.

    ## Reward

    The reward the agent assigns to the action (``client.reward``), plus the agent's return value on
    the last step.

    ## Episode End

    Terminated: the agent returned. Truncated: a limit was reached (``info["stop_reason"]`` is
    max_turns, max_tokens, max_sampled_tokens or max_tool_calls), or the agent returned
    ``Outcome(reward, truncated=True)`` (the stop reason is "truncated").

    ## Information

    ``task`` (if there are tasks), ``messages`` (in OpenAI's format, with tool calls and images),
    ``tokens`` (unless the prompt has images), ``tools``, ``stop`` and ``max_tokens`` (if there is a
    limit; longer actions are cut off). After a step, also ``action_tokens``, ``metrics`` and
    ``logs``, and after the last step, ``stop_reason``.

    ## Arguments

    agent: The agent, or its import path 'package.module:function'.
    tasks: Sequence of tasks, or its import path (default: the agent takes no task).
    level: "messages" or "tokens".
    render_mode: "ansi" (``render()`` returns the conversation), "human" (it is printed) or None.
    max_turns: Maximum number of actions per episode (default: no limit).
    options: Options for ``ChatAgentEnv`` (``renderer``, ``limits``, ``agent_timeout``, ...).

    Raises:
        EnvArgumentError: An argument is unknown or has an invalid value.
        InvalidAgentError: ``agent`` is not an agent, or has the wrong signature.
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
        else:  # two objects, because each space is seeded separately
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
            seed: Seed for drawing tasks and for the agent (default: don't reseed).
            options: Pass ``{"task": task}`` to play this task instead of a random one.

        Raises:
            EnvArgumentError: An option is unknown, or the task is not one of the tasks.
            EnvStateError: The agent finished before its first model call.
            AgentError, AgentTimeoutError, RewardError: As in ``ChatAgentEnv``.
        """
        return self.finish_reset(self._run(self.prepare_reset(seed=seed, options=options)))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Reply to the agent's call with ``action``.

        Raises:
            gymnasium.error.InvalidAction: The action is not in the action space.
            gymnasium.error.ResetNeeded: No episode is running.
            AgentError, AgentTimeoutError, RewardError: As in ``ChatAgentEnv``; the episode ends.
        """
        return self.finish_step(self._run(self.prepare_step(action)))

    def render(self) -> str | None:
        """Return the conversation so far as text ("ansi"), or print it and return None ("human").

        Raises:
            gymnasium.error.ResetNeeded: ``reset`` has not been called yet.
        """
        if self.render_mode is None:
            gymnasium.logger.warn(
                "render() was called, but the environment has no render_mode. Pass "
                'render_mode="ansi" or "human" to gymnasium.make.'
            )
            return None
        if self._moment is None:
            raise error.ResetNeeded("There is nothing to render yet: call reset() first.")
        if self.render_mode == "human":
            self._screen.show(self._moment, self._total)
            return None
        return transcript(self._moment, self._total)

    def close(self) -> None:
        """Stop the running episode and release the loop. Idempotent; ``reset`` works afterwards."""
        episode = self.detach_episode("the environment was closed")
        loop, self._loop = self._loop, None
        if loop is not None:
            if episode is not None:
                loop.run(episode.close)
                loop.at_end = None
            loop.leave()

    # -- reset and step, split into the work on the loop and the handling of its result ------------

    def prepare_reset(self, *, seed: int | None, options: dict[str, Any] | None) -> Work:
        """Prepare a reset; return the work that stops the old episode and starts a new one."""
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
        """Record the state after a reset, and return the result for ``reset``."""
        self._record(moment)
        return self._observation(moment), self._info(moment)

    def prepare_step(self, action: Any) -> Work:
        """Validate ``action`` and return the work that replies to the agent. No side effects."""
        episode = self._running_episode()
        if self.level == "messages":
            tokens = episode.encode(text_action(action))
        else:
            tokens = token_action(action, self._vocabulary)
        return partial(episode.act, tokens)

    def finish_step(self, moment: Moment) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Record the state after a step, and return the result for ``step``."""
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
        """Mark the episode as over because an operation on it failed."""
        self._why_over = f"the last one ended with {type(problem).__name__}"

    def detach_episode(self, why: str) -> AgentEpisode | None:
        """Detach the running episode (if any) and return it, so that the caller can close it."""
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
                f"step() was called, but no {self._form.name} episode is running: "
                f"{self._why_over}. Call reset() to start one."
            )
        return self._episode

    def _notice_fork(self) -> None:
        """In a forked child, forget the parent's episode, since its thread does not exist here."""
        if self._loop is not None and not self._loop.is_ours:
            self._episode = self._loop = None
            self._why_over = "the last one was started before this process was forked"

    def _choose_task(self, options: dict[str, Any]) -> Any:
        require_supported("reset option", options, ("task",))
        if self.tasks is None:
            if "task" in options:
                raise EnvArgumentError(
                    f"Got options={options!r:.200}, but the agent {self._form.name} takes no task. "
                    "Remove the option, or create the environment with tasks=[...]."
                )
            return NO_TASK
        if "task" not in options:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        task = options["task"]
        if not any(is_same_task(task, candidate) for candidate in self.tasks):
            raise EnvArgumentError(
                f"The task {task!r:.200} is not one of this environment's {len(self.tasks)} tasks "
                f"(the first one is {self.tasks[0]!r:.200}). Choose one from env.unwrapped.tasks, "
                f"or create the environment with tasks=[{task!r:.60}]."
            )
        return task

    # -- return values ---------------------------------------------------------------------------

    def _observation(self, moment: Moment) -> Observation:
        if self.level == "messages":
            return message_observation(moment.messages)
        if moment.tokens is None:
            raise RendererMismatchError(
                "The prompt contains images, which have no token ids, but this environment was "
                "created with level='tokens'. Use level='messages', which returns the images in "
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
