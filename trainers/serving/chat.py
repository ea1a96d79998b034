"""Chat APIs for served models, so that unmodified agents can call them outside of episodes.

``ChatModel`` answers requests to one model. As in training, later prompts in a conversation contain
the exact token ids that were sampled. Conversations that start with the same non-system message are
kept together, in a ``_Book``. If all books together exceed ``keep`` tokens, the least recently used
ones are dropped. When a dropped conversation continues, its past replies are tokenized again from
text.
"""

import asyncio
import itertools
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import openai
import tinker
from tinker import types

from evert.bridge.chat.bad_requests import (
    bad_request,
    model_not_found,
    server_error,
)
from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.messages import as_fields
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.api import Api, ApiCall
from evert.bridge.conversations.conversation import Conversation
from evert.bridge.conversations.matching import ConversationBook
from evert.bridge.models.remote import new_call_ids
from evert.bridge.models.sampling_ranges import out_of_range
from evert.bridge.models.tinker_model import reply_cap
from evert.bridge.off_loop import finished
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.logprobs import with_logprobs
from evert.bridge.tokens.loop_budget import LongTexts, check_text
from evert.bridge.tokens.renderer import PromptRenderer
from evert.trainers.engine.common.errors import EngineClosedError, SamplingRequestError
from evert.trainers.serving.recording import ServedRecords
from evert.trainers.serving.streaming import LiveReply

logger = logging.getLogger(__name__)

KEPT_TOKENS = 2**21
"""Default limit on the total number of tokens in the conversations kept for a model."""

CONVERSATION = 256
"""Memory overhead of a conversation or a book, expressed in tokens."""

BYTES = 32
"""A request counts as at least one token per this many bytes, because images use memory too."""

RETRIES = 2
"""How many times to resample a reply that doesn't match the requested format."""

KEPT_RESPONSES = 2**26
"""Maximum number of characters in the responses kept for ``previous_response_id``."""

Sample = Callable[..., Awaitable[types.SampledSequence]]
"""Takes a prompt, sampling parameters, and a callback for the tokens so far (or None)."""


@dataclass
class _Book:
    key: bytes
    conversations: ConversationBook
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    lengths: "WeakKeyDictionary[Conversation, int]" = field(default_factory=WeakKeyDictionary)
    tokens: int = 0


class ChatModel:
    """One served model.

    Args:
        sample: Samples a reply.
        renderer: Renders its prompts.
        context: The model's context length (None: unknown).
        max_tokens: Maximum number of tokens in a reply if the request sets no limit.
        sampling: Sampling parameters for all replies, which override those in requests.
        keep: Maximum number of tokens in all kept conversations.

    Attributes:
        records: The records and this model's name in them, or None if nothing is recorded.
    """

    def __init__(
        self,
        sample: Sample,
        renderer: PromptRenderer,
        *,
        context: int | None,
        max_tokens: int,
        sampling: Mapping[str, Any] | None = None,
        keep: int = KEPT_TOKENS,
    ) -> None:
        self.renderer = renderer
        self._sample = sample
        self._context = context
        self._max_tokens = max_tokens
        self._fixed = dict(sampling or {})
        self._keep = keep
        self.records: tuple[ServedRecords, str] | None = None
        self._books: OrderedDict[bytes, _Book] = OrderedDict()
        self.kept_tokens = 0  # number of tokens in all kept conversations

    async def reply(
        self,
        request: ChatRequest,
        sampling: Mapping[str, Any],
        live: LiveReply | None = None,
        size: int = 0,
        reply_id: str = "",
    ) -> Reply:
        """Return the reply to a request.

        Args:
            request: The request.
            sampling: The sampling parameters requested by the client.
            live: Receives the tokens while they are sampled.
            size: Size of the request body in bytes.
            reply_id: The reply's id in the records.

        Raises:
            openai.BadRequestError: The request can't be rendered, or its prompt is too long.
        """
        book, conversation = await finished(self._observe(request, size))  # even if cancelled
        reader = partial(self._read, conversation, request)
        params = self._params(conversation.length, request, sampling)
        if live is not None:
            is_thought = self.renderer.decode(conversation.suffix).rstrip().endswith("<think>")
            live.begin(partial(reader, is_cut=True), conversation.length, is_thought=is_thought)
        for attempt in itertools.count():
            prompt = conversation.prompt()
            sampled = await self._sample(prompt, params, live and live.add)
            tokens, reply_format = [*sampled.tokens], request.format
            reply, problem = _check_format(
                reader(tokens, is_cut=sampled.stop_reason == "length"), reply_format
            )
            if problem is None or reply_format is None or attempt == RETRIES:
                break
            async with book.lock:
                self._note(conversation, request, prompt, sampled, None)
                conversation.record(tokens, reply, self.renderer, is_seen=False)
                correction = reply_format.correction(problem)
                inject = partial(book.conversations.inject, conversation, [correction])
                await finished(LongTexts(self.renderer).render(inject))
            params = self._params(conversation.length, request, sampling)
        async with book.lock:
            self._note(conversation, request, prompt, sampled, reply_id)
            conversation.record(tokens, reply, self.renderer)
        self._count(book, conversation)
        if request.logprobs:
            reply = with_logprobs(reply, tokens, sampled.logprobs, self.renderer)
        return replace(reply, tokens=tuple(tokens))

    async def _observe(self, request: ChatRequest, size: int) -> tuple[_Book, Conversation]:
        book = await self._book(request)
        observe = partial(book.conversations.observe, request, "")
        async with book.lock:  # needed because long texts are rendered in another thread
            longest = None if self._context is None else self._context - 1
            conversation = await LongTexts(self.renderer, longest).render(observe, request)
        self._count(book, conversation, size)
        return book, conversation

    def _read(
        self, conversation: Conversation, request: ChatRequest, tokens: list[int], *, is_cut: bool
    ) -> Reply:
        reply, _ = read_action(
            tokens,
            self.renderer,
            request,
            truncated=is_cut,
            call_ids=new_call_ids(),
            prompt_tokens=conversation.length,
            opened=conversation.opened,
        )
        return reply

    def _params(
        self, length: int, request: ChatRequest, sampling: Mapping[str, Any]
    ) -> types.SamplingParams:
        cap = reply_cap(length, self._context, request.max_tokens or self._max_tokens)
        try:
            params = tinker.SamplingParams(
                stop=self.renderer.stop_with(request.stop),
                max_tokens=cap,
                **{"temperature": 1.0, **sampling, **self._fixed},
            )
        except ValueError as error:
            raise bad_request(f"Can't sample with {sampling!r:.200}: {error}") from error
        if (fault := out_of_range(params)) is not None:
            raise bad_request(f"The request has {fault}.", param=fault.partition("=")[0])
        return params

    # -- kept conversations ----------------------------------------------------------------------

    async def _book(self, request: ChatRequest) -> _Book:
        key = await LongTexts(self.renderer).render(partial(_opening, request))
        book = self._books.get(key)
        if book is None:
            book = self._books[key] = _Book(key, ConversationBook(self.renderer))
            self._add(book, CONVERSATION)  # the book uses memory even if its first request fails
        else:
            self._books.move_to_end(key)
        return book

    def _count(self, book: _Book, conversation: Conversation, size: int = 0) -> None:
        before = book.lengths.get(conversation, -CONVERSATION)
        length = book.lengths[conversation] = max(before, conversation.length, size // BYTES)
        self._add(book, length - before)

    def _add(self, book: _Book, tokens: int) -> None:
        book.tokens += tokens
        if self._books.get(book.key) is not book:
            return  # the book has been dropped in the meantime
        self.kept_tokens += tokens
        while self.kept_tokens > self._keep:
            _, oldest = self._books.popitem(last=False)
            self.kept_tokens -= oldest.tokens
            if self.records is not None:
                for dropped in [*oldest.lengths]:
                    self.records[0].write(dropped)

    def _note(self, conversation: Conversation, *turn: Any) -> None:
        if self.records is not None:
            records, name = self.records
            records.note(name, conversation, *turn)


def _check_format(reply: Reply, reply_format: ReplyFormat | None) -> tuple[Reply, str | None]:
    """Return the reply in the requested format, and what is wrong with it (None if it is valid)."""
    if reply_format is None or reply.finish_reason == "length":
        return reply, None
    reply = reply_format.cleaned(reply)
    return reply, reply_format.problem(reply)


def _opening(request: ChatRequest, _: PromptRenderer, limit: int | None) -> bytes:
    """Return a digest of the first non-system message, which stays the same after a handoff."""
    messages = (as_fields(message, index) for index, message in enumerate(request.messages))
    candidates = (
        message for message in messages if message.get("role") not in ("system", "developer")
    )
    opening = next(candidates, {})
    check_text(opening, limit)
    text = json.dumps(opening, sort_keys=True, default=str)
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


class ChatApi(Api):
    """Chat APIs for several served models. Conversations are saved in ``records``, if set."""

    def __init__(
        self, models: Mapping[str, ChatModel], records: ServedRecords | None = None
    ) -> None:
        super().__init__(next(iter(models)))
        self._models = models
        for name, model in models.items():
            model.records = None if records is None else (records, name)
        self._responses.max_characters = KEPT_RESPONSES

    @property
    def names(self) -> Sequence[str]:
        """The models' names."""
        return [*self._models]

    def check_model(self, name: str) -> None:
        """Raise a 404 error if the model is not served."""
        self._find(name)

    def renderer_of(self, request: ChatRequest) -> PromptRenderer:
        """Return the renderer of the request's model."""
        return self._find(request.model).renderer

    async def hold_back(self, refusal: str) -> None:
        """Do nothing: one client's bad request must not delay other clients' requests."""

    async def reply_to(self, call: ApiCall, live: LiveReply | None = None) -> Reply:
        """Return the reply to a call; see ``ChatModel.reply``.

        Raises:
            openai.APIStatusError: The request is invalid, or sampling failed.
        """
        sampling = call.dialect.sampling(call.body)
        try:
            model = self._find(call.request.model)
            return await model.reply(call.request, sampling, live, call.size, call.number)
        except openai.APIStatusError:
            raise
        except SamplingRequestError as error:
            raise bad_request(str(error)) from error
        except EngineClosedError as error:
            raise server_error(503, str(error)) from error
        except Exception as error:
            logger.warning("A request failed.", exc_info=error)
            raise server_error(500, f"{type(error).__name__}: {error}") from error

    def _find(self, name: str) -> ChatModel:
        """Return the model with this name. If only one model is served, any name refers to it."""
        if len(self._models) == 1:
            return next(iter(self._models.values()))
        if (model := self._models.get(name)) is None:
            raise model_not_found(name, self.names)
        return model
