"""Tool-call markup in replies: metrics for parsed calls, unparsed calls and markup in text, and
protection against replies with repeated markup that would block the parser."""

from typing import Any

import pytest
import tinker_cookbook.renderers as cookbook
from tests.kit import ask, assistant, calling, play, tool, user
from tinker_cookbook.exceptions import RendererError

from evert import AgentClient
from evert.bridge.clients.dialects.gemini import method_of
from evert.bridge.env.tool_counts import MARKUP
from evert.bridge.tokens.parse_guard import check_marks
from evert.bridge.tokens.renderer import PromptRenderer

DEGENERATE = {
    "calls": "<tool_call>" * 4_000,
    "calls begun": '<tool_call>\n{"name": ' * 2_000,
    "thoughts": "<think>" * 4_000,
    "functions": "<tool_call><function=a>" * 2_000,
    "parameters": "<parameter=x>" * 3_000,
    "keys": "<arg_key>k" * 4_000,
    "sections": "<|tool_calls_section_begin|>" * 2_000,
    "DeepSeek's": "<｜tool▁call▁begin｜>" * 2_000,
    "white space after a mark": "<tool_call><function=a>" + " " * 4_000 + "</tool_call>",
    "line breaks in a parameter": "<parameter=x>\na" + "\n" * 30_000,
}

SENSIBLE = {
    "nothing": "",
    "text": "The quick brown fox. " * 5_000,
    "white space": " \n" * 50_000,
    "a web page": "<html>" + "<br>" * 5_000 + "<li><p>" * 2_000 + "x" * 50_000,
    "code": "if a < b:\n" + "    x = c</think>d\n" * 3_000,
    "many calls": '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n' * 500,
    "many functions": "<function=a><parameter=x>\n1\n</parameter></function>" * 500,
    "many calls of Kimi's": "<|tool_call_begin|>a:0<|tool_call_end|>" * 100 + "x" * 50_000,
    "a thought": "<think>" + "So. " * 20_000 + "</think>",
    "a call that was cut": "<tool_call>" + "x" * 100_000,
    "a wide table": "<parameter=x>\n" + ("a" + " " * 300 + "b\n") * 50 + "</parameter>",
}


@pytest.mark.parametrize("text", SENSIBLE.values())
def test_sensible_replies_are_accepted(text: Any) -> None:
    check_marks(text)


def test_no_renderer_parses_degenerate_replies(family: cookbook.Renderer) -> None:
    renderer = PromptRenderer(family)
    for kind, text in DEGENERATE.items():
        with pytest.raises(RendererError, match="would take too long to parse"):
            check_marks(text)
        with pytest.raises(RendererError) as caught:
            renderer.parse([*renderer.encode(text), *renderer.end_tokens[:1]])
        assert str(caught.value), kind


async def test_a_degenerate_reply_is_delivered_as_text_and_the_agent_continues() -> None:
    replies_read: list[str] = []

    async def agent(client: AgentClient) -> float:
        messages = [user("Hi")]
        for _ in range(3):
            replies_read.append(await ask(client, *messages))
            messages += [assistant(replies_read[-1]), user("Again.")]
        return 1.0

    text = "<tool_call>" * 20_000
    trajectory = await play(agent, text, "Well.", text)
    assert [text in reply for reply in replies_read] == [True, False, True]
    assert [turn.metrics.get("parse_error") for turn in trajectory.transitions] == [1.0, None, 1.0]


def test_a_long_path_is_parsed_in_linear_time() -> None:
    assert method_of("/models/" * 100_000) is None
    assert (method_of("/models/" * 100_000 + "a:countTokens") or "")[2] == "countTokens"


TOOLS = [tool("look"), tool("take")]
GOOD = calling("look")
BROKEN = '<tool_call>\n{"name": "look", "arguments": \n</tool_call>'
OTHER_FORMAT = "[TOOL_CALLS] look()"


async def counts(*replies: str, tools: list[Any] | None) -> dict[str, float]:
    async def agent(client: AgentClient) -> float:
        for _ in replies:
            await ask(client, tools=tools)
        return 0.0

    metrics = (await play(agent, *replies)).transitions[-1].metrics
    return {k.removeprefix("tools/"): v for k, v in metrics.items() if k.startswith("tools/")}


async def test_calls_and_markup_in_text_are_counted_separately() -> None:
    replies = (GOOD, f"{GOOD}\n{GOOD}", BROKEN, OTHER_FORMAT, "Nothing.")
    assert await counts(*replies, tools=TOOLS) == {
        "offered": 2,
        "calls": 3,
        "calls_unparsed": 1,
        "markup_in_text": 2,  # the broken call is left in the text so that the agent sees it
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


def test_the_markup_of_every_common_format_is_recognised() -> None:
    assert [text for text in MARKED.splitlines() if not MARKUP.search(text)] == []
    for text in ("I look around.", "f(x) = <x>", "use the function look", "a[1]"):
        assert not MARKUP.search(text), text
