"""Draws tokens from logits: random numbers, truncation and stops.

Each sample has a separate random stream (``stream_key``), indexed by the step number, so its tokens
don't depend on the other rows in the batch. Shapes: B rows, V vocabulary.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evert.trainers.engine.common.errors import SamplingRequestError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_BLOCK = 128  # tokens per partial sum

_CHUNK_LOGITS = 2**20  # logits per chunk on a CPU; small enough to fit in the CPU's cache


def stream_key(*parts: bytes | int) -> int:
    """Hash seeds, counters and content into the 64-bit key of a random stream."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part if isinstance(part, bytes) else part.to_bytes(16, "little", signed=True)
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def uniforms(keys: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return number ``steps[i]`` of stream ``keys[i]``, in [0, 1), using stateless SplitMix64."""
    x = keys + steps * _GOLDEN + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class BatchParams:
    """The sampling parameters of each row."""

    temperature: Tensor  # [B] float32; 0 means greedy
    top_k: Tensor | None  # [B] int64, at least V for no limit; None if no row has a limit
    top_p: Tensor | None  # [B] float32, 1 for no limit; None if no row has a limit
    plain: bool  # whether all temperatures are 1 and nothing is truncated

    def of(self, rows: slice) -> "BatchParams":
        """Return the parameters for some of the rows."""
        top_k = None if self.top_k is None else self.top_k[rows]
        top_p = None if self.top_p is None else self.top_p[rows]
        return BatchParams(self.temperature[rows], top_k, top_p, self.plain)


def draw(logits: Tensor, params: BatchParams, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Sample a token for each row of [B, V] logits by inverse transform sampling.

    ``uniform`` contains [B] random numbers in [0, 1). Returns [B] token ids and their [B]
    log-probabilities. To match what a trainer computes for these tokens, the log-probabilities are
    always at temperature 1 and untruncated, regardless of ``params``.
    """
    limit = max(1, _CHUNK_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    if len(logits) <= limit:
        return _draw(logits, params, uniform)
    cuts = [slice(row, row + limit) for row in range(0, len(logits), limit)]
    parts = [_draw(logits[rows], params.of(rows), uniform[rows]) for rows in cuts]
    tokens, logprobs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _draw(logits: Tensor, params: BatchParams, uniform: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(logits, dim=-1)
    weights = logprobs.exp() if params.plain else _tempered(logprobs, params).exp()
    tokens = _pick(weights, uniform[:, None])
    if not params.plain:
        greedy = (params.temperature == 0)[:, None]
        tokens = torch.where(greedy, logprobs.argmax(dim=-1, keepdim=True), tokens)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """In each row, find the first token where the cumulative weight exceeds a share of the total.

    The weights are [B, V]; the share, ``uniform``, and the tokens returned are [B, 1]. Sums are
    computed in float64, because rare tokens would get lost in float32. Since a cumulative sum over
    a large vocabulary is slow, we first find the right block of tokens, using the blocks' sums, and
    then search within this block.
    """
    if weights.shape[1] <= 8 * _BLOCK:
        return _first_above(weights.cumsum(-1, dtype=torch.float64), uniform)
    gap = -weights.shape[1] % _BLOCK
    blocks = (F.pad(weights, (0, gap)) if gap else weights).view(len(weights), -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    block = _first_above(sums, uniform)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK))[:, 0]
    before = F.pad(sums, (1, 0)).gather(1, block)
    running = before + inside.cumsum(-1, dtype=torch.float64)
    token = block * _BLOCK + _first_above(running, uniform, sums[:, -1:])
    return token.clamp_(max=weights.shape[1] - 1)  # the index is too large if weights are NaN


def _first_above(sums: Tensor, share: Tensor, total: Tensor | None = None) -> Tensor:
    """From [B, N] cumulative sums, return the [B, 1] index of the first above ``share * total``.

    If the sums are NaN, this returns the last index, because comparisons with NaN are false.
    """
    last = sums[:, -1:]
    target = share * (last if total is None else total)
    # Because of rounding, the target could be equal to or greater than the last sum.
    target = target.minimum(torch.nextafter(last, torch.zeros_like(last)))
    return torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1)


def _tempered(logprobs: Tensor, params: BatchParams) -> Tensor:
    temperature = torch.where(params.temperature == 0, 1.0, params.temperature)
    # The most likely token gets 0. With a tiny temperature, only other tokens become -inf.
    shaped = (logprobs - logprobs.amax(dim=-1, keepdim=True)) / temperature[:, None]
    if params.top_k is None and params.top_p is None:
        return shaped
    values, order = shaped.sort(dim=-1, descending=True)
    rank = torch.arange(values.shape[1], device=values.device)
    cut = torch.zeros_like(values, dtype=torch.bool)
    if params.top_k is not None:
        cut |= rank >= params.top_k[:, None]
    if params.top_p is not None:
        # top_p is applied to the tokens that remain after top_k, as in vLLM and transformers.
        remaining = values.masked_fill(cut, float("-inf"))
        before = torch.softmax(remaining, dim=-1).cumsum(dim=-1).roll(1, dims=-1)
        # Keep the most likely token, even if top_p is 0.
        before[:, 0] = -1
        cut |= before >= params.top_p[:, None]
    return shaped.masked_fill(torch.zeros_like(cut).scatter(1, order, cut), float("-inf"))


@dataclass(frozen=True)
class Stops:
    """What ends a reply: token ids, and strings that may span several tokens."""

    tokens: frozenset[int]
    texts: tuple[str, ...] = ()
    window: int = 0  # how many of the last tokens to search for strings (0: no strings)

    def hit(self, tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> bool:
        """Return whether a reply's last token is a stop token or completes a stop string."""
        if tokens[-1] in self.tokens:
            return True
        if not self.texts:
            return False
        text = decode(tokens[-self.window :])
        return any(stop in text for stop in self.texts)


def make_stops(
    stop: str | Sequence[str] | Sequence[int] | None, end_tokens: Collection[int]
) -> Stops:
    """Parse ``SamplingParams.stop``.

    If ``stop`` is None, replies stop at the model's end tokens. If it is an empty list, they never
    stop. If it contains token ids, replies stop only at those tokens. If it contains strings, which
    may be special tokens (``"<|im_end|>"``), replies stop at those strings and at the model's end
    tokens.
    """
    if stop is None:
        return Stops(frozenset(end_tokens))
    items = [stop] if isinstance(stop, str) else list(stop)
    if all(isinstance(item, int) for item in items):
        return Stops(frozenset(item for item in items if isinstance(item, int)))
    texts = tuple(item for item in items if isinstance(item, str) and item)
    if len(texts) != len(items):
        raise SamplingRequestError(
            f"SamplingParams.stop is {stop!r}; expected token ids, non-empty strings or None."
        )
    # This many tokens are enough, because each decodes to at least one byte of text, except for a
    # few at character boundaries.
    window = max(len(text.encode()) for text in texts) + 8
    return Stops(frozenset(end_tokens), texts, window)
