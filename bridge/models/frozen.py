"""Frozen models, which an agent can call by name in addition to the policy.

With ``ChatAgentEnv(agent, models={"judge": ...})``, calls to the model "judge" are answered by the
given model. These calls are not transitions and are not trained on. A frozen model can be

    a Cookbook ``MessageCompleter``
    a Cookbook ``TokenCompleter`` or a ``tinker.SamplingClient``, used with the Env's renderer
    a ``TinkerModel``: weights, sampled with the current engine and the renderer for these weights
    a ``RemoteModel``: an endpoint that serves OpenAI's chat completions API
    a function (sync or async) that takes the messages and returns the text of the reply
"""

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import tinker
from tinker_cookbook.completers import (
    MessageCompleter,
    TinkerTokenCompleter,
    TokenCompleter,
    TokensWithLogprobs,
)
from tinker_cookbook.renderers import Message

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.messages import read_message
from evert.bridge.chat.reply import Reply, read_reply
from evert.bridge.chat.request import ChatRequest, FrozenAnswer
from evert.bridge.conversations.matching import ConversationBook
from evert.bridge.errors import InvalidModelError
from evert.bridge.models.remote import RemoteModel, check_no_prefill, new_call_ids
from evert.bridge.models.tinker_model import MAX_TOKENS, TinkerModel, open_weights, sample_weights
from evert.bridge.off_loop import off_loop
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.images import Images
from evert.bridge.tokens.logprobs import unavailable, with_logprobs
from evert.bridge.tokens.loop_budget import LongTextError, LongTexts
from evert.bridge.tokens.renderer import PromptRenderer

MODEL_TIMEOUT = 600.0  # default timeout for frozen models, in seconds


FrozenModel: TypeAlias = (
    MessageCompleter
    | TokenCompleter
    | tinker.SamplingClient
    | TinkerModel
    | RemoteModel
    | Callable[[list[Message]], str | Awaitable[str]]
)


def frozen_models(
    models: Mapping[str, FrozenModel],
    policy: Sequence[str],
    renderer: PromptRenderer,
    timeout: float | None = MODEL_TIMEOUT,
) -> dict[str, FrozenAnswer]:
    """Return a dict that maps each model name to the function that answers its calls.

    A call fails with a 400 if there is no reply within ``timeout`` seconds (None for no limit).
    This does not apply to ``RemoteModel``, which has a ``timeout`` attribute.

    Raises:
        InvalidModelError: A model has the same name as the policy, or an unsupported type.
    """
    for name in policy:
        if name in models:
            raise InvalidModelError(
                f"models={{{name!r}: ...}} uses the name of the policy. Rename the policy "
                "(policy_names=...), or remove this model."
            )
    return {
        name: frozen_model(model, renderer, timeout, parameter=f"models[{name!r}]")
        for name, model in models.items()
    }


def frozen_model(
    model: FrozenModel,
    renderer: PromptRenderer,
    timeout: float | None = MODEL_TIMEOUT,
    *,
    parameter: str = "model",
) -> FrozenAnswer:
    """Return the function that answers calls to a model (see ``frozen_models``).

    ``parameter`` is the model's name in error messages.
    """
    seconds = model.timeout if isinstance(model, RemoteModel) else timeout
    return partial(_in_time, _answerer(parameter, model, renderer), seconds)


async def _in_time(answer: FrozenAnswer, seconds: float | None, request: ChatRequest) -> Reply:
    """Await a model's reply. The timeout works even if the model ignores cancellation."""
    task = asyncio.ensure_future(answer(request))
    task.add_done_callback(lambda future: future.cancelled() or future.exception())
    try:
        completed, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not completed:
        raise bad_request(
            f"The model {request.model!r} did not reply within {seconds:g} s. Check that it is "
            "running. If it is slow, increase model_timeout (or the timeout of the RemoteModel).",
            param="model",
            code="model_timeout",
        )
    return task.result()


def _answerer(parameter: str, model: FrozenModel, renderer: PromptRenderer) -> FrozenAnswer:
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
        return partial(_ask_for_message, partial(_call_player, model))
    raise InvalidModelError(
        f"{parameter} is {model!r:.200}; expected a MessageCompleter, a TokenCompleter, a "
        "tinker.SamplingClient, an evert.TinkerModel, an evert.RemoteModel, or a function that "
        "takes messages and returns text."
    )


async def _ask_weights(
    model: TinkerModel, numbers: "itertools.count[int]", request: ChatRequest
) -> Reply:
    number = next(numbers)
    weights = await open_weights(model)
    sample = partial(sample_weights, model, weights, number)
    return await _ask_for_tokens(sample, weights.renderer, request)


async def _call_player(play: Callable[[list[Message]], Any], messages: list[Message]) -> Message:
    reply = play(messages)
    if inspect.isawaitable(reply):
        reply = await reply
    if not isinstance(reply, str):
        raise InvalidModelError(
            f"The function used as a model returned {reply!r:.200}; expected the text of the reply."
        )
    return Message(role="assistant", content=reply)


async def _ask_for_message(
    completer: Callable[[list[Message]], Awaitable[Message]], request: ChatRequest
) -> Reply:
    if request.tools:
        raise bad_request(
            f"The model {request.model!r} is a MessageCompleter, which does not support tools. "
            "Use a TokenCompleter, a TinkerModel or a RemoteModel instead.",
            param="tools",
        )
    check_no_prefill(request, "a MessageCompleter")
    if request.logprobs:
        raise unavailable(
            f"the model {request.model!r} is a MessageCompleter, which does not return them"
        )
    messages = [read_message(m, index, {}) for index, m in enumerate(request.messages)]
    images = Images()
    try:
        messages = [images.check(message, 0) for message in messages]
    except LongTextError:  # the messages contain images
        messages = await off_loop(lambda: [*map(images.check, messages)])
    if request.format is not None and request.format.is_asked_for:
        messages.append(request.format.request())
    parsed = await completer(messages)
    return read_reply(
        parsed, truncated=False, call_ids=new_call_ids(), prompt_tokens=0, completion_tokens=0
    )


async def _ask_for_tokens(
    sample: Callable[..., Awaitable[TokensWithLogprobs]],
    renderer: PromptRenderer,
    request: ChatRequest,
) -> Reply:
    observe = partial(ConversationBook(renderer).observe, request, "")
    conversation = await LongTexts(renderer).render(observe, request)
    action = await sample(
        conversation.prompt(), renderer.stop_with(request.stop), max_tokens=request.max_tokens
    )
    reply, _ = read_action(
        list(action.tokens),
        renderer,
        request,
        truncated=action.stop_reason == "length",
        call_ids=new_call_ids(),
        prompt_tokens=conversation.length,
        opened=conversation.opened,
    )
    if request.logprobs:
        return with_logprobs(reply, action.tokens, action.maybe_logprobs, renderer)
    return reply
