"""``GymAgent``: a Gymnasium environment as an agent.

The policy sees the rules and the observations as text (``prompt.py``, ``observations.py``). Its
replies are parsed as actions (``actions.py``), and each reward is assigned to the turn of its
action. Each episode creates a new environment and always closes it.
"""

import asyncio
import contextvars
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import gymnasium

from evert.bridge.episode.agent import Outcome
from evert.bridge.import_paths import resolve
from evert.bridge.off_loop import acquire, finished
from evert.envs.from_gymnasium.actions import Actions, actions_of, legal_in
from evert.envs.from_gymnasium.observations import in_words
from evert.envs.from_gymnasium.prompt import prompt_of
from evert.envs.games import EnvArgumentError

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

Describe: TypeAlias = Callable[[Any, dict[str, Any], "gymnasium.Env[Any, Any]"], str]
"""Maps an observation, its info and the environment to text for the policy."""

Parse: TypeAlias = Callable[[str], Any]
"""Maps a reply to an action. Return None or raise ``ValueError`` (with a reason) to reject it."""

Message: TypeAlias = dict[str, Any]

PATIENCE = 3
"""With ``illegal="explain"``, the episode ends after this many illegal replies in a row."""

DEMONSTRATED = 8
"""Maximum number of actions in a demonstration."""


class GymAgent:
    """A Gymnasium environment as an agent: the policy reads observations as text and picks actions.

    The task is the seed for ``reset``, or ``{"seed": 7, "options": {...}}``. Without a seed in the
    task, the episode's seed (``client.seed``) is used. Each reward is assigned to the turn of its
    action, and the episode is truncated if the environment truncates it.

    By default, the last line of a reply must contain the name or number of exactly one action, or a
    JSON list if the action space consists of arrays. If actions are text, the whole reply is the
    action. Names come from the environment (``get_action_meanings()`` or an ``actions`` enum) or
    from its docstring. If ``info`` has an ``action_mask``, the policy is told which actions are
    allowed, but other actions are still passed to the environment.

    Args:
        id: Id for ``gymnasium.make``.
        describe: Function that maps an observation, its ``info`` and the environment to text for
            the policy, or its import path (default: chosen based on the environment).
        parse: Function that maps a reply to an action, or its import path. It returns None or
            raises ``ValueError`` if the reply is not an action (default: the rules above).
        illegal: How to handle a reply that is not an action. The environment never sees it.
            "explain" lists the valid actions and lets the policy try again; three such replies in a
            row truncate the episode. "end" ends the episode, and a number ends it with that reward.
        prompt: System message (default: based on the environment's docstring and spaces). Pass ""
            for no system message.
        off_loop: Run each episode's environment in a thread; use this for blocking environments.
        **make: Arguments for ``gymnasium.make``, like ``is_slippery=False``.

    Raises:
        EnvArgumentError: An argument is invalid, or an import path does not exist.
    """

    from_path = True  # import paths may contain a call: 'evert:GymAgent("Taxi-v4")'

    def __init__(
        self,
        id: str,
        *,
        describe: Describe | str | None = None,
        parse: Parse | str | None = None,
        illegal: Literal["explain", "end"] | float = "explain",
        prompt: str | None = None,
        off_loop: bool = False,
        **make: Any,
    ) -> None:
        agent_options: dict[str, Any] = {"describe": describe, "parse": parse, "prompt": prompt}
        agent_options["off_loop"] = off_loop or None
        agent_options["illegal"] = None if illegal == "explain" else illegal
        options = {key: value for key, value in agent_options.items() if value is not None}
        self._arguments = {**options, **make}
        if not isinstance(id, str):
            raise EnvArgumentError(f"Expected an environment id like 'Taxi-v4'; got {id!r:.200}")
        is_number = isinstance(illegal, int | float) and math.isfinite(illegal)
        if illegal not in ("explain", "end") and not is_number:
            raise EnvArgumentError(
                f"illegal={illegal!r:.200} is not supported; expected 'explain', 'end' or a finite "
                "number, which is the reward for an episode that ends with an illegal reply."
            )
        self.id = id
        self.illegal = illegal
        self.prompt = prompt
        self.off_loop = off_loop
        self._describe = _load(describe, "describe") or in_words
        self._parse = _load(parse, "parse")
        self._make = make

    def __repr__(self) -> str:
        arguments = (f"{key}={value!r}" for key, value in sorted(self._arguments.items()))
        return f"GymAgent({', '.join([repr(self.id), *arguments])})"

    def make(self) -> "gymnasium.Env[Any, Any]":
        """Create the environment for an episode.

        Raises:
            gymnasium.error.Error: No environment has this id.
        """
        return gymnasium.make(self.id, **self._make)

    async def __call__(self, client: "AgentClient", task: Any = None) -> Outcome:
        """Play an episode.

        Raises:
            EnvArgumentError: The task is invalid, or the action space needs a ``parse`` function.
        """
        begin = start_of(task, client.seed)
        if not self.off_loop:
            return await self._play(client, begin, _call_inline)
        with ThreadPoolExecutor(1, thread_name_prefix=f"evert {self.id}") as thread:
            return await self._play(client, begin, partial(_call_in_thread, thread))

    async def _play(self, client: "AgentClient", begin: Mapping[str, Any], call: "Call") -> Outcome:
        env = await acquire(call(self.make), lambda env: call(env.close))
        try:
            actions = self.actions(env)
            observation, info = await call(partial(env.reset, **begin))
            messages = self.opening(env, actions, observation, info)
            wrong = in_a_row = 0
            while True:
                completion = await client.chat.completions.create(messages=messages)
                reply = completion.choices[0].message.content or ""
                action, why = actions.read(reply)
                messages.append({"role": "assistant", "content": reply})
                if why:
                    wrong, in_a_row = wrong + 1, in_a_row + 1
                    if self.illegal != "explain" or in_a_row == PATIENCE:
                        return self._illegal_outcome(wrong)
                    messages.append({"role": "user", "content": why})
                    continue
                in_a_row = 0
                observation, reward, over, cut, info = await call(partial(env.step, action))
                client.reward(float(reward))
                client.log(action=actions.name(action))
                if over or cut:
                    return Outcome(0.0, {"illegal": wrong}, truncated=cut and not over)
                messages.append(self.observation_message(env, actions, observation, info))
        finally:
            if self.off_loop:
                await finished(call(env.close))
            else:  # no await, so that this works even if the loop is closed
                env.close()

    def _illegal_outcome(self, wrong: int) -> Outcome:
        reward = 0.0 if isinstance(self.illegal, str) else self.illegal
        return Outcome(reward, {"illegal": wrong}, truncated=self.illegal == "explain")

    # -- messages --------------------------------------------------------------------------------

    def actions(self, env: "gymnasium.Env[Any, Any]") -> Actions:
        """Return the environment's actions and their names.

        Raises:
            EnvArgumentError: The action space is not supported without a ``parse`` function.
        """
        return actions_of(env, self._parse)

    def opening(
        self, env: "gymnasium.Env[Any, Any]", actions: Actions, observation: Any, info: Any
    ) -> list[Message]:
        """Return the initial messages: the system message (if any) and the first observation."""
        prompt = prompt_of(env, actions) if self.prompt is None else self.prompt
        system = [{"role": "system", "content": prompt}] if prompt else []
        return [*system, self.observation_message(env, actions, observation, info)]

    def observation_message(
        self, env: "gymnasium.Env[Any, Any]", actions: Actions, observation: Any, info: Any
    ) -> Message:
        """Return the user message that shows an observation."""
        text = self._describe(observation, info, env)
        if (legal := legal_in(env, info)) is not None:
            text += f"\nActions left: {', '.join(map(actions.name, legal))}."
        return {"role": "user", "content": text}

    def demonstrations(self, seed: int) -> Iterator[list[Message]]:
        """Yield an endless stream of conversations with random (but legal) actions.

        They demonstrate the reply format rather than good play. Each conversation has at most
        ``DEMONSTRATED`` actions.

        Raises:
            EnvArgumentError: ``parse`` rejects an action as written by ``Actions.brief``.
        """
        draw = random.Random(seed)
        while True:
            env = self.make()
            try:
                demonstration = self._demonstration(env, draw)
            finally:
                env.close()
            yield demonstration

    def _demonstration(self, env: "gymnasium.Env[Any, Any]", draw: random.Random) -> list[Message]:
        actions = self.actions(env)
        observation, info = env.reset(seed=draw.randrange(2**31))
        env.action_space.seed(draw.randrange(2**31))
        messages = self.opening(env, actions, observation, info)
        for turn in range(DEMONSTRATED):
            if turn:
                messages.append(self.observation_message(env, actions, observation, info))
            legal = legal_in(env, info)
            action = draw.choice(legal) if legal else env.action_space.sample()
            reply = actions.brief(action)
            messages.append({"role": "assistant", "content": reply})
            if why := actions.read(reply)[1]:
                raise EnvArgumentError(
                    f"parse rejected {reply!r}, which is how demonstrations write an action of "
                    f"{self.id}: {why} Make parse accept it, or leave parse out."
                )
            observation, _, over, cut, info = env.step(action)
            if over or cut:
                break
        return messages


def start_of(task: Any, seed: int) -> dict[str, Any]:
    """Return the arguments for ``reset``.

    Args:
        task: A seed, None, or ``{"seed": ..., "options": ...}``.
        seed: The episode's seed, used if the task has no seed.

    Raises:
        EnvArgumentError: The task has a different form.
    """
    arguments = task if isinstance(task, Mapping) else {"seed": task}
    start = {"seed": seed, **{key: value for key, value in arguments.items() if value is not None}}
    index = start["seed"]
    if start.keys() <= {"seed", "options"} and hasattr(index, "__index__") and int(index) >= 0:
        return {**start, "seed": int(index)}
    raise EnvArgumentError(
        f"Cannot reset the environment with the task {task!r:.200}; expected a seed (an integer >= "
        '0), None, or {"seed": 7, "options": {...}}, where both keys are optional.'
    )


def _load(value: Any, what: str) -> Any:
    return resolve(value, what, EnvArgumentError) if isinstance(value, str) else value


# -- where the environment runs --------------------------------------------------------------------

Call: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls one of the environment's functions and returns its result."""


async def _call_inline(work: Callable[[], Any]) -> Any:
    return work()


def _call_in_thread(thread: ThreadPoolExecutor, work: Callable[[], Any]) -> Awaitable[Any]:
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(thread, context.run, work)
