"""``evert play`` runs one episode in the terminal, played by a model or by a person."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kit import Patch, Shown, ask, call, system, tool, user
from tests.trainers.kit import chat_endpoint

from evert import read_records
from evert.trainers import cli
from evert.trainers.episodes.person import typed_message
from evert.trainers.system.command import INTERRUPTED

HERE = "tests.trainers.commands.test_play"
ADD = tool("add", parameters={"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}})
EVIL = "\x1b]0;evil\x9b31m"


async def agent(client: Any, task: Any) -> float:
    """Offer a tool until a reply makes no call; each call earns 0.25."""
    messages: list[Any] = [system("Add."), user(f"{task}{EVIL}")]
    while True:
        message = (await call(client, *messages, tools=[ADD])).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return float(message.content == "5")
        for made in message.tool_calls:
            client.reward(0.25)
            client.metric("calls", 1)
            result = {"role": "tool", "tool_call_id": made.id, "content": made.function.arguments}
            messages.append(result)


async def impatient(client: Any) -> float:
    return float(await ask(client))


def play(*arguments: str) -> int:
    return cli.main(["play", *arguments])


def typing(text: str, *arguments: str) -> int:
    """Run ``evert play`` as a person who types this text."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    with pytest.MonkeyPatch.context() as patch, os.fdopen(reading) as file:
        patch.setattr(sys, "stdin", file)
        return play(*arguments, "model=me")


def test_an_episode_played_by_a_person_is_shown_turn_by_turn_and_then_explained(
    capsys: Shown,
) -> None:
    assert typing("add a=2 b=3\nWait.\\\nadd b=x\n5\n", f"agent={HERE}:agent", 'task={"n": 1}') == 0
    live, explained = capsys.readouterr().out.split("\nreply, as tokens\n")
    shown = [line.rstrip() for line in live.splitlines()]
    for line in (
        "  system  | Add.",
        "  user    | {'n': 1}␛]0;evil�31m",
        "  tools   | add(a: string, b: integer)",
        "you>   reply   |",
        '          | -> add {"a": "2", "b": 3}',
        '  tool    | {"a": "2", "b": 3}',
        "you> ...>   reply   | Wait.",
        "you>   reply   | 5",
    ):
        assert shown.count(line) == 1, line
    assert [line for line in shown if "reward" in line] == [
        "  reward 0.25  calls=1", "  reward 0.25  calls=1", "  reward 1",
    ]  # fmt: skip
    assert sum("called by evert agent" in line for line in shown) == 3
    assert "3 turns, reward 1.5, completed; 1 datum" in explained
    assert not {"\x1b", "\x9b"} & {*live, *explained}


@pytest.mark.parametrize(
    ("lines", "text", "calls"),
    [
        (["add"], "", [{}]),
        (["add a=1 b=2", "add b=[1] c='two words' d=1"], "", [
            {"a": "1", "b": 2}, {"b": [1], "c": "two words", "d": 1},
        ]),
        (["I'm sure.", "add b=1"], "I'm sure.", [{"b": 1}]),
        (["add it up", "subtract a=1", ""], "add it up\nsubtract a=1\n", []),
    ],
)  # fmt: skip
def test_typed_lines_that_start_with_a_tool_name_are_tool_calls(
    lines: list[str], text: str, calls: list[Any]
) -> None:
    message = typed_message(lines, [ADD])

    assert message["content"] == text
    made = message.get("tool_calls") or []
    assert [(c.function.name, json.loads(c.function.arguments)) for c in made] == [
        ("add", arguments) for arguments in calls
    ]


def test_end_of_input_ends_the_episode_and_ctrl_c_stops_the_command(capsys: Shown) -> None:
    assert typing("add b=1\n", f"agent={HERE}:agent", "task=x") == 0
    shown = capsys.readouterr().out
    assert "The input was closed, which ends the episode.\n" in shown
    assert "1 turns, reward 0.25" in shown

    command = [sys.executable, "-m", "evert", "play", f"agent={HERE}:agent", "task=x", "model=me"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        shown = ""
        while not shown.endswith("you> "):
            read = process.stdout.read(1).decode("utf-8", "replace")
            assert read, process.stderr and process.stderr.read()
            shown += read
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
        assert (process.returncode, errors) == (INTERRUPTED, b"")
        assert rest.decode().endswith("\nInterrupted.\n")


def test_an_endpoint_plays_and_failures_are_explained(monkeypatch: Patch, capsys: Shown) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    with chat_endpoint(lambda body, key: {"role": "assistant", "content": "5" + EVIL}) as url:
        assert play(f"agent={HERE}:impatient", f"model={url}#gpt") == 1
    shown = capsys.readouterr().out
    assert "  reply   | 5␛]0;evil�31m\n" in shown
    assert "ValueError: could not convert string to float: " in shown
    assert play(f"agent={HERE}:agent", "task=x", f"model={url}#gpt") == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {url}#gpt: a request to the endpoint failed: APIConnectionE")


def test_a_task_and_a_seed_reproduce_an_episode_of_an_evaluation(
    tmp_path: Path, capsys: Shown
) -> None:
    same = ["env=identity", "split=test", "max_tasks=3", "record=True", "device=cpu"]
    evaluated, played = tmp_path / "evaluated", tmp_path / "played"
    assert cli.main(["evaluate", *same, "models=evert-tiny", "seeds=2", f"out={evaluated}"]) == 0
    for task, seed in ((2, 1), (0, 0)):
        typed = ["model=evert-tiny", f"task={task}", f"seed={seed}", f"out={played}"]
        assert play(*same, *typed) == 0
    records = {
        (record.row["about"]["task_number"], record.row["about"]["seed"]): record.messages()
        for record in read_records(evaluated)
    }
    assert [record.messages() for record in read_records(played)] == [
        records[2, 1],
        records[0, 0],
    ]
    assert f"record: {played}/rollouts.jsonl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model=me"], "No agent to play. Pass env= with one of "),
        (["env=identity", "models=me"], "There is no setting 'models'. Did you mean 'model'?"),
        (["env=identity", "model=evert-tinny"], "Did you mean evert-tiny?"),
        (["env=identity", "model=me", "task=24"], "task=24: expected a number from 0 to 23."),
        (["env=identity", "model=me", "task=x"], "task=x: expected a number from 0 to 23."),
        ([f"agent={HERE}:agnt", "model=me"], f"No agent at '{HERE}:agnt'"),
        ([f"agent={HERE}:agent", "model=me"], "Pass task=... if it needs one."),
    ],
)
def test_a_user_error_is_one_line(arguments: list[str], message: str, capsys: Shown) -> None:
    assert play(*arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
