"""Calls and replies that an agent changes (completes, renames or edits) before sending them back.
``clients/dialects/test_contract.py`` tests calls and replies that are sent back unchanged."""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from tests.kit import call, calling, play, reward, tool, user
from tests.kit.renderers import renderer_named
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient
from evert.bridge.env.options import EnvOptions

TOOLS: Any = [tool("edit")]
Change = Callable[[dict[str, Any], int], str]
TWO = f"{calling('edit', path='a')}\n{calling('edit', path='b')}\n"


def sends_back(change: Change) -> Callable[[AgentClient], Awaitable[float]]:
    """Return an agent that runs until a reply contains no tool calls.

    Before a call is sent back, ``change`` modifies it in place and returns the id to use in the
    call's result. The second argument of ``change`` is a number unique to each call of the episode.
    """

    async def agent(client: AgentClient) -> float:
        history: list[Any] = [user("go")]
        while True:
            message = (await call(client, *history, tools=TOOLS)).choices[0].message
            client.log(ids=" ".join(made.id for made in message.tool_calls or ()))
            if not message.tool_calls:
                return 1.0
            sent, results = message.model_dump(exclude_none=True), list[Any]()
            for number, made in enumerate(sent["tool_calls"]):
                result, place = {"role": "tool", "content": made["id"]}, len(history) + number
                results.append({**result, "tool_call_id": change(made, place)})
            history = [*map(dict, history), sent, *results]  # new objects in each request

    return agent


async def episode(agent: Any, *replies: str, **options: Any) -> Trajectory:
    trajectory = await play(agent, *replies, "done", **options)
    assert len(trajectory.transitions) == len(replies) + 1
    assert reward(trajectory) == 1.0
    return trajectory


def complete(made: dict[str, Any], place: int) -> str:
    """Change arguments as Claude Code does: add a default and strip trailing whitespace."""
    arguments = {"replace_all": False, **json.loads(made["function"]["arguments"])}
    if "text" in arguments:
        arguments["text"] = arguments["text"].rstrip()
    made["function"]["arguments"] = json.dumps(arguments)
    return str(made["id"])


class Completing:
    """An agent that sets the option as a class attribute."""

    env_options: ClassVar[EnvOptions] = {"keep_completed_arguments": True}

    async def __call__(self, client: AgentClient) -> float:
        return await sends_back(complete)(client)


async def test_completed_arguments_are_kept_if_the_option_is_set_by_the_user_or_the_agent() -> None:
    edits = [calling("edit", path="a", text="one  \n"), TWO]
    edits.append(f"I go on.\n{calling('edit', path='b', text='two')}")
    option = {"keep_completed_arguments": True}
    for agent, options, lineages in (
        (sends_back(complete), option, 1),
        (Completing(), {}, 1),
        (sends_back(complete), {}, 4),
    ):
        trajectory = await episode(agent, *edits, **options)
        metrics = trajectory.transitions[-1].metrics
        assert len(trajectory_to_data(trajectory, 1.0)) == lineages
        expected = {"lineages": lineages, "drift": 3, "drift/completed_arguments": 3}
        assert metrics.items() >= expected.items()
        causes = [turn.logs.get("drift") for turn in trajectory.transitions]
        assert causes == [*["completed_arguments"] * 3, None]


def renamed(rename: Callable[[str, int], str], answered: str | None = None) -> Any:
    """Return an agent that renames call ids. Results use the new id, or ``answered`` if set."""

    def change(tool_call: dict[str, Any], place: int) -> str:
        tool_call["id"] = rename(tool_call["id"], place)
        return answered or tool_call["id"]

    return sends_back(change)


RENAMES: list[Callable[[str, int], str]] = [
    lambda id, place: id,
    lambda id, place: f"call_{place:024}",
    lambda id, place: id[::-1],
]


async def test_consistently_renamed_ids_are_not_drift_and_ids_are_reproducible() -> None:
    ids: list[str] = []
    for rename in (RENAMES[0], *RENAMES):
        trajectory = await episode(renamed(rename), TWO, calling("edit", path="c"), TWO)
        metrics = trajectory.transitions[-1].metrics
        assert len(trajectory_to_data(trajectory, 1.0)) == metrics["lineages"] == 1
        assert metrics["drift"] == metrics.get("drift/retokenised", 0)
        assert "handoffs" not in metrics
        ids.append(str([turn.logs["ids"] for turn in trajectory.transitions]))
    unique_ids = re.findall(r"call_[A-Za-z0-9]{24}\b", ids[0])
    assert len(set(unique_ids)) == len(unique_ids) == 5
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    "agent", [renamed(lambda id, place: "mine"), renamed(lambda id, place: "mine", "no such")]
)
async def test_inconsistently_renamed_ids_are_drift_with_the_field_in_the_log(agent: Any) -> None:
    trajectory = await episode(agent, TWO)
    first = trajectory.transitions[0]
    assert first.logs["drift"] == "history"
    where = r"messages\[1\]\.tool_calls\[0\]\.id of the assistant was "
    assert re.match(where, str(first.logs["drift_at"]))
    assert len(trajectory_to_data(trajectory, 1.0)) == 2


async def test_a_renamed_id_is_drift_if_the_template_includes_ids() -> None:
    called = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.edit:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    causes, kimi = list[object](), renderer_named("kimi_k2")
    for rename in RENAMES:
        trajectory = await episode(renamed(rename), called, renderer=kimi)
        causes.append(trajectory.transitions[0].logs["drift"])

    assert causes == ["retokenised", "history", "history"]
    assert "'functions.edit:0'" in str(trajectory.transitions[0].logs["drift_at"])


ARGUMENTS = "messages[1].tool_calls[0].function.arguments"
CHANGES: list[tuple[Callable[[list[Any]], object], str, str]] = [
    (lambda sent: sent[1]["tool_calls"][0]["function"].update(arguments='{"path": "z"}'),
        "history", f"{ARGUMENTS}.path of the assistant was 'a' and is now 'z'."),
    (lambda sent: sent[1]["tool_calls"][0]["function"].update(arguments='{"path":"a", "n":1}'),
        "completed_arguments", f"{ARGUMENTS}.n of the assistant was 'null' and is now '1'."),
    (lambda sent: sent[0].update(content="stop"),
        "history", "messages[0].content of the user was 'go' and is now 'stop'."),
    (lambda sent: sent.__setitem__(slice(1, 3), [user("And?")]),
        "history", "messages[1].role of the assistant was 'assistant' and is now 'user'."),
]  # fmt: skip


@pytest.mark.parametrize(("change", "cause", "where"), CHANGES)
async def test_drift_logs_the_changed_field_and_message(
    change: Any, cause: str, where: str
) -> None:
    async def agent(client: AgentClient) -> float:
        message = (await call(client, "go", tools=TOOLS)).choices[0].message
        [made], sent = message.tool_calls, [user("go"), message.model_dump(exclude_none=True)]
        sent.append({"role": "tool", "tool_call_id": made.id, "content": "ok"})
        change(sent)
        await call(client, *sent, tools=TOOLS)
        return 1.0

    trajectory = await episode(agent, calling("edit", path="a"))
    logs = trajectory.transitions[0].logs
    assert (logs["drift"], logs["drift_at"]) == (cause, where)
