"""Tool calls are counted: offered, parsed, unparsed, and left as markup in the text."""

from typing import Any

import pytest
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.env.tool_counts import MARKUP

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look", "take")
]
GOOD = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "look", "arguments": \n</tool_call>'
OTHER_FORMAT = "[TOOL_CALLS] look()"


async def counts(replies: list[str], tools: list[Any] | None = TOOLS) -> dict[str, float]:
    async def agent(client: AgentClient) -> float:
        for _ in replies:
            question = [{"role": "user", "content": "What now?"}]
            await client.chat.completions.create(messages=question, tools=tools)
        return 0.0

    trajectory = await do_single_rollout(ScriptedPolicy(replies), ChatAgentEnv(agent))
    metrics = trajectory.transitions[-1].metrics
    return {k.removeprefix("tools/"): v for k, v in metrics.items() if k.startswith("tools/")}


async def test_calls_are_told_apart() -> None:
    assert await counts([GOOD, f"{GOOD}\n{GOOD}", BROKEN, OTHER_FORMAT, "Nothing."]) == {
        "offered": 2,
        "calls": 3,
        "calls_unparsed": 1,
        "markup_in_text": 2,  # the broken call stays in the text, for the agent to see
    }


async def test_an_episode_without_tools_says_nothing_about_them() -> None:
    assert await counts(["Hello."], tools=None) == {}


async def test_markup_is_noticed_where_no_tool_was_offered() -> None:
    assert (await counts([OTHER_FORMAT], tools=None))["markup_in_text"] == 1


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f"}',
        "</tool_call>",
        "<function=look>{}</function>",
        "<|python_tag|>look()",
        "<|tool_calls_section_begin|>",
        "<｜tool▁calls▁begin｜>",
        '[TOOL_CALLS][{"name": "look"}]',
        '<invoke name="look">',
        '{"name": "look", "arguments": {}}',
        "functions.look:0",
    ],
)
def test_the_markup_of_every_common_format_is_known(text: str) -> None:
    assert MARKUP.search(text)


@pytest.mark.parametrize("text", ["I look around.", "f(x) = <x>", "use the function look", "a[1]"])
def test_plain_text_is_no_markup(text: str) -> None:
    assert not MARKUP.search(text)
