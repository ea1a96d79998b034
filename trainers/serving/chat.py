"""The chat APIs of served models, for unchanged agents, without episodes or rewards.

``ChatModel`` answers the requests to one model. As in training, later prompts of a conversation
contain the token ids that were sampled. Conversations with the same first non-system message are
kept in one book. Beyond ``keep`` tokens, the least recently used books are dropped; later prompts
then tokenize their replies' text again.
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
"""Default maximum of the tokens in all conversations that a model keeps."""

CONVERSATION = 256
"""Memory that a conversation or a book costs besides its tokens, expressed in tokens."""

BYTES = 32
"""Bytes of a request that count as one token of memory; images, for example, are not tokens."""

RETRIES = 2
"""How many times a reply is resampled if it does not have the requested format."""

KEPT_RESPONSES = 2**26
"""Maximum characters of the responses that ``previous_response_id`` can name."""

Sample = Callable[..., Awaitable[types.SampledSequence]]
"""Samples from a prompt, sampling parameters, and a callback for the tokens so far (or None)."""


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
        context: Tokens of its context; None if unknown.
        max_tokens: Maximum tokens of a reply if the request sets no limit.
        sampling: Sampling parameters for every reply; they override those of requests.
        keep: Maximum tokens in all kept conversations.

    Attributes:
        records: The records, and this model's name in them; None: nothing is recorded.
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
        self.kept_tokens = 0  # tokens of the conversations that are kept

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
            sampling: The sampling parameters that the client requests.
            live: Gets the tokens while they are sampled.
            size: Bytes of the request's body.
            reply_id: The id of the reply, for its record.

        Raises:
            openai.BadRequestError: The request cannot be rendered, or its prompt is too long.
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
        async with book.lock:  # a long text is rendered in a thread
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
            raise bad_request(f"Cannot sample with {sampling!r:.200}: {error}") from error
        if (fault := out_of_range(params)) is not None:
            raise bad_request(f"The request has {fault}.", param=fault.partition("=")[0])
        return params

    # -- kept conversations ----------------------------------------------------------------------

    async def _book(self, request: ChatRequest) -> _Book:
        key = await LongTexts(self.renderer).render(partial(_opening, request))
        book = self._books.get(key)
        if book is None:
            book = self._books[key] = _Book(key, ConversationBook(self.renderer))
            self._add(book, CONVERSATION)  # a book takes memory even if its first request fails
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
            return  # the book was dropped meanwhile
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
    """Return the reply in the requested format, and what is wrong with it, if anything."""
    if reply_format is None or reply.finish_reason == "length":
        return reply, None
    reply = reply_format.cleaned(reply)
    return reply, reply_format.problem(reply)


def _opening(request: ChatRequest, _: PromptRenderer, limit: int | None) -> bytes:
    """Return a digest of the first non-system message, which agents share after a handoff."""
    messages = (as_fields(message, index) for index, message in enumerate(request.messages))
    candidates = (
        message for message in messages if message.get("role") not in ("system", "developer")
    )
    opening = next(candidates, {})
    check_text(opening, limit)
    text = json.dumps(opening, sort_keys=True, default=str)
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


class ChatApi(Api):
    """The chat APIs of several served models; ``records`` (if not None) keeps conversations."""

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
        """Raise the 404 for a model that is not served."""
        self._find(name)

    def renderer_of(self, request: ChatRequest) -> PromptRenderer:
        """Return the renderer of the model that a request calls."""
        return self._find(request.model).renderer

    async def hold_back(self, refusal: str) -> None:
        """Do nothing: other clients' requests do not wait for a refused one."""

    async def reply_to(self, call: ApiCall, live: LiveReply | None = None) -> Reply:
        """Return the reply to a call; see ``ChatModel.reply``.

        Raises:
            openai.APIStatusError: The request was refused, or no reply could be sampled.
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
            logger.warning("A request could not be answered.", exc_info=error)
            raise server_error(500, f"{type(error).__name__}: {error}") from error

    def _find(self, name: str) -> ChatModel:
        """Return the model with this name; if only one model is served, any name means that one."""
        if len(self._models) == 1:
            return next(iter(self._models.values()))
        if (model := self._models.get(name)) is None:
            raise model_not_found(name, self.names)
        return model
