"""A rollout as a row of JSON: the Cookbook's summary of it, and all that it leaves out.

Whatever reads the Cookbook's files (``serialize_rollout_summaries``) reads these. What is added has
its own number, ``SCHEMA``; ``docs/records.md`` lists it.

Steps stand in the order in which they were played. A prompt, and a call, is written as what is new
after an earlier step: a long conversation costs what was said in it, once.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from itertools import takewhile
from typing import Any

from tinker_cookbook.renderers.base import message_to_jsonable
from tinker_cookbook.rl.types import Trajectory, Transition

from evert.bridge.chat.messages import as_fields, read_tools
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.transcript import Asked, Transcript
from evert.bridge.episode.agent import NO_TASK, agent_name
from evert.bridge.errors import repr_of
from evert.bridge.records.sequences import continued
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer
from evert.bridge.tokens.token_log import flatten

SCHEMA = 1
"""Of what evert adds; another number is another form."""

OPENING = 3
"""Tokens in which a prompt may open a thought."""

Row = dict[str, Any]


def completed(row: Row, trajectory: Trajectory, env: ChatAgentEnv) -> Row:
    """A row of the Cookbook's (``serialize_rollout_summaries``) with all that it leaves out."""
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
        "seed": getattr(env, "table", env).seed,  # of seats it is their table's
        **_task(env.task),
        "stop_reason": trajectory.stop_reason,
    }


@cache
def _versions() -> dict[str, str]:
    return {package: version(package) for package in ("evert", "tinker-cookbook")}


def _task(task: object) -> Row:
    """The task itself where JSON gives it back as it was; else its ``repr``, to be recognised."""
    if task is NO_TASK:
        return {}
    try:
        if json.loads(json.dumps(task)) == task:
            return {"task": task}
    except Exception:  # no JSON, or an object that does not like to be compared
        pass
    return {"task_repr": repr_of(task)}


def _steps(trajectory: Trajectory, env: ChatAgentEnv) -> Iterator[Row]:
    renderer = prompt_renderer(env.renderer)
    transcript = env.transcript or Transcript()
    turns = trajectory.transitions
    for index, (turn, (after, new)) in enumerate(zip(turns, continued(turns), strict=True)):
        plain = [one if isinstance(one, int) else one.model_dump(mode="json") for one in new]
        yield {
            "prompt": {"after": after, "tokens": plain},
            "tokens": [*turn.ac.tokens],
            "logprobs": turn.ac.maybe_logprobs,
            "stop_reason": turn.ac.stop_reason,
            "text": _opened(turn, renderer) + _text(turn.ac.tokens, renderer),
            **_said(transcript, index, env),
        }


def _text(tokens: Sequence[int], renderer: PromptRenderer) -> str:
    """What was sampled, thinking and markup included, without the end of turn."""
    ends = renderer.end_tokens
    tail = len([*takewhile(lambda token: token in ends, reversed(tokens))])
    return renderer.decode([*tokens[: len(tokens) - tail]])


def _opened(turn: Transition, renderer: PromptRenderer) -> str:
    """The beginning of a thought that the prompt opens for the reply; "" where it opens none."""
    end = [token for token in flatten(turn.ob.chunks)[-OPENING:] if isinstance(token, int)]
    _, mark, rest = renderer.decode(end).rpartition("<think>")
    return mark + rest if not rest.strip() else ""


def _said(transcript: Transcript, turn: int, env: ChatAgentEnv) -> Row:
    if turn >= len(transcript.calls):
        return {}
    asked, reply = transcript.calls[turn], transcript.reply(turn)
    request = asked.request
    call = {"after": asked.after, "messages": [*map(as_message, asked.messages)]}
    given: Row = {"model": request.model, "max_tokens": request.max_tokens}
    given |= {"stop": [*request.stop], "met": asked.met}
    call |= {name: value for name, value in given.items() if value}
    return {
        "call": call | _tools(asked, env),
        "reply": None if reply is None else reply.as_message(),
    }


def _tools(asked: Asked, env: ChatAgentEnv) -> Row:
    """A conversation's tools, and the messages with them that replace a first system message."""
    if not asked.request.tools or asked.after is not None:
        return {}
    first = as_message(asked.messages[0])
    is_system = first.get("role") in ("system", "developer")
    system = first["content"] if is_system and isinstance(first.get("content"), str) else ""
    tools = read_tools(asked.request.tools)
    prefix = env.renderer.create_conversation_prefix_with_tools(tools, system)
    return {
        "tools": json.loads(json.dumps(asked.request.tools, default=_json)),
        "prefix": [*map(message_to_jsonable, prefix)],
    }


def as_message(message: object) -> Row:
    """A message of an agent's as JSON has it."""
    found: Row = json.loads(json.dumps(dict(as_fields(message, 0)), default=_json))
    return found


def _json(value: Any) -> Any:
    """A value that JSON lacks: its own plain form, or its ``repr``."""
    for method in ("model_dump", "tolist", "item"):
        if callable(dump := getattr(value, method, None)):
            return dump()
    return repr_of(value)
