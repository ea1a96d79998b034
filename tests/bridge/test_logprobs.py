"""Log-probabilities of what the policy said, for the agent that asks for them.

One a token of the visible text, in every chat format, each with the number that was sampled with
it; thinking, tool calls and control tokens have none. They come along wherever the Cookbook
samples; where nobody brought them the agent gets a 400 that says what to do, and no number.
"""

import dataclasses
import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
import tinker
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit import ask, call, tool, user
from tinker_cookbook.completers import (
    MessageCompleter,
    TinkerTokenCompleter,
    TokenCompleter,
    TokensWithLogprobs,
)
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import Message, TextPart, ThinkingPart
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import (
    AgentClient,
    BlockingAgentClient,
    ChatAgentEnv,
    RemoteModel,
    SampledTokens,
    ScriptedPolicy,
    embedded_engine,
)
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.bases import BASE_MODEL
from evert.bridge.tokens.logprobs import text_logprobs, with_logprobs
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer

HELLO: Any = [user("Hello?")]
TEXTS = [
    "Yes, that is so.",
    "t",
    "One.\n\nTwo.\n",
    "Müller führt Ærø.",
    "Ja — 🎉🎉 日本語!",
    "It is a <b>tag</b>, not <think>.",
]
WITHOUT_THOUGHTS = {"Llama3Renderer", "RoleColonRenderer"}
"""Formats that have no thinking."""

REPLACED = ["\ufffd🎉", "日本\ufffd日本", "\ufffd", "x\ufffd\ufffdé"]
"""A replacement character that was meant confuses nothing."""


def numbers(tokens: Sequence[object]) -> list[float]:
    """A log-probability of its own for each token."""
    return [-(index + 1) / 8 for index in range(len(tokens))]


def read(
    tokens: list[int], renderer: PromptRenderer, *, truncated: bool = False, **fields: Any
) -> Reply:
    request = ChatRequest("policy", HELLO, **fields)
    reply, _ = read_action(
        tokens, renderer, request, truncated=truncated, call_ids="c", prompt_tokens=0
    )
    return reply


def listed(reply: Reply, tokens: list[int], renderer: PromptRenderer) -> list[int]:
    """Indices of the tokens that are listed; checks that each is once, and what they say."""
    found = text_logprobs(reply, tokens, numbers(tokens), renderer)
    assert found is not None
    assert "".join(one.text for one in found) == reply.text
    places = [int(-one.logprob * 8) - 1 for one in found]
    assert len({*places}) == len(places)
    return places


def said(reply: Reply, tokens: list[int], renderer: PromptRenderer) -> str:
    """What the tokens that are listed say; checks that they are the shortest run which says it."""
    places = listed(reply, tokens, renderer)
    if places:
        first, last = places[0], places[-1] + 1
        assert places == [*range(first, last)]
        assert reply.text in renderer.decode(tokens[first:last])
        assert reply.text not in renderer.decode(tokens[first + 1 : last])
        assert reply.text not in renderer.decode(tokens[first : last - 1])
    return reply.text


# -- which tokens ----------------------------------------------------------------------------------


def test_the_tokens_of_a_plain_reply_and_not_its_thoughts_in_every_chat_format(
    family: Renderer,
) -> None:
    renderer = prompt_renderer(family)
    for text in TEXTS:
        tokens = renderer.encode(text) + renderer.end_tokens[:1]
        said(read(tokens, renderer), tokens, renderer)
    for text in REPLACED:
        tokens = renderer.encode(text) + renderer.end_tokens[:1]
        places = listed(read(tokens, renderer), tokens, renderer)
        assert places == [*range(len(places))], text
    if type(family).__name__ in WITHOUT_THOUGHTS:
        return
    for text in TEXTS:  # the thoughts say the very same
        thought = ThinkingPart(type="thinking", thinking=f"They want: {text}")
        parts: list[Any] = [thought, TextPart(type="text", text=text)]
        messages = [Message(role="user", content="?"), Message(role="assistant", content=parts)]
        history = renderer.as_history(messages, 1, 0)
        tokens = [token for token in history if isinstance(token, int)]
        tokens += renderer.missing_end(tokens)
        assert said(read(tokens, renderer), tokens, renderer)


def test_a_text_that_occurs_in_the_markup_before_it_is_found_at_its_place(
    make_renderer: Callable[[str], Renderer],
) -> None:
    renderer = prompt_renderer(make_renderer("qwen3"))
    for text in ("t", "ink", "k>", "user"):
        tokens = renderer.encode(f"<think>\nuser think\n</think>\n\n{text}<|im_end|>")
        reply = read(tokens, renderer)
        places = listed(reply, tokens, renderer)
        assert reply.text == text
        assert places == [*range(len(tokens) - 1 - len(places), len(tokens) - 1)], text


CALL = '<tool_call>\n{"name": "add", "arguments": {"text": "Adding."}}\n</tool_call>'
BROKEN = '<tool_call>{"name": 🎉</tool_call>'


def test_tool_calls_are_not_among_them_and_broken_ones_are_where_the_text_has_them() -> None:
    renderer = prompt_renderer(None)
    for sampled, text in {
        CALL: "",
        f"{CALL}\n{CALL}": "",
        f"Adding.\n{CALL}": "Adding.",
        "Adding. <tool_call>{broken</tool_call>": "Adding. <tool_call>{broken</tool_call>",
        f"Before. {BROKEN}": f"Before. {BROKEN}",
        f"Before. {BROKEN}\n{CALL}": None,
        f"{BROKEN} and after.": None,
        f"A {BROKEN} b.": None,
    }.items():
        tokens = renderer.encode(sampled) + renderer.end_tokens[:1]
        reply = read(tokens, renderer, tools=[tool("add")])
        listed(reply, tokens, renderer)
        assert BROKEN in reply.text if text is None else reply.text.strip() == text, sampled


def test_a_stop_string_cuts_them_too_within_a_token() -> None:
    renderer = prompt_renderer(None)
    tokens = renderer.encode("Yes indeed. END and more") + renderer.end_tokens[:1]
    assert said(read(tokens, renderer, stop=("eed",)), tokens, renderer) == "Yes ind"


def test_a_reply_that_was_cut_and_one_that_says_nothing() -> None:
    renderer = prompt_renderer(None)
    cut, empty = renderer.encode("Yes, that"), renderer.end_tokens[:1]
    assert said(read(cut, renderer, truncated=True), cut, renderer) == "Yes, that"
    assert text_logprobs(read(empty, renderer), empty, [-1.0], renderer) == ()


def test_tokens_that_are_no_characters_stand_for_themselves() -> None:
    """A character cut in the middle, and bytes that begin none."""
    renderer = prompt_renderer(None)
    pieces = renderer.encode("🎉")
    assert len(pieces) > 1
    for tokens in (pieces[:-1], pieces[1:] * 4, [*pieces[:1], *renderer.encode("Yes")]):
        reply = read(tokens, renderer, truncated=True)
        assert listed(reply, tokens, renderer) == [*range(len(tokens))]


@given(
    st.lists(st.integers(0, 511), max_size=30),
    st.booleans(),
    st.sampled_from([(), ("e",)]),
)
@settings(deadline=None)
def test_whatever_an_untrained_policy_says_is_told_token_by_token(
    tokens: list[int], truncated: bool, stop: tuple[str, ...]
) -> None:
    renderer = prompt_renderer(None)
    reply = read(tokens, renderer, truncated=truncated, stop=stop, tools=[tool("add")])
    listed(reply, tokens, renderer)


def test_each_token_has_the_number_that_was_sampled_with_it() -> None:
    renderer = prompt_renderer(None)
    tokens = [*renderer.encode("A"), *renderer.encode("🎉"), *renderer.encode("B")]
    pieces = len(tokens) - 2

    found = text_logprobs(read(tokens, renderer, truncated=True), tokens, numbers(tokens), renderer)

    assert found is not None
    assert [one.text for one in found] == ["A", *[""] * (pieces - 1), "🎉", "B"]
    assert [one.logprob for one in found] == numbers(tokens)


def test_a_text_that_is_nowhere_in_what_was_sampled_has_none() -> None:
    renderer = prompt_renderer(None)
    tokens = renderer.encode("Yes.")
    reply = read(renderer.encode("Something else."), renderer, truncated=True)

    assert with_logprobs(reply, tokens, numbers(tokens), renderer).logprobs is None


# -- what the SDK reads ----------------------------------------------------------------------------

SPEECH = "So it is: 🎉 for all of us, and then some more."


class Numbered(ScriptedPolicy):
    """Each token has a log-probability of its own."""

    def __init__(self, *replies: str) -> None:
        super().__init__(replies)
        self.given: list[list[float]] = []

    async def __call__(self, *arguments: Any, **options: Any) -> TokensWithLogprobs:
        action = await super().__call__(*arguments, **options)
        logprobs = numbers(action.tokens)
        self.given.append(logprobs)
        tokens = SampledTokens(action.tokens, logprobs)
        return TokensWithLogprobs(tokens, logprobs, action.stop_reason)


async def played(agent: Any, *replies: str, **options: Any) -> list[list[float]]:
    """Play an episode that must earn 1.0; what was sampled, without the ends of turn."""
    policy = Numbered(*(replies or [SPEECH]))
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, **options))
    assert sum(transition.reward for transition in trajectory.transitions) == 1.0
    return [given[:-1] for given in policy.given]


def check(tokens: Any, seen: list[list[float]]) -> None:
    """What an SDK says of the tokens of ``SPEECH``."""
    assert "".join(token.token for token in tokens) == SPEECH
    assert bytes(byte for token in tokens for byte in token.bytes).decode() == SPEECH
    assert all(token.top_logprobs == [] for token in tokens)
    seen.append([token.logprob for token in tokens])


async def test_without_being_asked_for_there_are_none() -> None:
    async def agent(client: AgentClient) -> float:
        for fields in ({}, {"logprobs": False}, {"logprobs": None}):
            assert (await call(client, **fields)).choices[0].logprobs is None
        response = await client.openai.responses.create(model=client.model, input="Hello?")
        part: Any = response.output[0]
        assert part.content[0].logprobs is None
        return 1.0

    await played(agent, *[SPEECH] * 4)


async def test_the_handle_and_chat_completions_whole_and_streamed() -> None:
    seen: list[list[float]] = []

    async def agent(client: AgentClient) -> float:
        native = (await call(client, logprobs=True, top_logprobs=0)).choices[0].logprobs
        assert native.refusal is None
        check(native.content, seen)
        fields: Any = {"model": client.model, "messages": HELLO, "logprobs": True}
        whole = await client.openai.chat.completions.create(**fields)
        check(whole.choices[0].logprobs.content, seen)
        async with client.openai.chat.completions.stream(**fields) as stream:
            events = [event async for event in stream]
        final: Any = await stream.get_final_completion()
        assert final.choices[0].message.content == SPEECH
        check(final.choices[0].logprobs.content, seen)
        assert sum(event.type == "logprobs.content.delta" for event in events) > 1
        chunks = await client.openai.chat.completions.create(**fields, stream=True)
        spoken = [chunk.choices[0] async for chunk in chunks]
        pieces = [one for one in spoken if one.delta.content]
        for one in pieces:
            assert one.delta.content == "".join(token.token for token in one.logprobs.content)
        assert len(pieces) > 1
        check([token for one in pieces for token in one.logprobs.content], seen)
        return 1.0

    assert await played(agent, *[SPEECH] * 4) == seen


async def test_responses_whole_and_streamed() -> None:
    seen: list[list[float]] = []

    async def agent(client: AgentClient) -> float:
        fields: Any = {
            "model": client.model,
            "input": "Hello?",
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 0,
        }
        whole = await client.openai.responses.create(**fields)
        check(whole.output[0].content[0].logprobs, seen)
        async with client.openai.responses.stream(**fields) as stream:
            events: list[Any] = [event async for event in stream]
        deltas = [event for event in events if event.type == "response.output_text.delta"]
        assert len(deltas) > 1
        check([token for event in deltas for token in event.logprobs], seen)
        [done] = [event for event in events if event.type == "response.output_text.done"]
        check(done.logprobs, [])
        final: Any = await stream.get_final_response()
        assert final.output_text == SPEECH
        assert final.output[0].content[0].logprobs
        return 1.0

    first, second = await played(agent, SPEECH, SPEECH)
    assert seen == [first, second]


async def test_a_reply_with_log_probabilities_that_comes_back_is_the_same_reply() -> None:
    async def agent(client: AgentClient) -> float:
        history: list[Any] = [*HELLO]
        for _ in range(2):
            said = await client.openai.chat.completions.create(
                model=client.model, messages=history, logprobs=True
            )
            history += [said.choices[0].message, *HELLO]
        include: Any = ["message.output_text.logprobs"]
        items: list[Any] = [*HELLO]
        for _ in range(2):
            response = await client.openai.responses.create(
                model=client.model, input=items, include=include
            )
            items += [*response.output, *HELLO]
        return 1.0

    env = ChatAgentEnv(agent)
    await do_single_rollout(Numbered(*[SPEECH] * 4), env)

    assert not env.drift


async def test_those_of_other_tokens_are_a_400_that_says_why() -> None:
    async def agent(client: AgentClient) -> float:
        sdk, three = client.openai, {"model": client.model, "top_logprobs": 3}
        include = ["message.output_text.logprobs"]
        asks: list[tuple[Any, Any]] = [
            (sdk.chat.completions.create, {"messages": HELLO, "logprobs": True}),
            (sdk.responses.create, {"input": "Hello?", "include": include}),
        ]
        for create, fields in asks:
            with pytest.raises(openai.BadRequestError) as caught:
                await create(**fields, **three)
            assert caught.value.param == "top_logprobs"
            assert "Only the sampled tokens' own log-probabilities are kept" in caught.value.message
        return 1.0

    result: Any = await ChatAgentEnv(agent).initial_observation()
    assert result.reward == 1.0


# -- they come along -------------------------------------------------------------------------------


async def test_what_the_cookbooks_own_completer_samples(tmp_path: Path) -> None:
    """With the embedded engine below it: the very numbers that are trained on."""
    seen: list[float] = []

    def agent(client: BlockingAgentClient) -> float:
        said = client.chat.completions.create(messages=HELLO, logprobs=True, max_tokens=8)
        logprobs: Any = said.choices[0].logprobs
        seen.extend(token.logprob for token in logprobs.content)
        return 1.0

    with embedded_engine(tmp_path, device="cpu", threads=1):
        service = tinker.ServiceClient()
        sampler = await service.create_sampling_client_async(base_model=BASE_MODEL)
        policy = TinkerTokenCompleter(sampler, max_tokens=8)
        trajectory = await do_single_rollout(policy, ChatAgentEnv(agent))

    [transition] = trajectory.transitions
    assert all(logprob < 0 for logprob in seen)
    assert len({*seen}) > 1
    sampled = transition.ac.logprobs
    first = sampled.index(seen[0])
    assert sampled[first : first + len(seen)] == seen


async def test_a_loop_of_ones_own_steps_with_them() -> None:
    async def agent(client: AgentClient) -> float:
        said = await call(client, logprobs=True)
        return float(-said.choices[0].logprobs.content[0].logprob)

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    tokens = prompt_renderer(env.renderer).encode("Yes<|im_end|>")
    result = await env.step(SampledTokens(tokens, [-0.25] * len(tokens)))

    assert result.reward == 0.25


class Judge(TokenCompleter):
    """A frozen model's policy, with log-probabilities or without."""

    def __init__(self, logprobs: bool) -> None:
        self._script = Numbered(SPEECH)
        self._logprobs = logprobs

    async def __call__(self, *arguments: Any, **options: Any) -> TokensWithLogprobs:
        action = await self._script(*arguments, **options)
        known = action.maybe_logprobs if self._logprobs else None
        return TokensWithLogprobs([*action.tokens], known)


# -- nobody brought them ---------------------------------------------------------------------------


async def refusal(client: AgentClient, model: str) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.openai.chat.completions.create(model=model, messages=HELLO, logprobs=True)
    assert caught.value.code == "logprobs_unavailable"
    assert caught.value.param == "logprobs"
    assert "evert.SampledTokens(tokens, logprobs). Or leave it out." in caught.value.message
    return caught.value


async def test_bare_tokens_have_none_and_the_agent_may_ask_again_without() -> None:
    async def agent(client: AgentClient) -> float:
        error = await refusal(client, client.model)
        assert "this reply's tokens came without any" in error.message
        return float(await ask(client) == "Yes")

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    tokens = prompt_renderer(env.renderer).encode("Yes<|im_end|>")
    assert not (await env.step(tokens)).episode_done
    result = await env.step(tokens)

    assert result.reward == 1.0


async def test_a_frozen_model_gives_its_own_or_says_that_it_has_none() -> None:
    class Talker(MessageCompleter):
        async def __call__(self, messages: list[Message]) -> Message:
            raise AssertionError("it need not be asked")

    seen: list[list[float]] = []

    async def agent(client: AgentClient) -> float:
        check((await call(client, model="judge", logprobs=True)).choices[0].logprobs.content, seen)
        assert "came without any" in (await refusal(client, "silent")).message
        assert "'talker' is a MessageCompleter" in (await refusal(client, "talker")).message
        return 1.0

    models: Any = {"judge": Judge(True), "silent": Judge(False), "talker": Talker()}
    result: Any = await ChatAgentEnv(agent, models=models).initial_observation()
    assert result.reward == 1.0
    assert seen == [numbers(seen[0])]


def endpoint(logprobs: list[Any]) -> web.Application:
    """A server that stands for a hosted model; the log-probabilities of its answers in turn."""
    rest = iter(logprobs)

    async def answer(request: web.Request) -> web.Response:
        assert (await request.json())["logprobs"] is True
        message = {"role": "assistant", "content": "A🎉"}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
        choice["logprobs"] = next(rest)
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        return web.json_response({**head, "choices": [choice]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    return app


def as_written(*tokens: tuple[str, list[int] | None]) -> dict[str, Any]:
    """As the hosted API writes them: bytes of a character may be apart, their texts escaped."""
    return {
        "refusal": None,
        "content": [
            {"token": text, "bytes": raw, "logprob": -0.5, "top_logprobs": []}
            for text, raw in tokens
        ],
    }


PARTY = "🎉".encode()


CHOICES: list[tuple[Any, Any]] = [
    (
        as_written(("A", [65]), ("\\xf0", [*PARTY[:2]]), ("\\x8e", [*PARTY[2:]])),
        ["A", "", "🎉"],
    ),
    (as_written(("A", None), ("🎉", None)), ["A", "🎉"]),
    (as_written(("Something", None)), None),
    (None, "refused"),
]


async def test_a_remote_model_gives_its_own_if_they_are_of_the_text() -> None:
    runner = web.AppRunner(endpoint([logprobs for logprobs, _ in CHOICES]))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def agent(client: AgentClient) -> float:
        for _, texts in CHOICES:
            if texts == "refused":
                told = (await refusal(client, "judge")).message
                assert "endpoint of this model gave none" in told
                continue
            found = (await call(client, model="judge", logprobs=True)).choices[0].logprobs
            assert (found and [one.token for one in found.content]) == texts
        return 1.0

    try:
        env = ChatAgentEnv(agent, models={"judge": RemoteModel("m", base_url=url)})
        result: Any = await env.initial_observation()
    finally:
        await runner.cleanup()
    assert result.reward == 1.0


def test_sampled_tokens_are_a_list_with_as_many_log_probabilities() -> None:
    for count in (0, 1, 3):
        told = f"Got {count} log-probabilities for 2 tokens; expected"
        with pytest.raises(ValueError, match=told):
            SampledTokens([1, 2], [-1.0] * count)
    tokens = SampledTokens([1, 2], [-1.0, -2.0])
    assert tokens == [1, 2]
    assert tokens[:1] == [1]
    assert SampledTokens(tokens).logprobs is None


def test_sampled_tokens_travel_between_processes_and_into_records() -> None:
    """Rollouts may run in a pool, and whoever logs them turns them into plain data."""
    action = TokensWithLogprobs(SampledTokens([1, 2], [-1.0, -2.0]), [-1.0, -2.0])
    there: Any = pickle.loads(pickle.dumps(action)).tokens

    assert there == [1, 2]
    assert there.logprobs == [-1.0, -2.0]
    assert dataclasses.asdict(action)["tokens"] == [1, 2]
    assert json.dumps(action.tokens) == "[1, 2]"
