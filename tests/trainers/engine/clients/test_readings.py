"""The log-probabilities of prompt tokens match those of a transformers forward pass."""

from typing import Any

import pytest
import tinker
import torch
from tests.trainers.kit import params, prompt, sampler_of, snapshot, trainer_of
from tinker import types

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import SamplingRequestError, UnsupportedError
from evert.trainers.engine.models.base_models import load_model

TOKENS = [5, 6, 7, 100, 31, 8, 8, 77]


@pytest.fixture
def client(engine: Engine, tiny_model: str) -> Any:
    return sampler_of(tiny_model)


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Any:
    return load_model(tiny_model, torch.device("cpu"), torch.float32)


def expected(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return [T - 1, V]: row i is the distribution of token i + 1."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0, :-1]
        return torch.log_softmax(logits.double(), -1).float()


def ask(client: Any, tokens: list[int] = TOKENS, count: int = 1, **options: Any) -> Any:
    sampling = params(**options.pop("sampling", {"max_tokens": 1}))
    return client.sample(prompt(*tokens), count, sampling, **options).result()


def test_top_k_prompt_log_probabilities_match_the_model(client: Any, model: Any) -> None:
    best = expected(model, TOKENS).topk(4)
    for last_n in (None, 1, 3, 7):
        how: dict[str, Any] = {"include_prompt_logprobs": True, "prompt_logprobs_last_n": last_n}
        response = ask(client, topk_prompt_logprobs=4, **how)
        first = 1 if last_n is None else len(TOKENS) - last_n
        assert response.topk_prompt_logprobs_np.token_ids.shape == (8, 4)
        assert response.topk_prompt_logprobs[:first] == [None] * first
        assert response.prompt_logprobs[:first] == [None] * first
        for place in range(first, 8):
            tokens, values = zip(*response.topk_prompt_logprobs[place], strict=True)
            assert [*tokens] == best.indices[place - 1].tolist()
            assert [*values] == pytest.approx(best.values[place - 1].tolist(), abs=1e-4)
            logprob = float(expected(model, TOKENS)[place - 1, TOKENS[place]])
            assert response.prompt_logprobs[place] == pytest.approx(logprob, abs=1e-4)
    # If asked for more tokens than the vocabulary has, the engine pads the result, as the SDK does.
    response = ask(client, topk_prompt_logprobs=300)
    assert response.topk_prompt_logprobs_np.token_ids.shape == (8, 300)
    assert response.topk_prompt_logprobs[0] is None
    assert len(response.topk_prompt_logprobs[1]) == 262
    assert response.prompt_logprobs is None


@pytest.mark.parametrize("sparse", [False, True])
def test_target_log_probabilities_match_the_model(client: Any, model: Any, sparse: bool) -> None:
    ids = torch.full((7, 5), -1, dtype=torch.int64)
    ids[2, 0], ids[2, 4], ids[5, 1] = 17, 0, 200
    dense = types.TensorData.from_torch(ids)
    targets = types.TensorData.from_torch_sparse(ids, pad_value=-1) if sparse else dense
    assert (targets.sparse_crow_indices is not None) is sparse
    values = ask(client, target_prompt_logprobs=targets).target_prompt_logprobs
    truth = expected(model, TOKENS).gather(1, ids.clamp(min=0)).masked_fill(ids < 0, 0.0)
    assert (values.dtype, values.shape) == ("float32", [7, 5])
    assert values.sparse_col_indices == targets.sparse_col_indices
    torch.testing.assert_close(values.to_torch(), truth, atol=1e-4, rtol=1e-4)
    nothing = types.TensorData.from_torch(torch.full((7, 2), -1))
    silent = ask(client, target_prompt_logprobs=nothing).target_prompt_logprobs
    assert not silent.to_torch().any()


def test_all_prompt_log_probabilities_take_one_pass_over_the_prompt(client: Any) -> None:
    tokens, stats = list(range(1, 120)), client.sampler.stats
    all_of_it: dict[str, Any] = {"include_prompt_logprobs": True, "topk_prompt_logprobs": 2}
    ask(client, tokens, target_prompt_logprobs=targets_of(118, 1), **all_of_it)
    assert stats.prompt_tokens <= 2 * len(tokens)  # one pass to score and one to sample
    before = stats.prompt_tokens
    ask(client, tokens, prompt_logprobs_last_n=4, **all_of_it)
    assert stats.prompt_tokens - before < 60


def test_an_unknown_token_fails_only_its_request(client: Any) -> None:
    bad = types.TensorData.from_torch(torch.full((7, 1), 262))
    good, *wrong = [
        client.sample(prompt(*row), 1, params(max_tokens=4), target_prompt_logprobs=named)
        for row in (TOKENS, [*TOKENS[:-1], 9999])
        for named in (targets_of(7, 1), bad)
    ]
    texts = [
        "contains token id 262, but the model's ids go from 0 to 261",
        *["5 to 9999, but the model's ids"] * 2,
    ]
    for future, text in zip(wrong, texts, strict=True):
        with pytest.raises(SamplingRequestError, match=text) as refused:
            future.result()
        assert isinstance(refused.value, tinker.BadRequestError)
    assert good.result().target_prompt_logprobs.to_torch().all()


async def test_every_client_returns_prompt_log_probabilities(client: Any, tiny_model: str) -> None:
    training = trainer_of(tiny_model)
    others = [snapshot(training) for _ in range(2)]
    tokens = prompt(*TOKENS)
    given_up = client.sample(tokens, 1, params(max_tokens=400), True, 2)
    assert given_up.future().cancel()
    responses = [await c.sample_async(tokens, 2, params(), True, 2) for c in (client, *others)]
    assert [len(response.topk_prompt_logprobs[1]) for response in responses] == [2, 2, 2]
    assert len({reply.sequence_id for answer in responses for reply in answer.sequences}) == 6


def targets_of(*shape: int, dtype: Any = torch.int64) -> types.TensorData:
    return types.TensorData.from_torch(torch.zeros(*shape, dtype=dtype))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs is -1; expected 0"),
    ({"prompt_logprobs_last_n": 2}, "include_prompt_logprobs is not set"),
    ({"prompt_logprobs_last_n": 8, "include_prompt_logprobs": True}, "8 tokens; expected 1 to 7"),
    ({"target_prompt_logprobs": targets_of(8, 1)}, r"int64 of shape \[8, 1\]; .* \[7, K\]"),
    ({"target_prompt_logprobs": targets_of(7)}, r"shape \[7\]; expected"),
    ({"target_prompt_logprobs": targets_of(7, 1, dtype=torch.float32)}, "is float32"),
    ({"topk_sample_logprobs": 2}, "is 2, .* Request topk_prompt_logprobs on the prompt followed"),
    ({"prompt_alt_tokens_k": 2}, "k is 2, .* Sample one token after each prefix of the prompt"),
]


@pytest.mark.parametrize(("options", "text"), WRONG)
def test_an_invalid_prompt_reading_is_refused_with_what_to_do(
    options: dict[str, Any], text: str, client: Any
) -> None:
    with pytest.raises((SamplingRequestError, UnsupportedError), match=text):
        ask(client, **options)
    assert ask(client).sequences
