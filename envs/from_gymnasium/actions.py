"""The names of an environment's actions, and how replies are read.

A reply is a name or number for a ``Discrete`` space, JSON for arrays, and the text itself for text.
``actions_of`` finds the names: in ``get_action_meanings()`` (Atari), in an enumeration ``actions``
(MiniGrid), or in the docstring's "Action Space" (Gymnasium).
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
        names: Names of a ``Discrete`` space's actions, by number; some may have no name.
        parse: A function from a reply to an action; None: the rules of this module.
    """

    space: spaces.Space[Any]
    names: Mapping[int, str] = field(default_factory=dict)
    parse: Callable[[str], Any] | None = None

    def name(self, action: Any) -> str:
        """An action in words: its name or else its number, the text, or JSON."""
        if isinstance(self.space, spaces.Discrete):
            return self.names.get(int(action), str(action))
        return action if isinstance(action, str) else json.dumps(np.asarray(action).tolist())

    def brief(self, action: Any) -> str:
        """An action in few tokens: its number if it has one, else as ``name``."""
        return str(int(action)) if isinstance(self.space, spaces.Discrete) else self.name(action)

    def read(self, reply: str) -> tuple[Any, str]:
        """The action of a reply, and ""; or None, and the reason why the reply is not an action."""
        try:
            action = self._parsed(reply) if self.parse is None else self.parse(reply)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            action, said = None, f" ({error})"
        else:
            said = ""
        if action is not None and self.space.contains(action):
            return action, ""
        return None, f"{reply.strip()[:80]!r} is no action{said}. {self.choices()}"

    def choices(self) -> str:
        """A sentence that tells the policy which replies are actions."""
        if isinstance(self.space, spaces.Discrete):
            first = int(self.space.start)
            numbers = range(first, first + int(self.space.n))
            named = [f"{n} ({self.names[n]})" if n in self.names else str(n) for n in numbers]
            return f"Reply with one action, its name or its number: {', '.join(named)}."
        if isinstance(self.space, spaces.Text):
            least, most = self.space.min_length, self.space.max_length
            return f"Reply with a text of {least} to {most} characters."
        return f"Reply with one action of {self.space}, as a JSON list of shape {self.space.shape}."

    def _parsed(self, reply: str) -> Any:
        if isinstance(self.space, spaces.Text):
            return reply
        last = (reply.strip().splitlines() or [""])[-1]
        if isinstance(self.space, spaces.Discrete):
            return self._discrete(last)
        return np.asarray(json.loads(last), self.space.dtype)

    def _discrete(self, line: str) -> int | None:
        said = _words(line)
        exact = {n for n, name in self.names.items() if _words(name) == said}
        named = exact or {n for n, words in self._own_words.items() if words & {*said}}
        numbers = {int(word) for word in said if re.fullmatch(r"-?\d+", word)}
        found = named or {n for n in numbers if self.space.contains(n)}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def _own_words(self) -> dict[int, set[str]]:
        """By action, the words that only its name has: "left" of "Move left"."""
        words = {n: {*_words(name)} for n, name in self.names.items()}
        return {
            n: own - {w for other in words if other != n for w in words[other]}
            for n, own in words.items()
        }


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z_]+|-?\d+", text.lower())


def actions_of(env: Env, parse: Callable[[str], Any] | None = None) -> Actions:
    """The actions of an environment.

    Raises:
        EnvArgumentError: They need a ``parse``.
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
            f"The actions of {env.spec.id if env.spec else env} are in {space}, and no reply is "
            "read as one. Pass parse=, a function from a reply to an action."
        )
    return Actions(space, {}, parse)


def legal_in(env: Env, info: Mapping[str, Any]) -> Sequence[int] | None:
    """The actions that the ``action_mask`` in ``info`` allows; None: there is no such mask."""
    mask, space = info.get("action_mask"), env.action_space
    if mask is None or not isinstance(space, spaces.Discrete) or len(mask) != space.n:
        return None
    return [int(space.start) + index for index, is_legal in enumerate(mask) if is_legal]


def _names(env: Env) -> Mapping[int, str]:
    if meanings := getattr(env, "get_action_meanings", None):
        return dict(enumerate(meanings()))
    if members := getattr(getattr(env, "actions", None), "__members__", None):
        return {int(member): name for name, member in members.items()}
    return _documented(type(env).__doc__ or "")


@lru_cache(64)
def _documented(doc: str) -> Mapping[int, str]:
    """The names under "Action Space": lines "- 0: Stick", or a table's "| 0 | Stick |"."""
    found = re.search(r"^\s*## Action Space\n(.*?)(?=^\s*## |\Z)", doc, re.M | re.S)
    listed = re.findall(r"^\s*[-*|]\s*(\d+)\s*[:|]\s*([^|\n]+)", found[1] if found else "", re.M)
    return {int(number): name.strip() for number, name in listed}
