"""Converts a rollout to a JSON row: the Cookbook's rollout summary with additional fields.

The rows are compatible with programs that read the Cookbook's files
(``serialize_rollout_summaries``). The additional fields are listed in ``docs/records.md`` and
versioned by ``SCHEMA``.

Steps are in the order of play. To save space, a prompt or a call contains only what is new relative
to the earlier step that it continues.
"""

import json
from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from itertools import takewhile
from typing import Any, Protocol, runtime_checkable

from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import message_to_jsonable
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.chat.messages import as_fields, read_tools
from evert.bridge.env.transcript import AnsweredCall, Transcript
from evert.bridge.episode.agent import NO_TASK, agent_name
from evert.bridge.errors import repr_of
from evert.bridge.records.sequences import continued
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer
from evert.bridge.tokens.token_log import flatten

SCHEMA = 1
"""Version of the fields added by evert."""

OPENING = 3
"""How many tokens at the end of the prompt to search for the start of the reply's thinking."""

Row = dict[str, Any]


@runtime_checkable
class Recorded(Protocol):
    """Attributes that are recorded in addition to the trajectory. All of evert's Envs have them."""

    @property
    def agent(self) -> object:
        """The agent, or its name."""

    @property
    def renderer(self) -> Renderer:
        """The renderer used for the prompts."""
        ...

    @property
    def transcript(self) -> Transcript | None:
        """The agent's calls, if they were recorded."""

    @property
    def task(self) -> object:
        """The task, or ``NO_TASK``."""


def completed(row: Row, trajectory: Trajectory, env: Recorded) -> Row:
    """Add evert's fields to a row created by the Cookbook's ``serialize_rollout_summaries``."""
    renderer = env.renderer
    steps = zip(row["steps"], _steps(trajectory, env), strict=True)
    return row | {
        "steps": [step | added for step, added in steps],
        "evert_schema": SCHEMA,
        "versions": _versions(),
        "agent": agent_name(env.agent),
        "renderer": getattr(renderer, "_renderer_name", None) or type(renderer).__name__,
        "tokenizer": getattr(renderer.tokenizer, "name_or_path", None),
        "seat": getattr(env, "seat", None),
        "seed": getattr(getattr(env, "table", env), "seed", None),  # seats share their table's seed
        **_task(env.task),
        "stop_reason": trajectory.stop_reason,
    }


@cache
def _versions() -> dict[str, str]:
    return {package: version(package) for package in ("evert", "tinker-cookbook")}


def _task(task: object) -> Row:
    """Return the fields that describe the task.

    A task that survives a JSON round trip is stored as is. For any other task, the start of its
    ``repr`` is stored, along with the full ``repr`` if that is a Python literal.
    """
    if task is NO_TASK:
        return {}
    with suppress(Exception):  # the task is not JSON, or cannot be compared
        if json.loads(json.dumps(task)) == task:
            return {"task": task}
    row = {"task_repr": repr_of(task)}
    with suppress(Exception):  # a Python literal, such as a tuple, a set or {1: 2}
        if literal_eval(literal := repr(task)) == task:
            row["task_literal"] = literal
    return row


def _steps(trajectory: Trajectory, env: Recorded) -> Iterator[Row]:
    renderer = prompt_renderer(env.renderer)
    transcript = env.transcript or Transcript()
    turns = trajectory.transitions
    for index, (turn, (after, new)) in enumerate(zip(turns, continued(turns), strict=True)):
        plain = [part if isinstance(part, int) else part.model_dump(mode="json") for part in new]
        yield {
            "prompt": {"after": after, "tokens": plain},
            "tokens": [*turn.ac.tokens],
            "logprobs": turn.ac.maybe_logprobs,
            "stop_reason": turn.ac.stop_reason,
            "text": _opened_thinking(turn, renderer) + _text(turn.ac.tokens, renderer),
            **_call_and_reply(transcript, index, env),
        }


def _text(tokens: Sequence[int], renderer: PromptRenderer) -> str:
    """Decode an action. Keeps thinking and markup, but drops the end-of-turn token."""
    ends = renderer.end_tokens
    tail = len([*takewhile(lambda token: token in ends, reversed(tokens))])
    return renderer.decode([*tokens[: len(tokens) - tail]])


def _opened_thinking(turn: Transition, renderer: PromptRenderer) -> str:
    """Return the opening ``<think>`` at the end of the prompt, or "" if there is none."""
    end = [token for token in flatten(turn.ob.chunks)[-OPENING:] if isinstance(token, int)]
    _, mark, thought = renderer.decode(end).rpartition("<think>")
    return mark + thought if not thought.strip() else ""


def _call_and_reply(transcript: Transcript, turn: int, env: Recorded) -> Row:
    if turn >= len(transcript.calls):
        return {}
    entry, reply = transcript.calls[turn], transcript.reply(turn)
    request = entry.request
    call = {"after": entry.after, "messages": [*map(as_message, entry.messages)]}
    settings: Row = {"model": request.model, "max_tokens": request.max_tokens}
    settings |= {"stop": [*request.stop], "met": entry.overlaps, "prefill": request.prefill}
    settings |= {"added": [*map(as_message, entry.added)]}
    call |= {name: value for name, value in settings.items() if value}
    call |= {} if entry.retried_turn is None else {"again": entry.retried_turn}
    return {
        "call": call | _tools(entry, env),
        "reply": None if reply is None else reply.as_message(),
    }


def _tools(entry: AnsweredCall, env: Recorded) -> Row:
    """Return the tools at the start of a conversation, and how the renderer lists them.

    The renderer's messages ("prefix") also contain the system prompt.
    """
    if not entry.request.tools or entry.after is not None:
        return {}
    first = as_message(entry.messages[0])
    is_system = first.get("role") in ("system", "developer")
    system = first["content"] if is_system and isinstance(first.get("content"), str) else ""
    tools = read_tools(entry.request.tools)
    prefix = env.renderer.create_conversation_prefix_with_tools(tools, system)
    return {
        "tools": json.loads(json.dumps(entry.request.tools, default=_json)),
        "prefix": [*map(message_to_jsonable, prefix)],
    }


def as_message(message: object) -> Row:
    """Convert an agent's message to plain JSON values."""
    row: Row = json.loads(json.dumps(dict(as_fields(message, 0)), default=_json))
    return row


def _json(value: Any) -> Any:
    for method in ("model_dump", "tolist", "item"):
        if callable(dump := getattr(value, method, None)):
            return dump()
    return repr_of(value)
