"""The names of an environment's actions, and how replies are parsed.

For a ``Discrete`` space, a reply is a name or a number; for arrays, it is JSON; for text, it is the
action itself. ``actions_of`` takes the names from ``get_action_meanings()`` (Atari), an enumeration
``actions`` (MiniGrid), or the docstring's "Action Space" (Gymnasium).
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
    """The actions of an environment.

    Attributes:
        space: The action space.
        names: Names of a ``Discrete`` space's actions, by number; some may be missing.
        parse: A function from a reply to an action; None: the rules of this module.
    """

    space: spaces.Space[Any]
    names: Mapping[int, str] = field(default_factory=dict)
    parse: Callable[[str], Any] | None = None

    def name(self, action: Any) -> str:
        """Return an action in words: its name, else its number, the text, or JSON."""
        if isinstance(self.space, spaces.Discrete):
            return self.names.get(int(action), str(action))
        return action if isinstance(action, str) else json.dumps(np.asarray(action).tolist())

    def brief(self, action: Any) -> str:
        """Return an action in few tokens: its number if it has one, else like ``name``."""
        return str(int(action)) if isinstance(self.space, spaces.Discrete) else self.name(action)

    def read(self, reply: str) -> tuple[Any, str]:
        """Return the action in a reply and "", or None and why the reply is not an action."""
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
        """Return a sentence that tells the policy which replies are actions."""
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
        """For each action, the words that only its name has, such as "left" in "Move left"."""
        words = {n: {*_words(name)} for n, name in self.names.items()}
        return {
            n: name_words - {w for m in words if m != n for w in words[m]}
            for n, name_words in words.items()
        }


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z_]+|-?\d+", text.lower())


def actions_of(env: Env, parse: Callable[[str], Any] | None = None) -> Actions:
    """Return the actions of an environment.

    Raises:
        EnvArgumentError: The actions need a ``parse`` function.
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
            f"The actions of {env.spec.id if env.spec else env} are in {space}, and evert cannot "
            "read a reply as one. Pass parse=, a function from a reply to an action."
        )
    return Actions(space, {}, parse)


def legal_in(env: Env, info: Mapping[str, Any]) -> Sequence[int] | None:
    """Return the actions that ``info``'s ``action_mask`` allows; None if it has no mask."""
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
    """Return the names under "Action Space": lines "- 0: Stick", or a table's "| 0 | Stick |"."""
    section = re.search(r"^\s*## Action Space\n(.*?)(?=^\s*## |\Z)", doc, re.M | re.S)
    text = section[1] if section else ""
    entries = re.findall(r"^\s*[-*|]\s*(\d+)\s*[:|]\s*([^|\n]+)", text, re.M)
    return {int(number): name.strip() for number, name in entries}
