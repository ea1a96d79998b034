"""Log-probabilities of sampled tokens, for agents that request them."""

import dataclasses
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
import tinker
from tests.kit import ask, call, calling, play, start, tool, user
from tinker_cookbook.completers import MessageCompleter, TinkerTokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, SampledTokens, ScriptedPolicy, embedded_engine
from evert.bridge.tokens.bases import BASE_MODEL
from evert.bridge.tokens.renderer import prompt_renderer

HELLO: Any = [user("Hello?")]
SPEECH = "So it is: 🎉 for all of us, and then some more."
END = "<|im_end|>"


def numbers(tokens: Sequence[object]) -> list[float]:
    return [-(index + 1) / 8 for index in range(len(tokens))]


class Numbered(ScriptedPolicy):
    async def __call__(self, *arguments: Any, **options: Any) -> TokensWithLogprobs:
        action = await super().__call__(*arguments, **options)
        logprobs = numbers(action.tokens)
        tokens = SampledTokens(action.tokens, logprobs)
        return TokensWithLogprobs(tokens, logprobs, action.stop_reason)


async def win(agent: Any, *replies: str) -> Trajectory:
    """Play an episode and assert that its reward is 1.0."""
    trajectory = await play(agent, Numbered(replies))
    assert trajectory.transitions[-1].reward == 1.0
    return trajectory


def check(listed: Any, text: str = SPEECH + END) -> None:
    """Assert that all tokens of the text are listed separately with their log-probs."""
    renderer = prompt_renderer(None)
    texts = [renderer.decode([token]) for token in renderer.encode(text)]
    assert [one.token for one in listed] == texts
    assert [bytes(one.bytes).decode() for one in listed] == texts
    assert [one.logprob for one in listed] == numbers(texts)
    assert all(one.top_logprobs == [] for one in listed)


CALL = calling("add", x=1)

SAID: list[tuple[str, dict[str, Any]]] = [
    ("Yes, that is so." + END, {}),
    ("Ja — 🎉🎉 日本語!" + END, {}),
    ("<think>\nThey want it.\n</think>\n\nYes." + END, {}),
    (f"Adding.\n{CALL}{END}", {"tools": [tool("add")]}),
    (CALL + END, {"tools": [tool("add")]}),
    ("Yes indeed. END and more" + END, {"stop": ["END"]}),
    (END, {}),
]


async def test_all_sampled_tokens_are_listed_however_the_reply_is_parsed() -> None:
    async def agent(client: AgentClient) -> float:
        for reply, fields in SAID:
            check((await call(client, logprobs=True, **fields)).choices[0].logprobs.content, reply)
        return 1.0

    await win(agent, *(reply.removesuffix(END) for reply, _ in SAID))


async def test_a_truncated_reply_has_the_log_probabilities_of_its_tokens() -> None:
    async def agent(client: AgentClient) -> float:
        choice = (await call(client, logprobs=True, max_tokens=3)).choices[0]
        assert [token.logprob for token in choice.logprobs.content] == numbers([1, 2, 3])
        return 1.0

    await win(agent, SPEECH)
    env = await start(agent)
    tokens = prompt_renderer(None).encode(SPEECH + END)  # from a sampler that ignores max_tokens
    assert (await env.step(SampledTokens(tokens, numbers(tokens)))).reward == 1.0


async def test_chat_completions_have_log_probabilities_streamed_or_not() -> None:
    async def agent(client: AgentClient) -> float:
        assert (await call(client, logprobs=False)).choices[0].logprobs is None
        native = (await call(client, logprobs=True, top_logprobs=0)).choices[0].logprobs
        assert native.refusal is None
        check(native.content)
        fields: Any = {"model": client.model, "messages": HELLO, "logprobs": True}
        completion = await client.openai.chat.completions.create(**fields)
        check(completion.choices[0].logprobs.content)
        async with client.openai.chat.completions.stream(**fields) as stream:
            events: list[Any] = [event async for event in stream]
        final: Any = await stream.get_final_completion()
        assert final.choices[0].message.content == SPEECH
        check(final.choices[0].logprobs.content)
        [delta] = [event for event in events if event.type == "logprobs.content.delta"]
        check(delta.content)
        return 1.0

    await win(agent, *[SPEECH] * 4)


async def test_responses_have_log_probabilities_streamed_or_not_and_can_be_sent_back() -> None:
    async def agent(client: AgentClient) -> float:
        fields: Any = {
            "model": client.model,
            "input": HELLO,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 0,
        }
        response = await client.openai.responses.create(**fields)
        check(response.output[0].content[0].logprobs)
        fields["input"] = [*HELLO, *response.output, *HELLO]
        async with client.openai.responses.stream(**fields) as stream:
            events: list[Any] = [event async for event in stream]
        [event_done] = [event for event in events if event.type == "response.output_text.done"]
        check(event_done.logprobs)
        final: Any = await stream.get_final_response()
        assert final.output_text == SPEECH
        check(final.output[0].content[0].logprobs)
        return 1.0

    assert (await win(agent, SPEECH, SPEECH)).transitions[-1].metrics["lineages"] == 1


async def test_the_log_probabilities_match_the_cookbooks_completer(tmp_path: Path) -> None:
    """With the embedded engine, these are exactly the values used in training."""
    seen: list[float] = []

    async def agent(client: AgentClient) -> float:
        choice = (await call(client, logprobs=True, max_tokens=8)).choices[0]
        seen.extend(token.logprob for token in choice.logprobs.content)
        return 1.0

    with embedded_engine(tmp_path, device="cpu", threads=1):
        service = tinker.ServiceClient()
        sampler = await service.create_sampling_client_async(base_model=BASE_MODEL)
        policy = TinkerTokenCompleter(sampler, max_tokens=8)
        trajectory = await play(agent, policy)

    [transition] = trajectory.transitions
    assert all(logprob < 0 for logprob in seen)
    assert len({*seen}) > 1
    assert transition.ac.logprobs == seen


async def test_requesting_log_probabilities_from_a_model_without_them_gets_a_400() -> None:
    class Talker(MessageCompleter):
        async def __call__(self, messages: list[Message]) -> Message:
            raise AssertionError("The model should not be called.")

    async def agent(client: AgentClient) -> float:
        check((await call(client, model="judge", logprobs=True)).choices[0].logprobs.content)
        for model, why in (
            ("talker", "'talker' is a MessageCompleter"),
            ("policy", "without log-probabilities"),
        ):
            with pytest.raises(openai.BadRequestError, match=why) as caught:
                await call(client, model=model, logprobs=True)
            assert (caught.value.code, caught.value.param) == ("logprobs_unavailable", "logprobs")
            advice = "evert.SampledTokens(tokens, logprobs) to step(), or leave the field out."
            assert advice in caught.value.message
        return float(await ask(client) == "Yes")

    env = await start(agent, models={"judge": Numbered([SPEECH]), "talker": Talker()})
    tokens = prompt_renderer(env.renderer).encode("Yes<|im_end|>")
    assert not (await env.step(tokens)).episode_done
    assert (await env.step(tokens)).reward == 1.0


def test_sampled_tokens_need_one_log_probability_per_token_and_can_be_pickled() -> None:
    for count in (0, 1, 3):
        message = f"Got {count} log-probabilities for 2 tokens; expected"
        with pytest.raises(ValueError, match=message):
            SampledTokens([1, 2], [-1.0] * count)
    tokens = SampledTokens([1, 2], [-1.0, -2.0])
    assert (tokens, tokens[:1], SampledTokens(tokens).logprobs) == ([1, 2], [1], None)
    action = TokensWithLogprobs(tokens, [-1.0, -2.0])
    received: Any = pickle.loads(pickle.dumps(action)).tokens
    assert (received, received.logprobs) == ([1, 2], [-1.0, -2.0])
    assert dataclasses.asdict(action)["tokens"] == [1, 2]
    assert json.dumps(action.tokens) == "[1, 2]"
