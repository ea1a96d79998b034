"""``ScriptedPolicy`` acts like a model: it returns tokens with an end token, up to max_tokens."""

from typing import Any

import pytest
import tinker
from tests.kit import assert_says
from tests.kit.renderers import FAMILIES
from tinker_cookbook.completers import TokenCompleter

from evert import ScriptedPolicy
from evert.bridge.errors import InvalidModelError
from evert.bridge.tokens.renderer import prompt_renderer

OUR = prompt_renderer(None)
END = OUR.end_tokens[:1]


def prompt(text: str) -> tinker.ModelInput:
    return tinker.ModelInput.from_ints(OUR.encode(text))


async def test_scripted_replies_are_returned_in_order_and_prompts_are_recorded() -> None:
    image = tinker.types.ImageAssetPointerChunk(
        format="png", location="https://example.invalid/1.png", expected_tokens=9
    )
    with_image = tinker.ModelInput(chunks=[*prompt("a <|im_").chunks, image, *prompt("b").chunks])
    for replies in (["One.", ""], iter(["One.", ""])):
        policy = ScriptedPolicy(replies, logprob=-0.25)
        assert isinstance(policy, TokenCompleter)
        first, second = await policy(prompt("a <|im_start|>"), []), await policy(with_image, [])

        assert policy.prompts == ["a <|im_start|>", "a <|im_b"]
        assert policy.actions == [first.tokens, second.tokens] == [OUR.encode("One.") + END, END]
        assert (first.stop_reason, second.stop_reason) == ("stop", "stop")
        assert first.logprobs == [-0.25] * len(first.tokens)
    with pytest.raises(IndexError) as caught:
        await policy(prompt("c"), [])
    assert_says(caught.value, "2 replies", "call 3", "Pass more replies, or a function")


async def test_replies_that_are_not_strings_are_rejected() -> None:
    with pytest.raises(InvalidModelError, match=r"single string, 'yes'; expected a list of str"):
        ScriptedPolicy("yes")
    with pytest.raises(InvalidModelError, match=r"The reply is 5 \(int\); expected"):
        await ScriptedPolicy(lambda _: 5)(prompt("a"), [])  # type: ignore[arg-type, return-value]


async def test_replies_can_come_from_an_async_function() -> None:
    async def echo(question: str) -> str:
        return f"{question}!"

    assert (await ScriptedPolicy(echo)(prompt("a"), [])).tokens == OUR.encode("a!") + END


async def test_a_reply_over_max_tokens_is_cut_with_stop_reason_length() -> None:
    tokens = OUR.encode("A longer text.") + END
    for cap in range(1, len(tokens) + 1):
        action = await ScriptedPolicy(["A longer text."])(prompt("a"), [], max_tokens=cap)
        assert action.tokens == tokens[:cap]
        assert action.stop_reason == ("length" if cap < len(tokens) else "stop")
        assert len(action.logprobs) == cap


@pytest.mark.parametrize("name", FAMILIES)
async def test_a_reply_ends_with_the_renderers_end_token(name: str, make_renderer: Any) -> None:
    renderer = make_renderer(name)
    ends = prompt_renderer(renderer).end_tokens[:1]
    action = await ScriptedPolicy(["One."], renderer)(prompt("a"), [])

    assert action.tokens == prompt_renderer(renderer).encode("One.") + ends, name
    assert action.stop_reason == "stop"
