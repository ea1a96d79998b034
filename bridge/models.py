"""The models an agent may call beside the policy: frozen ones, by name.

``ChatAgentEnv(agent, models={"judge": ...})`` answers the agent's calls to "judge" from there. They
are no transitions, and nothing is trained on them. A frozen model is one of

    a Cookbook ``MessageCompleter``
    a Cookbook ``TokenCompleter`` or a ``tinker.SamplingClient``, read with the Env's own renderer
    a ``TinkerModel``: weights by name, of the engine in use, read with a renderer of their own
    a ``RemoteModel``: an endpoint that speaks OpenAI's chat completions
    a function from the messages to the reply's text: a player without a model
"""

import asyncio
import codecs
import itertools
import json
import os
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

import tinker
from openai.types.chat.chat_completion import Choice
from tinker_cookbook.completers import MessageCompleter, TinkerTokenCompleter, TokenCompleter
from tinker_cookbook.renderers import Message

from evert.bridge.actions import read_action
from evert.bridge.errors import InvalidModelError
from evert.bridge.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.images import Images
from evert.bridge.lineage import ConversationBook
from evert.bridge.logprobs import unavailable, with_logprobs
from evert.bridge.long_text import LongTexts
from evert.bridge.messages import Reply, TokenLogprob, as_fields, read_message, read_reply
from evert.bridge.rendering import PromptRenderer
from evert.bridge.requests import ChatRequest, bad_request
from evert.bridge.routes import FrozenAnswer
from evert.bridge.weights import MAX_TOKENS, FrozenSampler, TinkerModel, open_weights

MODEL_TIMEOUT = 600.0
"""Seconds in which a frozen model has to reply, where nobody says otherwise."""


@dataclass(frozen=True)
class RemoteModel:
    """A model behind an endpoint that speaks OpenAI's chat completions.

    Attributes:
        model: Its name there.
        base_url: For example ``https://api.openai.com/v1``.
        api_key_env: Environment variable that holds the key; read at each call, never stored.
        timeout: Seconds for a call, with whatever is asked again meanwhile.
        temperature: Of sampling; None for the endpoint's own.

    The agent's fields that count are passed on; errors reach the agent as the SDK raises them.
    """

    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    timeout: float = 600.0
    temperature: float | None = None

    @property
    def api_key(self) -> str:
        """The key, as it is at this moment."""
        return os.environ.get(self.api_key_env) or "none"

    async def __call__(self, request: ChatRequest) -> Reply:
        """Ask the endpoint.

        Raises:
            openai.OpenAIError: As the SDK raises it.
        """
        import openai

        from evert.bridge.faces.takeover import left_alone

        _check_no_prefill(request, "a RemoteModel")
        fields: dict[str, Any] = {
            "tools": request.tools,
            "max_completion_tokens": request.max_tokens,
            "stop": list(request.stop) or None,
            "temperature": self.temperature,
            "logprobs": request.logprobs or None,
            **_format_fields(request.format),
        }
        messages: Any = [as_fields(m, index) for index, m in enumerate(request.messages)]
        with left_alone():  # an agent may call us itself, under the very name of its policy
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
        [choice, *_] = completion.choices
        sent = {"role": "assistant", **choice.message.model_dump(exclude_none=True)}
        sent.setdefault("content", "")
        usage = completion.usage
        reply = read_reply(
            read_message(sent, 0, {}),
            truncated=choice.finish_reason == "length",
            call_ids=_new_call_ids(),
            prompt_tokens=usage.prompt_tokens if usage is not None else 0,
            completion_tokens=usage.completion_tokens if usage is not None else 0,
        )
        return _with_given_logprobs(reply, choice) if request.logprobs else reply


def _check_no_prefill(request: ChatRequest, kind: str) -> None:
    if request.prefill:
        raise bad_request(
            f"The model {request.model!r} is {kind}, which begins its replies itself; the last "
            "message is the assistant's. End with the user's, or give the Env a TokenCompleter or "
            "a TinkerModel for it.",
            param="messages",
        )


def _with_given_logprobs(reply: Reply, choice: Choice) -> Reply:
    if choice.logprobs is None or choice.logprobs.content is None:
        raise unavailable("the endpoint of this model gave none")
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    given = tuple(
        TokenLogprob(
            one.token if one.bytes is None else decoder.decode(bytes(one.bytes)), one.logprob
        )
        for one in choice.logprobs.content
    )
    is_the_text = "".join(one.text for one in given) == reply.text
    return replace(reply, logprobs=given if is_the_text else None)


@cache
def _tls() -> ssl.SSLContext:
    """Made once a process: to load the certificates takes longer than a short call."""
    return ssl.create_default_context()


def _new_call_ids() -> str:
    """A unique prefix for the ids of one reply's tool calls."""
    return f"call-{secrets.token_hex(4)}"


def _format_fields(wanted: ReplyFormat | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if wanted is not None and wanted.schema == ANY_OBJECT:
        fields["response_format"] = {"type": "json_object"}
    elif wanted is not None and wanted.schema is not None:
        schema = {"name": "reply", "schema": json.loads(wanted.schema)}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if wanted is not None and len(wanted.must_call) == 1:
        [name] = wanted.must_call
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif wanted is not None and wanted.must_call:
        fields["tool_choice"] = "required"
    return fields


class _Said(MessageCompleter):
    def __init__(self, function: Callable[[list[Message]], str]) -> None:
        self._function = function

    async def __call__(self, messages: list[Message]) -> Message:
        return Message(role="assistant", content=self._function(messages))


FrozenModel: TypeAlias = (
    MessageCompleter
    | TokenCompleter
    | tinker.SamplingClient
    | TinkerModel
    | RemoteModel
    | Callable[[list[Message]], str]
)


def frozen_models(
    models: Mapping[str, FrozenModel],
    policy: Sequence[str],
    renderer: PromptRenderer,
    timeout: float | None = MODEL_TIMEOUT,
) -> dict[str, FrozenAnswer]:
    """What answers the calls to each name.

    Args:
        models: By name.
        policy: Names that none of them may have.
        renderer: Of the policy.
        timeout: Seconds in which one has to reply; a ``RemoteModel`` has its own. None: for ever.

    Raises:
        InvalidModelError: One is no model, or has a name of the policy's.
    """
    for name in policy:
        if name in models:
            raise InvalidModelError(
                f"models={{{name!r}: ...}} has the policy's own name. Name the policy otherwise "
                "(policy_names=...), or leave the entry out."
            )
    answers: dict[str, FrozenAnswer] = {}
    for name, model in models.items():
        seconds = model.timeout if isinstance(model, RemoteModel) else timeout
        answers[name] = partial(_in_time, _answers(name, model, renderer), seconds)
    return answers


async def _in_time(answer: FrozenAnswer, seconds: float | None, request: ChatRequest) -> Reply:
    """A model's reply, or an error in time: the model may swallow its cancellation."""
    asked = asyncio.ensure_future(answer(request))
    asked.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        done, _ = await asyncio.wait({asked}, timeout=seconds)
    finally:
        asked.cancel()
    if not done:
        raise bad_request(
            f"The model {request.model!r} gave no reply within {seconds:g} s. Look whether it is "
            "alive; if it is slow, raise model_timeout (of a RemoteModel: its timeout).",
            param="model",
            code="model_timeout",
        )
    return asked.result()


def _answers(name: str, model: FrozenModel, renderer: PromptRenderer) -> FrozenAnswer:
    if isinstance(model, RemoteModel):
        return model
    if isinstance(model, TinkerModel):
        return partial(_ask_weights, model, itertools.count())
    if isinstance(model, MessageCompleter):
        return partial(_ask_for_message, model)
    if isinstance(model, TokenCompleter):
        return partial(_ask_for_tokens, model, renderer)
    if hasattr(model, "sample_async"):
        sampled: Any = model
        completer = TinkerTokenCompleter(sampled, MAX_TOKENS)
        return partial(_ask_for_tokens, completer, renderer)
    if callable(model) and not isinstance(model, type):
        return partial(_ask_for_message, _Said(model))
    raise InvalidModelError(
        f"models[{name!r}] is {model!r:.200}; expected a MessageCompleter, a TokenCompleter, a "
        "tinker.SamplingClient, an evert.TinkerModel, an evert.RemoteModel or a function from "
        "messages to a text."
    )


async def _ask_weights(
    model: TinkerModel, numbers: "itertools.count[int]", request: ChatRequest
) -> Reply:
    number = next(numbers)
    weights = await open_weights(model)
    completer = FrozenSampler(model, weights, number)
    return await _ask_for_tokens(completer, weights.renderer, request)


async def _ask_for_message(completer: MessageCompleter, request: ChatRequest) -> Reply:
    if request.tools:
        raise bad_request(
            f"The model {request.model!r} is a MessageCompleter, which takes no tools. Give the "
            "Env a TokenCompleter, a TinkerModel or a RemoteModel for it.",
            param="tools",
        )
    _check_no_prefill(request, "a MessageCompleter")
    if request.logprobs:
        raise unavailable(f"the model {request.model!r} is a MessageCompleter, which gives none")
    messages = [read_message(m, index, {}) for index, m in enumerate(request.messages)]
    messages = await Images().all_shown(messages)
    if request.format is not None:
        messages.append(request.format.request())
    parsed = await completer(messages)
    return read_reply(
        parsed, truncated=False, call_ids=_new_call_ids(), prompt_tokens=0, completion_tokens=0
    )


async def _ask_for_tokens(
    completer: TokenCompleter, renderer: PromptRenderer, request: ChatRequest
) -> Reply:
    observe = partial(ConversationBook(renderer).observe, request, "")
    conversation = await LongTexts(renderer).rendered(observe, request)
    action = await completer(
        conversation.prompt(), renderer.stop_with(request.stop), max_tokens=request.max_tokens
    )
    reply, _ = read_action(
        list(action.tokens),
        renderer,
        request,
        truncated=action.stop_reason == "length",
        call_ids=_new_call_ids(),
        prompt_tokens=conversation.length,
        opened=conversation.opened,
    )
    if request.logprobs:
        return with_logprobs(reply, action.tokens, action.maybe_logprobs, renderer)
    return reply


def count_tokens(request: ChatRequest, renderer: PromptRenderer) -> int:
    """Length of the prompt that a request would be.

    Raises:
        openai.BadRequestError: It cannot be read or rendered.
    """
    return ConversationBook(renderer).observe(request, "", renderer).length
