"""Finds the names of an environment's actions, and parses replies into actions.

For a ``Discrete`` space, a reply is an action's name or number; for array spaces, it is JSON; for
text spaces, it is the action itself. The names come from ``get_action_meanings()`` (Atari), an
``actions`` enum (MiniGrid), or the "Action Space" section of the docstring (Gymnasium).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from evert.envs.games import EnvArgumentError

Env = gymnasium.Env[Any, Any]


@dataclass
class Actions:
    """An environment's actions.

    Attributes:
        space: The action space.
        names: For a ``Discrete`` space, action number -> name. Some may be missing.
        parse: Function that maps a reply to an action (default: the rules in this module).
    """

    space: spaces.Space[Any]
    names: Mapping[int, str] = field(default_factory=dict)
    parse: Callable[[str], Any] | None = None

    def name(self, action: Any) -> str:
        """Return an action as text: its name or number, the text itself, or JSON."""
        if isinstance(self.space, spaces.Discrete):
            return self.names.get(int(action), str(action))
        return action if isinstance(action, str) else json.dumps(np.asarray(action).tolist())

    def brief(self, action: Any) -> str:
        """Return an action as short text. If the space is discrete, this is its number."""
        return str(int(action)) if isinstance(self.space, spaces.Discrete) else self.name(action)

    def read(self, reply: str) -> tuple[Any, str]:
        """Parse a reply.

        Returns the action and "". If the reply is not a valid action, returns None and the reason.
        """
        try:
            action = self._parse_reply(reply) if self.parse is None else self.parse(reply)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            action, detail = None, f" ({error})"
        else:
            detail = ""
        if action is not None and self.space.contains(action):
            return action, ""
        return None, f"{reply.strip()[:80]!r} is not an action{detail}. {self.choices()}"

    def choices(self) -> str:
        """Return a sentence that tells the policy how to reply."""
        if isinstance(self.space, spaces.Discrete):
            first = int(self.space.start)
            numbers = range(first, first + int(self.space.n))
            labels = [f"{n} ({self.names[n]})" if n in self.names else str(n) for n in numbers]
            return f"Reply with one action, its name or its number: {', '.join(labels)}."
        if isinstance(self.space, spaces.Text):
            shortest, longest = self.space.min_length, self.space.max_length
            return f"Reply with {shortest} to {longest} characters of text."
        return f"Reply with one action of {self.space}, as a JSON list of shape {self.space.shape}."

    def _parse_reply(self, reply: str) -> Any:
        if isinstance(self.space, spaces.Text):
            return reply
        last = (reply.strip().splitlines() or [""])[-1]
        if isinstance(self.space, spaces.Discrete):
            return self._parse_discrete(last)
        return np.asarray(json.loads(last), self.space.dtype)

    def _parse_discrete(self, line: str) -> int | None:
        line_words = _words(line)
        exact = {n for n, name in self.names.items() if _words(name) == line_words}
        matches = exact or {n for n, words in self._unique_words.items() if words & {*line_words}}
        numbers = {int(word) for word in line_words if re.fullmatch(r"-?\d+", word)}
        actions = matches or {n for n in numbers if self.space.contains(n)}
        return actions.pop() if len(actions) == 1 else None

    @cached_property
    def _unique_words(self) -> dict[int, set[str]]:
        """Words that occur in only one action's name, such as "left" in "Move left"."""
        words = {n: {*_words(name)} for n, name in self.names.items()}
        return {
            n: name_words - {w for m in words if m != n for w in words[m]}
            for n, name_words in words.items()
        }


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z_]+|-?\d+", text.lower())


def actions_of(env: Env, parse: Callable[[str], Any] | None = None) -> Actions:
    """Return an environment's actions.

    Raises:
        EnvArgumentError: The action space is not supported without a ``parse`` function.
    """
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        numbers = range(int(space.start), int(space.start) + int(space.n))
        return Actions(
            space, {n: s for n, s in _names(env.unwrapped).items() if n in numbers}, parse
        )
    arrays = spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary
    if parse is None and not isinstance(space, spaces.Text | arrays):
        raise EnvArgumentError(
            f"{env.spec.id if env.spec else env} has the action space {space}, and evert doesn't "
            "know how to parse a reply as such an action. Pass parse=, a function that maps a "
            "reply to an action."
        )
    return Actions(space, {}, parse)


def legal_in(env: Env, info: Mapping[str, Any]) -> Sequence[int] | None:
    """Return the actions allowed by ``info["action_mask"]``, or None if there is no mask."""
    mask, space = info.get("action_mask"), env.action_space
    if mask is None or not isinstance(space, spaces.Discrete) or len(mask) != space.n:
        return None
    return [int(space.start) + index for index, is_legal in enumerate(mask) if is_legal]


def _names(env: Env) -> Mapping[int, str]:
    if meanings := getattr(env, "get_action_meanings", None):
        return dict(enumerate(meanings()))
    if members := getattr(getattr(env, "actions", None), "__members__", None):
        return {int(member): name for name, member in members.items()}
    return _names_in_docstring(type(env).__doc__ or "")


@lru_cache(64)
def _names_in_docstring(doc: str) -> Mapping[int, str]:
    """Parse the "Action Space" section: list items like "- 0: Stick" or rows "| 0 | Stick |"."""
    section = re.search(r"^\s*## Action Space\n(.*?)(?=^\s*## |\Z)", doc, re.M | re.S)
    text = section[1] if section else ""
    entries = re.findall(r"^\s*[-*|]\s*(\d+)\s*[:|]\s*([^|\n]+)", text, re.M)
    return {int(number): name.strip() for number, name in entries}
