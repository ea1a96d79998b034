"""``GymAgent``: an environment of Gymnasium's as an agent.

The environment is told the policy in words (``prompt.py``, ``observations.py``), a reply is read as
an action (``actions.py``), and rewards are given at their own turn. Each episode makes its own
environment and closes it, whatever happens.
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
from evert.bridge.off_loop import made
from evert.envs.from_gymnasium.actions import Actions, actions_of, legal_in
from evert.envs.from_gymnasium.observations import in_words
from evert.envs.from_gymnasium.prompt import prompt_of
from evert.envs.games import EnvArgumentError

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

Describe: TypeAlias = Callable[[Any, dict[str, Any], "gymnasium.Env[Any, Any]"], str]
"""From an observation, its info and the environment to what the policy is told."""

Parse: TypeAlias = Callable[[str], Any]
"""From a reply to an action; None, or a ``ValueError`` that says why, where it is none."""

Message: TypeAlias = dict[str, Any]

PATIENCE = 3
"""Replies in a row without a legal action after which ``illegal="explain"`` ends the episode."""

DEMONSTRATED = 8
"""Most actions of a demonstration."""


class GymAgent:
    """An environment of Gymnasium's as an agent: the policy is told what it sees, and acts.

    The task is the environment's seed; or ``{"seed": 7, "options": {...}}``, as ``reset`` takes
    them; without a seed the episode's own (``client.seed``) is taken. Rewards are given at their
    own turn; an episode that the environment truncates is truncated.

    What a reply means: the last line's one action, by its name or its number; a JSON list where
    actions are arrays; the whole reply where they are text. Names are those of the environment
    (``get_action_meanings()``, an enumeration ``actions``) or of its docstring. Where ``info`` has
    an ``action_mask``, the policy is told which actions it has left; one that it takes nevertheless
    is the environment's to judge.

    Args:
        id: As ``gymnasium.make`` takes it.
        describe: What the policy is told of an observation: a function from the observation, its
            ``info`` and the environment to text, or its import path. None: in words that fit the
            space.
        parse: What a reply means: a function from its text to an action, or its import path; None
            or a ``ValueError`` for no action. None: as above.
        illegal: What follows a reply without a legal action, which the environment never sees.
            "explain": the policy is told what is legal and asked again; the third time in a row the
            episode is truncated. "end": the episode is over. A number: over with that reward.
        prompt: What the policy is told first, as the system's message. None: from the
            environment's docstring and spaces; "": nothing.
        off_loop: Whether the environment runs in a thread, one an episode: for one that blocks.
        **make: Of ``gymnasium.make``: ``is_slippery=False``, ``max_episode_steps=20``, ...

    Raises:
        EnvArgumentError: An argument has no such value, or nothing is found at an import path.
    """

    from_path = True  # an import path may have it made: 'evert:GymAgent("Taxi-v4")'

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
        own: dict[str, Any] = {"describe": describe, "parse": parse, "prompt": prompt}
        own["off_loop"] = off_loop or None
        own["illegal"] = None if illegal == "explain" else illegal
        self._given = {**{key: value for key, value in own.items() if value is not None}, **make}
        if not isinstance(id, str):
            raise EnvArgumentError(f"An environment's id is a text like 'Taxi-v4'; got {id!r:.200}")
        is_number = isinstance(illegal, int | float) and math.isfinite(illegal)
        if illegal not in ("explain", "end") and not is_number:
            raise EnvArgumentError(
                f"illegal={illegal!r:.200} is not supported; expected 'explain', 'end' or a finite "
                "number, the reward of an episode that ends so."
            )
        self.id = id
        self.illegal = illegal
        self.prompt = prompt
        self.off_loop = off_loop
        self._describe = _found(describe, "describe") or in_words
        self._parse = _found(parse, "parse")
        self._make = make

    def __repr__(self) -> str:
        given = (f"{key}={value!r}" for key, value in sorted(self._given.items()))
        return f"GymAgent({', '.join([repr(self.id), *given])})"

    def make(self) -> "gymnasium.Env[Any, Any]":
        """The environment of one episode.

        Raises:
            gymnasium.error.Error: There is no environment of this id.
        """
        return gymnasium.make(self.id, **self._make)

    async def __call__(self, client: "AgentClient", task: Any = None) -> Outcome:
        """Play an episode.

        Raises:
            EnvArgumentError: The task is none; or the environment's actions need a ``parse``.
        """
        begin = start_of(task, client.seed)
        if not self.off_loop:
            return await self._play(client, begin, _here)
        with ThreadPoolExecutor(1, thread_name_prefix=f"evert {self.id}") as thread:
            return await self._play(client, begin, partial(_in_thread, thread))

    async def _play(self, client: "AgentClient", begin: Mapping[str, Any], call: "Call") -> Outcome:
        env = await made(call(self.make), lambda env: call(env.close))
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
                        return self._given_up(wrong)
                    messages.append({"role": "user", "content": why})
                    continue
                in_a_row = 0
                observation, reward, over, cut, info = await call(partial(env.step, action))
                client.reward(float(reward))
                client.log(action=actions.name(action))
                if over or cut:
                    return Outcome(0.0, {"illegal": wrong}, truncated=cut and not over)
                messages.append(self.told(env, actions, observation, info))
        finally:
            await call(env.close)

    def _given_up(self, wrong: int) -> Outcome:
        reward = 0.0 if isinstance(self.illegal, str) else self.illegal
        return Outcome(reward, {"illegal": wrong}, truncated=self.illegal == "explain")

    # -- what is said ----------------------------------------------------------------------------

    def actions(self, env: "gymnasium.Env[Any, Any]") -> Actions:
        """The environment's actions, in words.

        Raises:
            EnvArgumentError: They need a ``parse``.
        """
        return actions_of(env, self._parse)

    def opening(
        self, env: "gymnasium.Env[Any, Any]", actions: Actions, observation: Any, info: Any
    ) -> list[Message]:
        """What the policy is told first, and what it sees then."""
        prompt = prompt_of(env, actions) if self.prompt is None else self.prompt
        system = [{"role": "system", "content": prompt}] if prompt else []
        return [*system, self.told(env, actions, observation, info)]

    def told(
        self, env: "gymnasium.Env[Any, Any]", actions: Actions, observation: Any, info: Any
    ) -> Message:
        """What the policy is told of an observation."""
        text = self._describe(observation, info, env)
        if (legal := legal_in(env, info)) is not None:
            text += f"\nActions left: {', '.join(map(actions.name, legal))}."
        return {"role": "user", "content": text}

    def demonstrations(self, seed: int) -> Iterator[list[Message]]:
        """Conversations in which random actions are taken, legal where the environment says so.

        They show how to reply, and nothing of what is a good action. Endless; each is the beginning
        of an episode, at most ``DEMONSTRATED`` actions.

        Raises:
            EnvArgumentError: ``parse`` does not take an action by its number.
        """
        draw = random.Random(seed)
        while True:
            env = self.make()
            try:
                shown = self._demonstration(env, draw)
            finally:
                env.close()
            yield shown

    def _demonstration(self, env: "gymnasium.Env[Any, Any]", draw: random.Random) -> list[Message]:
        actions = self.actions(env)
        observation, info = env.reset(seed=draw.randrange(2**31))
        env.action_space.seed(draw.randrange(2**31))
        messages = self.opening(env, actions, observation, info)
        for turn in range(DEMONSTRATED):
            if turn:
                messages.append(self.told(env, actions, observation, info))
            legal = legal_in(env, info)
            action = draw.choice(legal) if legal else env.action_space.sample()
            said = actions.brief(action)
            messages.append({"role": "assistant", "content": said})
            if why := actions.read(said)[1]:
                raise EnvArgumentError(
                    f"parse does not take {said!r}, an action of {self.id}, so "
                    f"that there can be no demonstrations: {why} Let it, or leave parse out."
                )
            observation, _, over, cut, info = env.step(action)
            if over or cut:
                break
        return messages


def start_of(task: Any, seed: int) -> dict[str, Any]:
    """What ``reset`` is given for a task.

    Args:
        task: A seed, None, or ``{"seed": ..., "options": ...}``.
        seed: Of an episode whose task has none.
    """
    given = task if isinstance(task, Mapping) else {"seed": task}
    start = {"seed": seed, **{key: value for key, value in given.items() if value is not None}}
    own = start["seed"]
    if start.keys() <= {"seed", "options"} and hasattr(own, "__index__") and int(own) >= 0:
        return {**start, "seed": int(own)}
    raise EnvArgumentError(
        f"The task {task!r:.200} is no start of an environment; expected a seed (an integer of at "
        'least 0), None, or {"seed": 7, "options": {...}} with either of the two.'
    )


def _found(value: Any, what: str) -> Any:
    return resolve(value, what, EnvArgumentError) if isinstance(value, str) else value


# -- where the environment runs --------------------------------------------------------------------

Call: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Has something of the environment done, and gives what came of it."""


async def _here(work: Callable[[], Any]) -> Any:
    return work()


async def _in_thread(thread: ThreadPoolExecutor, work: Callable[[], Any]) -> Any:
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(thread, context.run, work)
