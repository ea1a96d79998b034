"""Checks that a server returns what training needs, and that it uses the same tokenizer as we do.

A known prompt is sent twice. The first request contains it as text, and samples one token. If the
server's prompt ids differ from ours, it uses a different tokenizer. The second request contains the
ids of the prompt and the sampled token. If that token's log-probability differs between the two
responses, the server returns log-probabilities of a modified distribution (vLLM's ``--logprobs-mode
processed_logprobs``). llama.cpp can't score prompts, so we only compare the ids there.
"""

from typing import Any

from tinker import types

from evert.bridge.chat.fields import json_object
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.errors import UnfitServerError
from evert.trainers.serving.wire import FIT, CompletionRequest, ServerKind

KNOWN_PROMPT = "The quick brown fox jumps over 12 lazy dogs"
"""A prompt with only common words, because servers may tokenize unusual text differently."""
HEAT = 2.0
"""Sampling temperature, which affects processed log-probabilities but not raw ones."""

TOLERANCE = 0.05
"""Tolerance for log-probabilities, in nats. Half precision causes smaller differences than this,
and the temperature causes larger ones."""


async def check_server(client: ServedSamplingClient, tokenizer: Any | None = None) -> None:
    """Check that a server can be used for sampling. Ids are only compared if a tokenizer is passed.

    Raises:
        UnfitServerError: Ids or log-probabilities are missing or differ from the expected ones.
    """
    ids, token, logprob = await _sample_probe(client)
    if tokenizer is not None:
        our_ids = list(tokenizer.encode(KNOWN_PROMPT, add_special_tokens=False))
        if ids != our_ids:
            raise UnfitServerError(
                f"{client.base_url} encodes {KNOWN_PROMPT!r} as {ids}, but our tokenizer "
                f"({getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__}) as "
                f"{our_ids}. {client.model!r} is a different model, or uses a different tokenizer "
                "version. Set the served model with model_name= in a command, or tokenizer= in "
                "Python."
            )
    if await client.dialect() is ServerKind.LLAMA_CPP:
        return
    prompt = types.ModelInput.from_ints([*ids, token])
    scored = (await client.compute_logprobs_async(prompt))[-1]
    if scored is None or abs(scored - logprob) > TOLERANCE:
        raise UnfitServerError(
            f"{client.base_url} returned log-probability {logprob:.4f} for a token sampled at "
            f"temperature {HEAT:g}, but {scored} when scoring the same token. Expected raw "
            "log-probabilities at temperature 1. Start vLLM without --logprobs-mode, or with "
            "--logprobs-mode raw_logprobs."
        )


async def _sample_probe(client: ServedSamplingClient) -> tuple[list[int], int, float]:
    """Return the server's ids for the known prompt, and a sampled token with its logprob."""
    params = types.SamplingParams(max_tokens=1, temperature=HEAT, seed=1)
    answer = await client.request(CompletionRequest(client.model, KNOWN_PROMPT, params, texts=True))
    [sequence] = answer.sequences
    ids = answer.prompt_ids
    if ids is None and await client.dialect() is ServerKind.LLAMA_CPP:
        body = {"content": KNOWN_PROMPT, "add_special": False}
        content = await client.post(client.base_url.removesuffix("/v1") + "/tokenize", body)
        ids = (json_object(content) or {}).get("tokens")
    if ids is None or not sequence.tokens or sequence.logprobs is None:
        raise UnfitServerError(f"{client.base_url} did not return the prompt's token ids. {FIT}")
    return ids, sequence.tokens[0], sequence.logprobs[0]
