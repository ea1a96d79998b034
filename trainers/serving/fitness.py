"""Check that a server returns what training needs, and that its model has our tokenizer.

A known prompt is sent twice. First as text, from which the server samples a token: if its ids of
the prompt differ from ours, it has another vocabulary. Then as ids with that token at the end: if
the token's log-probability differs between the answers, the server reports another distribution
(vLLM's ``--logprobs-mode processed_logprobs``). llama.cpp does not score prompts: there, only ids
are compared.
"""

from typing import Any

from tinker import types

from evert.bridge.chat.fields import json_object
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.errors import UnfitServerError
from evert.trainers.serving.wire import FIT, CompletionRequest, ServerKind

KNOWN_PROMPT = "The quick brown fox jumps over 12 lazy dogs"
"""It has only common words, since servers split unusual text differently."""
HEAT = 2.0
"""Temperature at which that token is sampled; processed log-probabilities show its effect."""

TOLERANCE = 0.05
"""Allowed difference of log-probabilities, in nats: half precision costs less, ``HEAT`` more."""


async def check_server(client: ServedSamplingClient, tokenizer: Any | None = None) -> None:
    """Raise for a server whose samples cannot be used; without a tokenizer, ids are not compared.

    Raises:
        UnfitServerError: It returns no ids or log-probabilities, or those of another model.
    """
    ids, token, logprob = await _sample_probe(client)
    if tokenizer is not None:
        our_ids = list(tokenizer.encode(KNOWN_PROMPT, add_special_tokens=False))
        if ids != our_ids:
            raise UnfitServerError(
                f"{client.base_url} cuts {KNOWN_PROMPT!r} into the tokens {ids}, and our tokenizer "
                f"({getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__}) into "
                f"{our_ids}: {client.model!r} is another model, or its tokenizer another version. "
                "Name the model that is served: model_name= in a command, tokenizer= in Python."
            )
    if await client.dialect() is ServerKind.LLAMA_CPP:
        return
    prompt = types.ModelInput.from_ints([*ids, token])
    scored = (await client.compute_logprobs_async(prompt))[-1]
    if scored is None or abs(scored - logprob) > TOLERANCE:
        raise UnfitServerError(
            f"{client.base_url} reported {logprob:.4f} as the log-probability of a token that it "
            f"sampled at temperature {HEAT:g}, and scores the same token with {scored}. Expected "
            "the model's own, at temperature 1: start vLLM without --logprobs-mode, or with "
            "raw_logprobs."
        )


async def _sample_probe(client: ServedSamplingClient) -> tuple[list[int], int, float]:
    """The known prompt's ids, as the server has them, and a token sampled after it."""
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
