"""``RemoteModel``: a frozen model behind an OpenAI-compatible endpoint."""

import json
import os
import secrets
import ssl
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from openai.types.chat.chat_completion import Choice

from evert.bridge.chat.bad_requests import bad_request, failed
from evert.bridge.chat.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.chat.messages import as_fields, read_message
from evert.bridge.chat.reply import Reply, TokenLogprob, read_reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.ownership import left_alone
from evert.bridge.tokens.call_kinds import HERMES_CALLS
from evert.bridge.tokens.logprobs import unavailable


@dataclass(frozen=True)
class RemoteModel:
    """A frozen model behind an endpoint that serves OpenAI's chat completions API.

    Attributes:
        model: The name of the model at the endpoint.
        base_url: The URL of the endpoint, up to ``/v1``.
        api_key_env: Environment variable that contains the API key. It is read for every call, and
            the key is never stored.
        timeout: Maximum duration of a call in seconds, including retries.
        temperature: Sampling temperature (default: the endpoint's default).

    Supported fields of the agent's request are passed on. If a call fails, evert's client raises
    the SDK's error. Other clients get a response with the same status code. If there is no status
    code, they get a 400 (``model_failed``).
    """

    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    timeout: float = 600.0
    temperature: float | None = None

    @property
    def api_key(self) -> str:
        """The current API key, or "none" if the variable is not set."""
        return os.environ.get(self.api_key_env) or "none"

    async def __call__(self, request: ChatRequest) -> Reply:
        """Return the endpoint's reply.

        Raises:
            openai.OpenAIError: The request failed, or the response contains no usable reply.
        """
        import openai

        check_no_prefill(request, "a RemoteModel")
        fields: dict[str, Any] = {
            "tools": request.tools,
            "max_completion_tokens": request.max_tokens,
            "stop": list(request.stop) or None,
            "temperature": self.temperature,
            "logprobs": request.logprobs or None,
            "parallel_tool_calls": False if request.one_call and request.tools else None,
            **_format_fields(request.format),
        }
        messages: Any = [as_fields(m, index) for index, m in enumerate(request.messages)]
        with left_alone():  # otherwise, take-over could redirect this call to the policy
            async with openai.AsyncOpenAI(
                base_url=self.base_url,
                api_key=self.api_key,
                timeout=self.timeout,
                http_client=openai.DefaultAsyncHttpxClient(verify=_tls()),
            ) as client:
                completion = await client.chat.completions.create(
                    model=self.model,
                    messages=messages,
                    **{name: value for name, value in fields.items() if value is not None},
                )
        if not completion.choices:
            raise failed(request.model, f"returned no choices: {completion.model_dump()!r:.300}")
        choice, usage = completion.choices[0], completion.usage
        raw_message = {"role": "assistant", **choice.message.model_dump(exclude_none=True)}
        raw_message.setdefault("content", "")
        try:
            message = read_message(raw_message, 0, {})
        except openai.BadRequestError as error:
            raise failed(request.model, f"returned an invalid reply: {error}") from error
        if request.tools and not message.get("tool_calls") and isinstance(message["content"], str):
            HERMES_CALLS.read_into(message, request.tools)  # the server may not parse tool calls
        reply = read_reply(
            message,
            truncated=choice.finish_reason == "length",
            call_ids=new_call_ids(),
            prompt_tokens=usage.prompt_tokens if usage is not None else 0,
            completion_tokens=usage.completion_tokens if usage is not None else 0,
        )
        return _with_endpoint_logprobs(reply, choice) if request.logprobs else reply


def check_no_prefill(request: ChatRequest, kind: str) -> None:
    """Refuse a request with a prefill. ``kind`` describes the model in the error message."""
    if request.prefill:
        raise bad_request(
            f"The model {request.model!r} is {kind}, which cannot continue a reply, but the last "
            "message has the role assistant. End with a user message, or use a TokenCompleter or "
            "a TinkerModel instead.",
            param="messages",
        )


def _with_endpoint_logprobs(reply: Reply, choice: Choice) -> Reply:
    if choice.logprobs is None or choice.logprobs.content is None:
        raise unavailable("this model's endpoint did not return them")
    logprobs = (
        TokenLogprob(item.token, item.logprob, None if item.bytes is None else bytes(item.bytes))
        for item in choice.logprobs.content
    )
    return replace(reply, logprobs=tuple(logprobs))


@cache
def _tls() -> ssl.SSLContext:
    """Return a shared TLS context, because loading certificates takes longer than a short call."""
    return ssl.create_default_context()


def new_call_ids() -> str:
    """Return a unique prefix for the ids of one reply's tool calls."""
    return f"call-{secrets.token_hex(4)}"


def _format_fields(reply_format: ReplyFormat | None) -> dict[str, Any]:
    if reply_format is None:
        return {}
    fields: dict[str, Any] = {}
    if reply_format.schema == ANY_OBJECT:
        fields["response_format"] = {"type": "json_object"}
    elif reply_format.schema is not None:
        schema = {"name": "reply", "schema": json.loads(reply_format.schema)}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if len(reply_format.must_call) == 1:
        [name] = reply_format.must_call
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif reply_format.must_call:
        fields["tool_choice"] = "required"
    return fields
