"""Replies of a policy that has begun to repeat itself: no parser is to hold the process.

1. Marks that are never closed, and white space after them, are refused before they are parsed.
2. Whatever a sensible reply holds is parsed as ever.
3. An episode goes on with the text that was said, or as its policy for such replies has it.
"""

from typing import Any

import pytest
import tinker_cookbook.renderers as cookbook
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.clients.dialects.gemini import method_of
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


@pytest.mark.parametrize("text", DEGENERATE.values(), ids=DEGENERATE)
def test_what_would_take_ages_is_refused(text: str) -> None:
    with pytest.raises(RendererError, match="cannot be parsed"):
        check_marks(text)


@pytest.mark.parametrize("text", SENSIBLE.values(), ids=SENSIBLE)
def test_what_a_sensible_reply_holds_passes(text: str) -> None:
    check_marks(text)


@pytest.mark.parametrize("said", DEGENERATE)
def test_every_renderer_refuses_it_at_once(family: cookbook.Renderer, said: str) -> None:
    renderer = PromptRenderer(family)

    with pytest.raises(RendererError):
        renderer.parse([*renderer.encode(DEGENERATE[said]), *renderer.end_tokens[:1]])


async def test_the_agent_gets_what_was_said_and_goes_on() -> None:
    said: list[Any] = []

    async def agent(client: AgentClient) -> float:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        for _ in range(3):
            completion = await client.chat.completions.create(messages=messages)
            said.append(completion.choices[0].message.content)
            messages += [completion.choices[0].message, {"role": "user", "content": "Again."}]
        return 1.0

    text = "<tool_call>" * 20_000
    trajectory = await do_single_rollout(ScriptedPolicy([text, "Well.", text]), ChatAgentEnv(agent))

    assert [text in one for one in said] == [True, False, True]
    assert [turn.metrics.get("parse_error") for turn in trajectory.transitions] == [1.0, None, 1.0]


def test_a_long_path_is_read_once() -> None:
    assert method_of("/models/" * 100_000) is None
    found = method_of("/models/" * 100_000 + "a:countTokens")
    assert found is not None
    assert found[2] == "countTokens"
