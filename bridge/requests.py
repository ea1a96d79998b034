"""A chat request as an agent makes it: which fields count, and the error for a bad one.

``ChatRequest.from_fields`` is the one gate. Every field of OpenAI's chat completions API has one
written policy: *honoured* (it shapes the observation or the budget), *ignored* (sampling belongs to
the trainer; listed in ``IGNORED_FIELDS``), or *refused* with the SDK's own ``BadRequestError``
(``REFUSED_FIELDS`` says what to do instead). Nothing is dropped in silence. An explicit null is the
same as an absent field.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openai

HONOURED_FIELDS = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "stream",
        "n",
        "logprobs",
        "response_format",
    }
)
"""Read and acted upon (some of them only for the values that ``REFUSED_FIELDS`` lets pass)."""

_PLAIN_FIELDS = frozenset({"model", "messages"})

IGNORED_FIELDS = frozenset(
    {
        # Sampling is the trainer's: one policy, one temperature for the whole run.
        "temperature",
        "top_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "reasoning_effort",
        "verbosity",
        # Bookkeeping of the hosted API.
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "stream_options",
        "prediction",
        # A hint: a policy that makes several calls in one reply is parsed as it is.
        "parallel_tool_calls",
        # Options of the SDK's own call, not of the API.
        "timeout",
        "extra_headers",
        "extra_query",
        "extra_body",
    }
)
"""Accepted and without effect."""

REFUSED_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n": (
        lambda value: value == 1,
        "One call is one transition: make the call again for a further sample.",
    ),
    "stream": (
        lambda value: value is False,
        "This handle answers at once and whole: pass stream=False.",
    ),
    "logprobs": (
        lambda value: value is False,
        "Log-probabilities stay with the trainer and do not reach the Env: leave logprobs out.",
    ),
    "top_logprobs": (
        lambda value: False,
        "Log-probabilities stay with the trainer and do not reach the Env: leave it out.",
    ),
    "tool_choice": (
        lambda value: value in ("auto", "none"),
        "The policy cannot be forced to call a tool: use 'auto' and ask for it in the prompt.",
    ),
    "response_format": (
        lambda value: isinstance(value, Mapping) and value.get("type") == "text",
        "The policy cannot be constrained to a format: ask for it in the prompt and validate.",
    ),
    "logit_bias": (
        lambda value: not value,
        "The Env carries no logit bias: leave it out.",
    ),
    "modalities": (
        lambda value: value in (["text"], ("text",)),
        "Only text can be generated.",
    ),
    "audio": (lambda value: False, "Only text can be generated."),
    "functions": (lambda value: False, "Deprecated by OpenAI: use tools=[...] instead."),
    "function_call": (lambda value: False, "Deprecated by OpenAI: use tools=[...] instead."),
    "moderation": (
        lambda value: False,
        "There is no moderation behind the policy: check what it says in the agent.",
    ),
    "web_search_options": (
        lambda value: False,
        "There is no search behind the policy: offer one as a tool.",
    ),
}
"""Field -> (which values pass, what to do instead). Other values are a 400."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call of an agent.

    Attributes:
        model: Model name the agent asked for.
        messages: As the agent sent them: dicts or SDK message objects. Not copied here.
        tools: OpenAI tool dicts, or None when none are offered.
        max_tokens: Cap on the tokens of this reply; None for the run's own cap.
        stop: Further stop strings, besides the renderer's own.
    """

    model: str
    messages: Sequence[Any]
    tools: list[Any] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], default_model: str) -> "ChatRequest":
        """Check the fields of a call and keep what counts.

        Raises:
            openai.BadRequestError: A field is unknown, refused, or of the wrong form.
        """
        plain = _PLAIN_FIELDS.issuperset(fields)  # most calls: nothing more to look through
        if not plain:
            _refuse_bad_fields(fields)
        messages = fields.get("messages")
        if not isinstance(messages, (list, tuple)) or not messages:
            raise bad_request(
                f"'messages' must be a non-empty list of messages, got {messages!r:.200}.",
                param="messages",
            )
        model = fields.get("model") or default_model
        if not isinstance(model, str):
            raise bad_request(f"'model' must be a string, got {model!r:.200}.", param="model")
        tools = fields.get("tools") or None
        if tools is not None and not isinstance(tools, (list, tuple)):
            raise bad_request(
                f"'tools' must be a list of tools, got {tools!r:.200}.", param="tools"
            )
        if fields.get("tool_choice") == "none":
            tools = None
        return cls(
            model=model,
            messages=messages,
            tools=list(tools) if tools else None,
            max_tokens=None if plain else _max_tokens(fields),
            stop=_stop(fields.get("stop")),
        )


def _refuse_bad_fields(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if value is None or _is_omitted(value):
            continue
        if name in REFUSED_FIELDS:
            passes, advice = REFUSED_FIELDS[name]
            if not passes(value):
                raise bad_request(f"'{name}'={value!r:.200} is not supported. {advice}", param=name)
        elif name not in HONOURED_FIELDS and name not in IGNORED_FIELDS:
            raise bad_request(
                f"Unknown field '{name}'. Fields evert knows are listed in "
                "evert.bridge.requests (honoured, ignored, refused).",
                param=name,
            )


def _is_omitted(value: object) -> bool:
    return type(value).__name__ in ("NotGiven", "Omit")  # the SDK's markers for "not passed"


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    caps = []
    for name in ("max_tokens", "max_completion_tokens"):
        value = fields.get(name)
        if value is None or _is_omitted(value):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise bad_request(f"'{name}' must be a positive integer, got {value!r}.", param=name)
        caps.append(value)
    return min(caps) if caps else None


def _stop(value: object) -> tuple[str, ...]:
    if value is None or _is_omitted(value):
        return ()
    stops = (value,) if isinstance(value, str) else value
    if isinstance(stops, (list, tuple)) and all(isinstance(s, str) and s for s in stops):
        return tuple(stops)
    raise bad_request(
        f"'stop' must be a non-empty string or a list of them, got {value!r}.", param="stop"
    )


def bad_request(
    message: str, *, param: str | None = None, code: str | None = None
) -> "openai.BadRequestError":
    """The OpenAI SDK's error for HTTP 400, as an agent would get it over the network."""
    import openai

    httpx = _sdk_http_library()
    request = httpx.Request("POST", "http://evert.invalid/v1/chat/completions")
    return openai.BadRequestError(
        message,
        response=httpx.Response(400, request=request),
        body={"message": message, "type": "invalid_request_error", "param": param, "code": code},
    )


def context_length_exceeded(length: int, limit: int) -> "openai.BadRequestError":
    """The error on which agents compact their history: code ``context_length_exceeded``."""
    return bad_request(
        f"The prompt is too long: this model's maximum context length is {limit} tokens, however "
        f"your messages resulted in {length} tokens. Please reduce the length of the messages.",
        param="messages",
        code="context_length_exceeded",
    )


@cache
def _sdk_http_library() -> ModuleType:
    """The HTTP library the installed SDK builds on: httpx2 from openai 3 on, httpx before."""
    import importlib

    import openai

    base = openai.DefaultHttpxClient.__mro__[1]
    return importlib.import_module(base.__module__.partition(".")[0])
