"""Keeps track of the rows in a running batch, and samples the next token for each of them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from tinker import types
from torch import Tensor

from evert.trainers.engine.models.pictures import Picture
from evert.trainers.engine.sampling.batches import FrozenModel
from evert.trainers.engine.sampling.drawing import BatchParams, Stops, draw, uniforms

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass
class SampleRequest:
    """A sampling request with its finished samples."""

    model: FrozenModel
    tokenizer: "PreTrainedTokenizerBase"  # used to find stop strings in replies
    prompt: list[int]
    params: types.SamplingParams
    stops: Stops
    max_tokens: int
    keys: list[int]  # key of each sample's random stream
    pictures: Sequence[Picture] = ()  # images in the prompt, kept alive while the request runs
    future: "Future[list[types.SampledSequence]]" = field(default_factory=Future)
    finished: dict[int, types.SampledSequence] = field(default_factory=dict)  # by index
    watch: Callable[[list[int]], None] | None = None  # called after each token with all tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens from a reply."""
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(list(tokens), **options))


@dataclass
class SampleRow:
    """One of a request's samples, with its tokens so far."""

    request: SampleRequest
    index: int  # index among the request's samples
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def context(self) -> list[int]:
        """The prompt and the tokens sampled so far."""
        return self.request.prompt + self.tokens

    @property
    def length(self) -> int:
        """Number of tokens in ``context``."""
        return len(self.request.prompt) + len(self.tokens)


EndedRow: TypeAlias = tuple[SampleRow, types.StopReason]


class RunningBatch:
    """The rows of one running batch."""

    def __init__(self, model: FrozenModel) -> None:
        self.batch = model.new_batch()
        self.rows: list[SampleRow] = []
        # Drawing tokens needs float64, which MPS doesn't support.
        on_host = self.batch.device.type == "mps"
        self._device = torch.device("cpu") if on_host else self.batch.device
        self.is_ahead = self._device.type == "cuda"
        """Whether to ``step`` before ``read``, so that the GPU computes while the host reads.

        The drawback is that one unnecessary token is computed for each row that has finished.
        """
        self._logits: Tensor | None = None  # [B, V] for the next tokens; None once they are drawn
        self._tokens: Tensor | None = None  # [B] drawn tokens, until the model runs on them
        self._samples = torch.zeros(2, 0)  # [2, B] tokens and log-probabilities to read
        self._describe_rows()

    @property
    def is_last(self) -> bool:
        """Whether all rows will have reached their maximum length after the next ``read``."""
        return all(len(row.tokens) + 1 >= row.request.max_tokens for row in self.rows)

    def _describe_rows(self) -> None:
        """Update the arrays that each step needs. Called whenever rows join or leave."""
        self._keys = np.array([row.request.keys[row.index] for row in self.rows], dtype=np.uint64)
        self._steps = np.array([len(row.tokens) for row in self.rows], dtype=np.uint64)
        self._prompts = np.array([len(row.request.prompt) for row in self.rows], dtype=np.uint64)
        params = [row.request.params for row in self.rows]
        top_k = any(p.top_k > 0 for p in params)
        top_p = any(p.top_p < 1 for p in params)
        self._params = BatchParams(
            self._column([p.temperature for p in params], torch.float32),
            self._column([p.top_k if p.top_k > 0 else 2**62 for p in params]) if top_k else None,
            self._column([p.top_p for p in params], torch.float32) if top_p else None,
            plain=not top_k and not top_p and all(p.temperature == 1 for p in params),
        )

    def admit(self, rows: Sequence[SampleRow]) -> None:
        """Add new rows, or resume rows that were put back in the queue."""
        for model in dict.fromkeys(row.request.model for row in rows):
            self.batch.weights = model
            waiting: dict[tuple[int, ...], list[SampleRow]] = {}
            for row in rows:
                if row.request.model is model:
                    waiting.setdefault(tuple(row.context), []).append(row)
            groups = list(waiting.values())
            owners, logits = self.batch.admit(list(waiting), [len(group) for group in groups])
            logits = logits.to(self._device)
            self.rows += [groups[owner].pop(0) for owner in owners]
            self._logits = logits if self._logits is None else torch.cat([self._logits, logits])
        self._describe_rows()

    def draw(self) -> None:
        """Sample a token for each row."""
        uniform = torch.from_numpy(uniforms(self._keys, self._steps))
        assert self._logits is not None
        self._tokens, logprobs = draw(
            self._logits, self._params, uniform.to(self._device, non_blocking=True)
        )
        self._logits = None
        self._steps = self._steps + np.uint64(1)
        # Stack ids and log-probabilities to save a transfer. Ids up to 2**24 are exact in float32.
        samples = torch.stack([self._tokens.float(), logprobs])
        self._samples = samples.to("cpu", non_blocking=True)
        if self.is_ahead:
            self._samples_ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._samples_ready.record(torch.cuda.current_stream(self._device))

    def read(self) -> list[EndedRow]:
        """Read the sampled tokens. Drop ended and cancelled rows, and return the ended ones."""
        if self.is_ahead:
            self._samples_ready.synchronize()
        samples = self._samples.tolist()
        ended: dict[int, types.StopReason | None] = {}
        for i, (row, token, logprob) in enumerate(zip(self.rows, *samples, strict=True)):
            row.tokens.append(int(token))
            row.logprobs.append(logprob)
            if row.request.watch is not None:
                row.request.watch(row.tokens)
            if row.request.stops.hit(row.tokens, row.request.decode):
                ended[i] = "stop"
            elif len(row.tokens) >= row.request.max_tokens:
                ended[i] = "length"
            elif row.request.future.done():  # cancelled, or failed
                ended[i] = None
        return self._drop(ended) if ended else []

    def make_room(self) -> list[SampleRow]:
        """If not all rows fit in memory, drop the rows with the shortest replies and return them.

        Call this before ``draw``, so that the dropped rows have no unread tokens.
        """
        longest = int((self._prompts + self._steps).max()) + 1
        limit = max(1, self.rows[0].request.model.cache_tokens // longest)
        if len(self.rows) <= limit:  # the usual case
            return []
        order = sorted(range(len(self.rows)), key=lambda i: -len(self.rows[i].tokens))
        dropped = [self.rows[i] for i in order[limit:]]
        self._keep(order[:limit])
        return dropped

    def step(self) -> None:
        """Run the sampled tokens through the model in one pass."""
        assert self._tokens is not None
        self._logits = self.batch.step(self._tokens.to(self.batch.device)).to(self._device)
        self._tokens = None

    def _drop(self, ended: dict[int, types.StopReason | None]) -> list[EndedRow]:
        answers: list[EndedRow] = [
            (self.rows[i], reason) for i, reason in ended.items() if reason is not None
        ]
        for i in ended:
            row = self.rows[i]
            self.batch.park(i, row.context, row.request.model.prefixes)
        self._keep([i for i in range(len(self.rows)) if i not in ended])
        return answers

    def _keep(self, rows: Sequence[int]) -> None:
        origin = self.batch.keep(rows)
        self.rows = [self.rows[i] for i in origin]
        indices = torch.tensor(origin, dtype=torch.long, device=self._device)
        self._tokens = None if self._tokens is None else self._tokens[indices]
        self._logits = None if self._logits is None else self._logits[indices]
        self._describe_rows()

    def _column(self, values: Sequence[float], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
