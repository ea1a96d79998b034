"""Tasksets with the real benchmarks and scripted models.

    .frameworks/tasksets/bin/python -m pytest tests/tasksets --environment tasksets

``frameworks/make_environment.py tasksets`` creates the environment. The packages are not installed
in .venv, so without ``--environment`` none of these tests is collected.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from evert.trainers.commands import train

Call = tuple[str, Mapping[str, Any]]
Said = str | list[Call]
"""A model's reply: text, or tool calls by name and arguments."""


PAGE = Path(__file__).parents[2] / "docs" / "tasksets.md"


def check_lines_of_the_page(taskset: str) -> None:
    """Assert that ``evert train`` accepts the taskset's command lines in ``docs``."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("evert train ")]
    own = [shlex.split(line)[2:] for line in lines if f" tasks={taskset}:" in line]
    assert len(own) == 2
    assert all(train.parse(arguments) for arguments in own)


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("environment") == "tasksets" else True


def as_text(said: Said) -> str:
    """Return a reply in the format of the default renderer's model."""
    if isinstance(said, str):
        return said
    calls = [json.dumps({"name": name, "arguments": given}) for name, given in said]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def scripted_openai(replies: Iterable[Said]) -> openai.OpenAI:
    """Return OpenAI's own client, connected to a server that gives these replies in turn."""
    left = enumerate(replies)

    def answer(request: httpx.Request) -> httpx.Response:
        number, said = next(left)
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if not isinstance(said, str):
            message = {"role": "assistant", "content": None, "tool_calls": tool_calls(said, number)}
        head = {"id": "c", "object": "chat.completion", "created": 0, "model": "scripted"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return httpx.Response(200, json={**head, "choices": [choice]})

    transport = httpx.MockTransport(answer)
    return openai.OpenAI(api_key="none", http_client=httpx.Client(transport=transport))


def tool_calls(said: list[Call], number: int) -> list[dict[str, Any]]:
    """Return calls in the form of a Chat Completions message."""
    return [
        {
            "id": f"call-{number}-{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given)},
        }
        for place, (name, given) in enumerate(said)
    ]
