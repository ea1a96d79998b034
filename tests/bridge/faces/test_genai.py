"""Google's SDK, google-genai, in process: what it gets is what it would get.

1. Whole answers and streams: each is of its typed class and has no field that the class does not
   know; a stream says what the whole answer says.
2. Functions that the SDK calls by itself, forced ones, and schemas that it parses.
3. Tokens are counted and models listed.
4. Refusals are the SDK's own exceptions, with Google's codes and names.
5. A conversation sent back as the SDK's users do is one lineage of the sampled tokens.
6. The blocking half of the client, and a machine without the package.
"""

import asyncio
import gc
import json
import sys
import typing
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import pytest
import tinker_cookbook.renderers as cookbook
from google import genai
from google.genai import errors, types
from pydantic import BaseModel
from tests.bridge.faces.conftest import LONG, SAID, Play, calling, every_reply
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.errors import MissingPackageError
from evert.bridge.tokens.bases import base_tokenizer

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOLS = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(name=name, description="It.", parameters_json_schema=SCHEMA)
            for name in ("add", "look")
        ]
    )
]
NO_CALLS = types.AutomaticFunctionCallingConfig(disable=True)
CONFIG: dict[str, Any] = {
    "tools": TOOLS,
    "thinking_config": {"include_thoughts": True},
    "automatic_function_calling": NO_CALLS,
}


async def ask(client: AgentClient, contents: Any = "Hello?", **config: Any) -> Any:
    return await client.genai.aio.models.generate_content(
        model=client.model, contents=contents, config=typing.cast("Any", {**CONFIG, **config})
    )


async def stream(client: AgentClient, contents: Any = "Hello?", **config: Any) -> list[Any]:
    chunks = await client.genai.aio.models.generate_content_stream(
        model=client.model, contents=contents, config=typing.cast("Any", {**CONFIG, **config})
    )
    return [chunk async for chunk in chunks]


async def play_once(agent: Callable[[AgentClient], Awaitable[None]], *said: str) -> Trajectory:
    """An episode of an agent that asserts for itself."""

    async def rewarded(client: AgentClient) -> float:
        await agent(client)
        return 1.0

    trajectory = await do_single_rollout(ScriptedPolicy(said), ChatAgentEnv(rewarded))
    assert trajectory.transitions[-1].reward == 1.0
    return trajectory


async def refused(agent: Callable[[AgentClient], Awaitable[None]], **options: Any) -> None:
    """An episode of an agent that gets no reply."""

    async def rewarded(client: AgentClient) -> float:
        await agent(client)
        return 1.0

    end: Any = await ChatAgentEnv(rewarded, **options).initial_observation()
    assert end.reward == 1.0


def parts_of(response: types.GenerateContentResponse) -> list[types.Part]:
    [candidate] = response.candidates or []
    assert candidate.content is not None
    assert candidate.content.role == "model"
    return candidate.content.parts or []


def assert_typed(response: types.GenerateContentResponse) -> None:
    assert type(response) is types.GenerateContentResponse
    assert response.sdk_http_response is not None
    assert not response.model_extra
    for part in parts_of(response):
        assert type(part) is types.Part
        assert part.model_fields_set <= {"text", "thought", "function_call"}
        assert not part.model_extra


# -- 1. whole answers and streams ----------------------------------------------------------------


@every_reply
async def test_everything_has_its_type_and_a_stream_says_what_the_whole_answer_says(
    play: Play, said: str
) -> None:
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        got.extend([await ask(client), await stream(client)])
        return 1.0

    trajectory = await play(agent, said, said)

    whole, chunks = got
    assert_typed(whole)
    for chunk in chunks:
        assert_typed(chunk)
        assert parts_of(chunk)
    assert [chunk.candidates[0].finish_reason for chunk in chunks[:-1]] == [None] * (
        len(chunks) - 1
    )
    assert chunks[-1].candidates[0].finish_reason == whole.candidates[0].finish_reason == "STOP"
    assert chunks[-1].usage_metadata == whole.usage_metadata
    joined = [part for chunk in chunks for part in parts_of(chunk)]
    assert said_by(joined) == said_by(parts_of(whole))
    first = trajectory.transitions[0]
    usage = whole.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count) == (
        first.ob.length,
        len(first.ac.tokens),
        first.ob.length + len(first.ac.tokens),
    )


def said_by(parts: list[types.Part]) -> tuple[str, str, list[Any]]:
    """The text, the thoughts and the calls (whose ids differ from answer to answer)."""
    texts = [part.text or "" for part in parts if not part.thought]
    thoughts = [part.text or "" for part in parts if part.thought]
    calls = [part.function_call for part in parts if part.function_call]
    return "".join(texts), "".join(thoughts), [(call.name, call.args) for call in calls]


async def test_text_thoughts_and_calls_are_where_the_sdk_has_them() -> None:
    async def agent(client: AgentClient) -> None:
        response = await ask(client)
        assert response.text == LONG
        assert response.model_version == client.model
        thinking = await ask(client)
        assert thinking.text.strip() == "So be it."
        assert [part.thought for part in parts_of(thinking)] == [True, None]
        hidden = await ask(client, thinking_config=None)
        assert [(part.text or "").strip() for part in parts_of(hidden)] == ["So be it."]
        call, other = (await ask(client)).function_calls
        assert (call.name, call.args) == ("add", {"x": 1})
        assert call.id != other.id
        assert (await ask(client)).text == ""

    calls = f"{calling('add', x=1)}\n{calling('look')}"
    await play_once(agent, LONG, SAID["reasoning"], SAID["reasoning"], calls, "")


async def test_log_probabilities_are_those_that_were_sampled() -> None:
    async def agent(client: AgentClient) -> None:
        whole = await ask(client, response_logprobs=True)
        chunks = await stream(client, response_logprobs=True)
        of_whole = tokens_of(whole)
        assert "".join(token for token, _ in of_whole) == LONG
        assert {logprob for _, logprob in of_whole} == {-1.0}
        assert [token for chunk in chunks for token in tokens_of(chunk)] == of_whole
        assert all("".join(token for token, _ in tokens_of(c)) == c.text for c in chunks)

    await play_once(agent, LONG, LONG)


def tokens_of(response: types.GenerateContentResponse) -> list[tuple[Any, Any]]:
    assert_typed(response)
    [candidate] = response.candidates or []
    assert candidate.logprobs_result is not None
    chosen = candidate.logprobs_result.chosen_candidates or []
    return [(one.token, one.log_probability) for one in chosen]


async def test_a_reply_that_was_cut_says_so() -> None:
    async def agent(client: AgentClient) -> None:
        cut = await ask(client, max_output_tokens=3)
        assert cut.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
        stopped = await ask(client, stop_sequences=["brown"])
        assert stopped.candidates[0].finish_reason == types.FinishReason.STOP
        assert stopped.text == "The quick "

    await play_once(agent, LONG, LONG)


async def test_ids_are_never_used_twice() -> None:
    ids: list[str] = []

    async def agent(client: AgentClient) -> None:
        for _ in range(3):
            response = await ask(client)
            ids.extend([response.response_id, *[call.id for call in response.function_calls]])

    await play_once(agent, *[SAID["parallel calls"]] * 3)
    assert len({*ids}) == len(ids) == 12


async def test_the_system_instruction_and_all_forms_of_contents_are_in_the_prompt() -> None:
    async def agent(client: AgentClient) -> None:
        contents = ["One.", types.Part.from_text(text="Two."), types.UserContent("Three.")]
        await ask(client, contents, system_instruction=["Be.", "Well."], tools=None)

    trajectory = await play_once(agent, "So.")
    prompt = base_tokenizer().decode(trajectory.transitions[0].ob.to_ints())
    assert "<|im_start|>system\nBe.\n\nWell.<|im_end|>" in prompt
    assert "<|im_start|>user\nOne.Two.<|im_end|>\n<|im_start|>user\nThree.<|im_end|>" in prompt


# -- 2. functions and schemas --------------------------------------------------------------------


class Sum(BaseModel):
    x: int
    of: list[int] = []


class Word(Enum):
    YES = "yes"
    NO = "no"


async def test_functions_that_the_sdk_calls_by_itself() -> None:
    asked: list[tuple[int, str]] = []

    def add(x: int, why: str = "so") -> int:
        """Add one."""
        asked.append((x, why))
        return x + 1

    async def agent(client: AgentClient) -> None:
        chat = client.genai.aio.chats.create(model=client.model, config={"tools": [add]})
        said = await chat.send_message("What comes after 1 and 2?")
        assert said.text == "2 and 3."

    trajectory = await play_once(
        agent, f"{calling('add', x=1)}\n{calling('add', x=2, why='it')}", "2 and 3."
    )
    assert asked == [(1, "so"), (2, "it")]
    assert_one_lineage(trajectory)
    assert '{"result": 2}' in base_tokenizer().decode(trajectory.transitions[1].ob.to_ints())


async def test_a_schema_gives_the_agents_own_class() -> None:
    json_mode: dict[str, Any] = {"response_mime_type": "application/json", "tools": None}

    async def agent(client: AgentClient) -> None:
        whole = await ask(client, response_schema=Sum, **json_mode)
        assert whole.parsed == Sum(x=1, of=[2])
        several = await ask(client, response_schema=list[Sum], **json_mode)
        assert several.parsed == [Sum(x=1)]
        plain = await ask(client, response_json_schema=Sum.model_json_schema(), **json_mode)
        assert plain.parsed == {"x": 3}
        word = await ask(client, response_schema=Word, **json_mode)
        assert word.parsed == Word.YES
        anything = await ask(client, **json_mode)
        assert json.loads(anything.text) == [1, "two"]

    trajectory = await play_once(
        agent, '{"x": 1, "of": [2]}', '```json\n[{"x": 1}]\n```', '{"x": 3}', '"yes"', '[1, "two"]'
    )
    assert len(trajectory.transitions) == 5


async def test_a_reply_that_does_not_fit_is_asked_for_again_behind_the_sdk() -> None:
    async def agent(client: AgentClient) -> None:
        response = await ask(
            client, response_mime_type="application/json", response_schema=Sum, tools=None
        )
        assert response.parsed == Sum(x=1)

    trajectory = await play_once(agent, "one", '{"x": "one"}', '{"x": 1}')
    marks = [transition.metrics.get("format_error") for transition in trajectory.transitions]
    assert marks == [1.0, 1.0, None]


async def test_a_forced_function_is_asked_for_until_it_is_called() -> None:
    config = {"mode": "ANY", "allowed_function_names": ["look"]}

    async def agent(client: AgentClient) -> None:
        response = await ask(client, tool_config={"function_calling_config": config})
        assert [call.name for call in response.function_calls] == ["look"]
        none = await ask(client, tool_config={"function_calling_config": {"mode": "NONE"}})
        assert none.function_calls is None

    trajectory = await play_once(agent, calling("add"), calling("look"), f"No.{calling('add')}")
    assert len(trajectory.transitions) == 3


# -- 3. tokens and models ------------------------------------------------------------------------


async def test_tokens_of_a_prompt_are_counted_as_they_would_be_sampled() -> None:
    counted: list[int | None] = []

    async def agent(client: AgentClient) -> None:
        count = await client.genai.aio.models.count_tokens(model=client.model, contents="Hello?")
        counted.append(count.total_tokens)
        await ask(client, tools=None)

    trajectory = await play_once(agent, LONG)
    assert counted == [trajectory.transitions[0].ob.length]


async def test_the_models_are_listed() -> None:
    async def agent(client: AgentClient) -> None:
        models = client.genai.aio.models
        listed = [model.name async for model in await models.list()]
        assert listed == ["models/org/policy", "models/judge"]
        assert (await models.get(model=client.model)).name == "models/org/policy"
        with pytest.raises(errors.ClientError) as caught:
            await models.get(model="gemini-2.5-flash")
        assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
        assert "There is no model 'gemini-2.5-flash' in this episode." in str(caught.value)

    judge = ScriptedPolicy(["Fine."])
    await refused(agent, policy_names="org/policy", models={"judge": judge})


# -- 4. refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [ask, stream])
async def test_a_prompt_that_is_too_long_is_the_sdks_client_error(way: Any) -> None:
    async def agent(client: AgentClient) -> None:
        with pytest.raises(errors.ClientError, match="prompt is too long: ") as caught:
            await way(client)
        error: Any = caught.value
        assert (error.code, error.status) == (400, "INVALID_ARGUMENT")
        assert str(error.message).startswith("prompt is too long: ")
        [detail] = error.details["error"]["details"]
        assert detail["reason"] == "context_length_exceeded"

    await refused(agent, limits=RolloutLimits(max_trajectory_tokens=40))


async def test_an_agent_that_does_not_cope_with_it_ends_with_a_context_overflow() -> None:
    async def agent(client: AgentClient) -> float:
        contents = [types.UserContent("Hello?")]
        while True:
            response = await ask(client, contents, tools=None)
            contents += [response.candidates[0].content, types.UserContent("And on. " * 20)]

    env = ChatAgentEnv(agent, limits=RolloutLimits(max_trajectory_tokens=400))
    trajectory = await do_single_rollout(ScriptedPolicy(lambda prompt: "On."), env)

    assert trajectory.transitions[-1].metrics["context_overflow"] == 1.0


@pytest.mark.parametrize("way", [ask, stream])
async def test_a_refused_field_is_the_sdks_client_error(way: Any) -> None:
    async def agent(client: AgentClient) -> None:
        with pytest.raises(errors.ClientError, match="make the call again") as caught:
            await way(client, candidate_count=2)
        assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
        with pytest.raises(errors.ClientError, match="are not behind the policy: offer functions"):
            await way(client, tools=[types.Tool(google_search=types.GoogleSearch())])

    await refused(agent)


async def test_another_path_is_the_sdks_not_found_error() -> None:
    async def agent(client: AgentClient) -> None:
        with pytest.raises(errors.ClientError, match="Nothing answers POST") as caught:
            await client.genai.aio.models.embed_content(model=client.model, contents="Hi")
        assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")

    await refused(agent)


async def test_a_model_that_is_not_there_is_a_400_that_names_those_that_are() -> None:
    async def agent(client: AgentClient) -> None:
        with pytest.raises(errors.ClientError, match="Did you mean 'judge'"):
            await client.genai.aio.models.generate_content(model="jugde", contents="Hi")
        said = await client.genai.aio.models.generate_content(model="judge", contents="Hi")
        assert said.text == "Well."

    await refused(agent, models={"judge": ScriptedPolicy(["Well."])})


@pytest.mark.parametrize(
    ("status", "kind", "name"),
    [(429, errors.ClientError, "RESOURCE_EXHAUSTED"), (503, errors.ServerError, "UNAVAILABLE")],
)
async def test_a_frozen_models_own_refusal_keeps_its_status(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: type[errors.APIError], name: str
) -> None:
    import openai

    from evert.bridge.chat.bad_requests import bad_request

    class Busy(ScriptedPolicy):
        async def __call__(self, *_: Any, **__: Any) -> Any:
            response = bad_request("").response
            response.status_code = status
            raise openai.APIStatusError("Later.", response=response, body=None)

    async def agent(client: AgentClient) -> None:
        with pytest.raises(kind, match="Later") as caught:
            await client.genai.aio.models.generate_content(model="busy", contents="Hi")
        assert (caught.value.code, caught.value.status) == (status, name)

    await refused(agent, models={"busy": Busy([])})


async def test_a_call_that_waits_when_the_env_is_closed_is_a_client_error() -> None:
    raised: list[BaseException] = []

    async def agent(client: AgentClient) -> float:
        waiting = asyncio.to_thread(
            client.genai.models.generate_content, model=client.model, contents="Hi"
        )
        try:
            await asyncio.shield(asyncio.ensure_future(waiting))
        except BaseException as error:
            raised.append(error)
            raise
        return 1.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()

    assert len(raised) == 1
    assert isinstance(raised[0], (asyncio.CancelledError, errors.ClientError))


# -- 5. conversations ----------------------------------------------------------------------------


def assert_one_lineage(trajectory: Trajectory) -> None:
    drift = {t.logs["drift"] for t in trajectory.transitions if "drift" in t.logs}
    assert drift <= {"retokenised"}  # the white space around calls; the sampled ids are kept
    for before, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
        known = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(known)] == known
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def contents_conversation(client: AgentClient, rounds: int, *, streamed: bool) -> None:
    """Appends each answer's own content; of a stream, that of each chunk."""
    contents: list[Any] = [types.UserContent("Hello?")]
    for number in range(rounds):
        chunks = await stream(client, contents) if streamed else [await ask(client, contents)]
        contents += [chunk.candidates[0].content for chunk in chunks]
        calls = [call for chunk in chunks for call in chunk.function_calls or ()]
        contents.append(types.UserContent(answered(calls) or [f"Go on, {number}."]))


def answered(calls: list[Any]) -> list[Any]:
    return [
        types.Part(
            function_response=types.FunctionResponse(
                id=call.id, name=call.name, response={"result": "größer"}
            )
        )
        for call in calls
    ]


async def chat_conversation(client: AgentClient, rounds: int, *, streamed: bool) -> None:
    """The SDK's own chat keeps the history."""
    chat = client.genai.aio.chats.create(model=client.model, config=typing.cast("Any", {**CONFIG}))
    message: Any = "Hello?"
    for number in range(rounds):
        if streamed:
            chunks = [chunk async for chunk in await chat.send_message_stream(message)]
        else:
            chunks = [await chat.send_message(message)]
        calls = [call for chunk in chunks for call in chunk.function_calls or ()]
        message = answered(calls) or f"Go on, {number}."


async def json_conversation(client: AgentClient, rounds: int, *, streamed: bool) -> None:
    """Sends the history as plain JSON, as who keeps it in a file does."""
    contents: list[Any] = [{"role": "user", "parts": [{"text": "Hello?"}]}]
    for number in range(rounds):
        chunks = await stream(client, contents) if streamed else [await ask(client, contents)]
        for chunk in chunks:
            contents.append(json.loads(chunk.candidates[0].content.model_dump_json()))
        calls = [call for chunk in chunks for call in chunk.function_calls or ()]
        parts = [part.model_dump(exclude_none=True) for part in answered(calls)]
        contents.append({"role": "user", "parts": parts or [{"text": f"Go on, {number}."}]})


async def conversation_without_ids(client: AgentClient, rounds: int, *, streamed: bool) -> None:
    """Drops the ids of calls, as LiteLLM does."""
    contents: list[Any] = [types.UserContent("Hello?")]
    for number in range(rounds):
        chunks = await stream(client, contents) if streamed else [await ask(client, contents)]
        contents += [chunk.candidates[0].content for chunk in chunks]
        calls = [call for chunk in chunks for call in chunk.function_calls or ()]
        for call in calls:
            call.id = None
        contents.append(types.UserContent(answered(calls) or [f"Go on, {number}."]))


CONVERSATIONS = [
    contents_conversation,
    chat_conversation,
    json_conversation,
    conversation_without_ids,
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda one: one.__name__)
async def test_a_conversation_is_one_lineage_of_the_sampled_tokens(
    conversation: Any, streamed: bool
) -> None:
    odd = calling("look", q="ü\n\"'\\ 🐕", x=[1, {"y": None}], z=1.50)
    said = [
        LONG,
        SAID["one call"],
        SAID["parallel calls"],
        "Well.",
        odd,
        "",
        calling("look"),
        "Bye",
    ]

    async def agent(client: AgentClient) -> None:
        await conversation(client, len(said), streamed=streamed)

    trajectory = await play_once(agent, *said)
    assert len(trajectory.transitions) == len(said)
    assert_one_lineage(trajectory)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_thinking_that_stays_in_the_history_is_sent_back_and_recognised(
    make_renderer: Callable[[str], cookbook.Renderer], streamed: bool
) -> None:
    renderer = make_renderer("qwen3_5_preserve_thinking")
    thought = "Hm, let me think about it for long enough.\n</think>\n\n"  # opened by the prompt
    said = [f"{thought}So be it.", f"{thought}Well.", f"{thought}Bye."]

    async def agent(client: AgentClient) -> float:
        await contents_conversation(client, len(said), streamed=streamed)
        return 1.0

    env = ChatAgentEnv(agent, renderer=renderer)
    trajectory = await do_single_rollout(ScriptedPolicy(said, renderer), env)
    assert len(trajectory.transitions) == len(said)
    assert_one_lineage(trajectory)


# -- 6. the blocking half, and no package --------------------------------------------------------


def blocking_answers(client: BlockingAgentClient | AgentClient) -> list[str]:
    models = client.genai.models
    asked: Any = {"model": client.model, "contents": "Hello?"}
    whole = models.generate_content(**asked)
    assert_typed(whole)
    chunks = [*models.generate_content_stream(**asked)]
    return [whole.text or "", "".join(chunk.text or "" for chunk in chunks)]


async def test_the_blocking_half_gets_the_same_in_a_plain_agent() -> None:
    def agent(client: BlockingAgentClient) -> bool:
        return blocking_answers(client) == [LONG, LONG]

    trajectory = await do_single_rollout(ScriptedPolicy([LONG, LONG]), ChatAgentEnv(agent))
    assert trajectory.transitions[-1].reward == 1.0


async def test_the_blocking_half_gets_the_same_in_an_async_agents_thread() -> None:
    async def agent(client: AgentClient) -> None:
        assert await asyncio.to_thread(blocking_answers, client) == [LONG, LONG]

    await play_once(agent, LONG, LONG)


async def test_a_blocking_call_on_the_envs_loop_is_told_instead_of_waiting_for_ever() -> None:
    async def agent(client: AgentClient) -> None:
        with pytest.raises(errors.ClientError, match="asyncio.to_thread"):
            client.genai.models.generate_content(model=client.model, contents="Hi")

    await refused(agent)


async def test_it_is_the_genuine_client_of_the_gemini_api_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://elsewhere.invalid")
    monkeypatch.setenv("HTTPS_PROXY", "http://elsewhere.invalid")

    async def agent(client: AgentClient) -> None:
        assert type(client.genai) is genai.Client
        assert client.genai is client.genai
        assert not client.genai.vertexai
        assert (await ask(client)).text == LONG

    await play_once(agent, LONG)


async def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.genai", None)

    async def agent(client: AgentClient) -> None:
        with pytest.raises(MissingPackageError, match="pip install google-genai"):
            _ = client.genai

    await refused(agent)


async def test_a_client_that_is_forgotten_leaves_no_task() -> None:
    async def agent(client: AgentClient) -> None:
        assert (await ask(client)).text == LONG

    await play_once(agent, LONG)
    gc.collect()
    for _ in range(10):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
