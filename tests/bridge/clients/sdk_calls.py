"""One function per SDK and calling style (blocking or async, streamed or not). Each takes a
question and returns the text of the answer. ``options`` are passed to the SDK's client."""

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import lm15
import openai
from google import genai
from lm15.router import RouterConfig
from tests.kit import user

MODEL = "policy"


async def async_openai(text: str, model: str = MODEL, **options: Any) -> str:
    async with openai.AsyncOpenAI(api_key="x", **options) as client:
        completion: Any = await client.chat.completions.create(model=model, messages=[_user(text)])
    return completion.choices[0].message.content or ""


async def async_responses(text: str, model: str = MODEL, **options: Any) -> str:
    async with openai.AsyncOpenAI(api_key="x", **options) as client:
        return (await client.responses.create(model=model, input=text)).output_text


async def async_anthropic(text: str, model: str = MODEL, **options: Any) -> str:
    async with anthropic.AsyncAnthropic(api_key="x", **options) as client:
        message: Any = await client.messages.create(
            model=model, messages=[_user(text)], max_tokens=500
        )
    return str(message.content[0].text)


async def async_genai(text: str, model: str = MODEL, **options: Any) -> str:
    async with genai.Client(api_key="x", **options).aio as client:
        return (await client.models.generate_content(model=model, contents=text)).text or ""


async def async_genai_stream(text: str, model: str = MODEL, **options: Any) -> str:
    async with genai.Client(api_key="x", **options).aio as client:
        stream = await client.models.generate_content_stream(model=model, contents=text)
        return "".join([chunk.text or "" async for chunk in stream])


async def async_genai_without_aiohttp(text: str) -> str:
    options: Any = {"async_client_args": {"transport": httpx2.AsyncHTTPTransport()}}
    return await async_genai(text, http_options=options)


async def async_vertex(text: str) -> str:
    return await async_genai(text, vertexai=True)


def blocking_openai(text: str, model: str = MODEL, **options: Any) -> str:
    with openai.OpenAI(api_key="x", **options) as client:
        completion = client.chat.completions.create(model=model, messages=[_user(text)])
    return completion.choices[0].message.content or ""


def streamed_openai(text: str, model: str = MODEL, **options: Any) -> str:
    with openai.OpenAI(api_key="x", **options) as client:
        chunks = client.chat.completions.create(model=model, messages=[_user(text)], stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def blocking_responses(text: str, model: str = MODEL, **options: Any) -> str:
    with openai.OpenAI(api_key="x", **options) as client:
        return client.responses.create(model=model, input=text).output_text


def blocking_anthropic(text: str, model: str = MODEL, **options: Any) -> str:
    with anthropic.Anthropic(api_key="x", **options) as client:
        message: Any = client.messages.create(model=model, messages=[_user(text)], max_tokens=500)
    return str(message.content[0].text)


def blocking_genai(text: str, model: str = MODEL) -> str:
    with genai.Client(api_key="x") as client:
        return client.models.generate_content(model=model, contents=text).text or ""


def streamed_genai(text: str, model: str = MODEL) -> str:
    with genai.Client(api_key="x") as client:
        chunks = client.models.generate_content_stream(model=model, contents=text)
        return "".join(chunk.text or "" for chunk in chunks)


class Lm15:
    """The lm15 router (the HTTP client used by DSPy's engine) with one of its API dialects."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect

    def config(self, base_url: str | None = None, **options: Any) -> RouterConfig:
        if base_url is not None:
            options["base_urls"] = {self.dialect: base_url}
        return RouterConfig(env={"OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"}, **options)

    def request(self, text: str, model: str = MODEL) -> lm15.Request:
        messages = (lm15.Message.user(text),)
        return lm15.Request(model=f"{self.dialect}:{model}", messages=messages)

    async def ask(self, text: str, model: str = MODEL, **options: Any) -> str:
        async with lm15.AsyncLMRouter(self.config(**options)) as router:
            return str((await router.complete(self.request(text, model))).text)

    async def ask_for_a_stream(self, text: str) -> str:
        async with lm15.AsyncLMRouter(self.config()) as router:
            events: list[Any] = [event async for event in router.stream(self.request(text))]
        assert events[-1].finish_reason == "stop"
        return "".join(event.delta.text for event in events if event.type == "delta")

    def ask_blocking(self, text: str, model: str = MODEL, **options: Any) -> str:
        with lm15.LMRouter(self.config(**options)) as router:
            return str(router.complete(self.request(text, model)).text)

    def ask_blocking_for_a_stream(self, text: str) -> str:
        with lm15.LMRouter(self.config()) as router:
            events: list[Any] = [*router.stream(self.request(text))]
        return "".join(event.delta.text for event in events if event.type == "delta")


def _user(text: str) -> Any:
    return user(text)


LM15 = {name: Lm15(name) for name in ("openai-chat", "openai", "anthropic")}

ASYNC: dict[str, Callable[..., Awaitable[str]]] = {
    "openai": async_openai,
    "responses": async_responses,
    "anthropic": async_anthropic,
    "genai": async_genai,
    "genai stream": async_genai_stream,
    "genai without aiohttp": async_genai_without_aiohttp,
    "genai on Vertex": async_vertex,
    **{f"lm15 {name}": router.ask for name, router in LM15.items()},
    **{f"lm15 {name} stream": router.ask_for_a_stream for name, router in LM15.items()},
}
BLOCKING: dict[str, Callable[..., str]] = {
    "openai": blocking_openai,
    "openai stream": streamed_openai,
    "responses": blocking_responses,
    "anthropic": blocking_anthropic,
    "genai": blocking_genai,
    "genai stream": streamed_genai,
    **{f"lm15 {name}": router.ask_blocking for name, router in LM15.items()},
    **{f"lm15 {name} stream": router.ask_blocking_for_a_stream for name, router in LM15.items()},
}
REFUSALS = (
    openai.BadRequestError,
    anthropic.BadRequestError,
    genai.errors.ClientError,
    lm15.InvalidRequestError,
)
"""The exceptions these SDKs raise for a 400."""
