"""Builds the system message with the rules, based on the environment's docstring and spaces."""

import inspect
import re
from functools import lru_cache
from typing import Any

import gymnasium

from evert.envs.from_gymnasium.actions import Actions
from evert.envs.from_gymnasium.observations import toy_text

SECTIONS = (
    *("Description", "Mission Space", "Observation Space", "Rewards", "Reward"),
    *("Episode End", "Termination"),
)
"""The sections of Gymnasium and MiniGrid docstrings that go into the message."""

_MARKUP = r"\s*\[<a [^>]*>[^<]*</a>\]|<[^>]*>|!\[[^\]]*\]\([^)]*\)"
"""Matches references, HTML tags and images, which are removed."""


def prompt_of(env: gymnasium.Env[Any, Any], actions: Actions) -> str:
    """Return an environment's rules, with instructions on how to reply."""
    omitted = "Observation Space" if toy_text(env) else ""  # our format is different
    rules = _rules(type(env.unwrapped).__doc__ or "", omitted)
    if not rules:
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        rules = f"You play {name}. Observations are in {env.observation_space}."
    return f"{rules}\n\n{actions.choices()} Say nothing else."


@lru_cache(64)
def _rules(doc: str, omitted: str) -> str:
    doc = re.sub(_MARKUP, "", inspect.cleandoc(doc))
    beginning, *parts = re.split(r"^\s*## +(.+)$", doc, flags=re.M)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    texts = [beginning]
    texts += [f"{t}:\n{sections[t].strip()}" for t in SECTIONS if t in sections and t != omitted]
    text = "\n\n".join(text.strip() for text in texts if text.strip())
    return text.replace("Description:\n", "", 1)
