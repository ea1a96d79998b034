"""Check that a server returns what training needs, and that its model has our tokenizer.

A known prompt is sent twice. The first request has it as text, and samples one token. If the
server's ids of the prompt differ from ours, the server has another tokenizer. The second request
has the ids of the prompt and of the sampled token. If the token's log-probability differs between
the two, the server reports those of another distribution (vLLM's ``--logprobs-mode
processed_logprobs``). llama.cpp does not score prompts, so only ids are compared.
"""

from typing import Any

from tinker import types

from evert.bridge.chat.fields import json_object
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.errors import UnfitServerError
from evert.trainers.serving.wire import FIT, CompletionRequest, ServerKind

KNOWN_PROMPT = "The quick brown fox jumps over 12 lazy dogs"
"""A prompt of common words only, since servers may tokenize unusual text differently."""
HEAT = 2.0
"""Temperature of the sampled token; it changes processed log-probabilities, not raw ones."""

TOLERANCE = 0.05
"""Allowed difference of log-probabilities in nats; half precision's is less, ``HEAT``'s more."""


async def check_server(client: ServedSamplingClient, tokenizer: Any | None = None) -> None:
    """Check that a server's samples can be used; without a tokenizer, ids are not compared.

    Raises:
        UnfitServerError: It returns no ids or log-probabilities, or those of another model.
    """
    ids, token, logprob = await _sample_probe(client)
    if tokenizer is not None:
        our_ids = list(tokenizer.encode(KNOWN_PROMPT, add_special_tokens=False))
        if ids != our_ids:
            raise UnfitServerError(
                f"{client.base_url} encodes {KNOWN_PROMPT!r} as {ids}, but our tokenizer "
                f"({getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__}) as "
                f"{our_ids}: {client.model!r} is another model, or has another tokenizer version. "
                "Name the served model with model_name= in a command, or tokenizer= in Python."
            )
    if await client.dialect() is ServerKind.LLAMA_CPP:
        return
    prompt = types.ModelInput.from_ints([*ids, token])
    scored = (await client.compute_logprobs_async(prompt))[-1]
    if scored is None or abs(scored - logprob) > TOLERANCE:
        raise UnfitServerError(
            f"{client.base_url} returned log-probability {logprob:.4f} for a token that it sampled "
            f"at temperature {HEAT:g}, but scores the same token with {scored}. Expected raw "
            "log-probabilities, at temperature 1: start vLLM without --logprobs-mode, or with "
            "raw_logprobs."
        )


async def _sample_probe(client: ServedSamplingClient) -> tuple[list[int], int, float]:
    """Return the server's ids of the known prompt, and a sampled token with its logprob."""
    params = types.SamplingParams(max_tokens=1, temperature=HEAT, seed=1)
    answer = await client.request(CompletionRequest(client.model, KNOWN_PROMPT, params, texts=True))
    [sequence] = answer.sequences
    ids = answer.prompt_ids
    if ids is None and await client.dialect() is ServerKind.LLAMA_CPP:
        body = {"content": KNOWN_PROMPT, "add_special": False}
        content = await client.post(client.base_url.removesuffix("/v1") + "/tokenize", body)
        ids = (json_object(content) or {}).get("tokens")
    if ids is None or not sequence.tokens or sequence.logprobs is None:
        raise UnfitServerError(f"{client.base_url} returned no ids of the prompt's tokens. {FIT}")
    return ids, sequence.tokens[0], sequence.logprobs[0]
