"""Faulty policies: invalid tokens, too many or too few tokens, and exceptions."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tests.faults.scene import Fault, Raising, Sampler, Scene, agents, asking, tokens
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_limits import RolloutLimits


class Playing(Sampler):
    def __init__(self, action: Any, stop_reason: Any = "stop") -> None:
        super().__init__(lambda prompt: "Fine.")
        self._action = action
        self._stop_reason = stop_reason
        self._calls = 0

    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        self._calls += 1
        if self._calls > 1:
            return await super().__call__(*args, **options)
        await asyncio.sleep(0)
        action: Any = self._action() if callable(self._action) else self._action
        return TokensWithLogprobs(action, None, self._stop_reason)


def playing(action: Any, stop_reason: Any = "stop") -> Callable[[], TokenCompleter]:
    return lambda: Playing(action, stop_reason)


async def two_turns(client: Any, scene: Scene) -> float:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    for _ in range(2):
        with scene.noted():
            completion = await client.chat.completions.create(messages=messages)
        choice = completion.choices[0]
        scene.saw.append(f"{choice.message.content!r} {choice.finish_reason}")
        messages += [choice.message, {"role": "user", "content": "and?"}]
    return 1.0


async def asks_for_logprobs(client: Any, scene: Scene) -> float:
    with contextlib.suppress(Exception):
        await scene.ask(client, logprobs=True)
    return 1.0


async def asks_for_few(client: Any, scene: Scene) -> float:
    completion = await client.chat.completions.create(**asking("Hi", max_tokens=2))
    scene.saw.append(completion.choices[0].finish_reason)
    return 1.0


NO_TOKENS = "InvalidActionError: …; expected a list of token ids, which are ints from 0 …"
CLOSED = "CancelledError"

PLAYED: list[tuple[str, Any, str, str]] = [
    ("nothing", [], "completed 1 in 2", "'' stop; 'Fine.' stop"),
    ("only an end of turn", tokens(""), "completed 1 in 2", "'' stop; 'Fine.' stop"),
    ("two ends of turn", tokens("") * 2, "completed 1 in 2", "'…' stop; 'Fine.' stop"),
    ("an end of turn in the middle", tokens("a") + tokens("b"), "completed 1 in 2",
        "'a…' stop; 'Fine.' stop"),
    ("no end of turn", tokens("Well", ended=False), "completed 1 in 2",
        "'Well' stop; 'Fine.' stop"),
    ("a control token in the middle", [*tokens("a", ended=False), 151644, *tokens("b")],
        "completed 1 in 2", "'a…' stop; 'Fine.' stop"),
    ("ten thousand tokens", tokens("word " * 10_000), "completed 1 in 2", "'word …' stop; …"),
    ("half a character", tokens("🐕")[:1], "completed 1 in 2", "'�' stop; 'Fine.' stop"),
    ("an id outside the vocabulary", [10**9], "completed 1 in 2", "'' stop; 'Fine.' stop"),
    ("an id of more than 32 bits", [2**32], NO_TOKENS, CLOSED),
    ("a negative id", [-1], NO_TOKENS, CLOSED),
    ("a bool", [True], NO_TOKENS, CLOSED),
    ("a float", [1.0], NO_TOKENS, CLOSED),
    ("text", ["a"], NO_TOKENS, CLOSED),
    ("None among tokens", [None], NO_TOKENS, CLOSED),
    ("lists", [[1, 2]], NO_TOKENS, CLOSED),
    ("a string", "Fine.", NO_TOKENS, CLOSED),
    ("None", None, NO_TOKENS, CLOSED),
    ("an array", lambda: np.array(tokens("Yes.")), "completed 1 in 2", "'Yes.' stop; 'Fine.' stop"),
    ("NumPy's integers", lambda: list(np.array(tokens("Yes."))), "completed 1 in 2",
        "'Yes.' stop; 'Fine.' stop"),
    ("a tuple", tuple(tokens("Yes.")), "completed 1 in 2", "'Yes.' stop; 'Fine.' stop"),
]  # fmt: skip
"""Rows of (description, first action, what the trainer sees, what the agent sees)."""

ACTIONS = [
    Fault(name=f"the policy plays {what}", moment="in step", agent=two_turns,
        policy=playing(action), trainer_sees=trainer, agent_sees=agent)
    for what, action, trainer, agent in PLAYED
]  # fmt: skip

CUT = [
    Fault(name="the policy is cut", moment="in step", agent=two_turns,
        policy=playing(tokens("Well", ended=False), "length"), trainer_sees="completed 1 in 2",
        agent_sees="'Well' length; 'Fine.' stop"),
    Fault(name="the policy is cut before it says anything", moment="in step", agent=two_turns,
        policy=playing([], "length"), trainer_sees="completed 1 in 2",
        agent_sees="'' length; 'Fine.' stop"),
    Fault(name="the policy is cut, which ends the episode", moment="in step", agent=two_turns,
        policy=playing(tokens("Well", ended=False), "length"), options={"on_truncation": "end"},
        trainer_sees="max_tokens -0.1 in 1", agent_sees="CancelledError"),
    Fault(name="the policy returns an unknown stop reason", moment="in step",
        agent=two_turns, policy=playing(tokens("Yes."), "tired"), trainer_sees="completed 1 in 2",
        agent_sees="'Yes.' stop; 'Fine.' stop"),
    Fault(name="the policy exceeds the agent's max_tokens", moment="in step",
        agent=asks_for_few, policy=playing(tokens("word " * 50)), trainer_sees="completed 1 in 1",
        agent_sees="length"),
    Fault(name="the policy has no log-probabilities for an agent that requests them",
        moment="in step", agent=asks_for_logprobs, policy=playing(tokens("Yes.")),
        trainer_sees="completed 1 in 1", agent_sees="BadRequestError logprobs_unavailable"),
    Fault(name="the policy's replies are too long for the budget", moment="in step",
        agent=two_turns, policy=playing(tokens("word " * 500)),
        options={"limits": RolloutLimits(max_trajectory_tokens=100)},
        trainer_sees="max_tokens -0.1 in 1",
        agent_sees="'word …; BadRequestError context_length_exceeded"),
]  # fmt: skip


RAISED = [
    Fault(name=f"the policy raises {error.__name__}{place}", moment="between calls", agent=agent,
        policy=partial(Raising, error), trainer_sees=f"{error.__name__}: no engine",
        agent_sees=f"{first}; {ending}")
    for error in (RuntimeError, asyncio.CancelledError, KeyboardInterrupt, SystemExit)
    for agent, first, ending, place in (
        (two_turns, "'Fine.' stop", "CancelledError", ""),
        (agents(2)[1], "Fine.", "EnvClosedError", " before a thread"),
    )
]  # fmt: skip

FAULTS = [*ACTIONS, *CUT, *RAISED]
