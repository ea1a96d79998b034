"""Tool calls are counted: offered, parsed, unparsed, and left as markup in the text."""

from typing import Any

from tests.kit import ask, play, tool

from evert import AgentClient
from evert.bridge.env.tool_counts import MARKUP

TOOLS = [tool("look"), tool("take")]
GOOD = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "look", "arguments": \n</tool_call>'
OTHER_FORMAT = "[TOOL_CALLS] look()"


async def counts(*replies: str, tools: list[Any] | None) -> dict[str, float]:
    async def agent(client: AgentClient) -> float:
        for _ in replies:
            await ask(client, tools=tools)
        return 0.0

    metrics = (await play(agent, *replies)).transitions[-1].metrics
    return {k.removeprefix("tools/"): v for k, v in metrics.items() if k.startswith("tools/")}


async def test_calls_are_told_apart_and_markup_is_noticed() -> None:
    replies = (GOOD, f"{GOOD}\n{GOOD}", BROKEN, OTHER_FORMAT, "Nothing.")
    assert await counts(*replies, tools=TOOLS) == {
        "offered": 2,
        "calls": 3,
        "calls_unparsed": 1,
        "markup_in_text": 2,  # the broken call stays in the text, for the agent to see
    }
    assert await counts("Hello.", tools=None) == {}
    assert (await counts(OTHER_FORMAT, tools=None))["markup_in_text"] == 1


MARKED = """<tool_call>{"name": "f"}
</tool_call>
<function=look>{}</function>
<|python_tag|>look()
<|tool_calls_section_begin|>
<｜tool▁calls▁begin｜>
[TOOL_CALLS][{"name": "look"}]
<invoke name="look">
{"name": "look", "arguments": {}}
functions.look:0"""


def test_the_markup_of_every_common_format_is_known() -> None:
    assert [text for text in MARKED.splitlines() if not MARKUP.search(text)] == []
    for text in ("I look around.", "f(x) = <x>", "use the function look", "a[1]"):
        assert not MARKUP.search(text), text
