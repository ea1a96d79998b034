"""An invalid training request never reaches the worker and does not affect other requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tests.kit import Logs
from tests.trainers.kit import ADAM, loss_of, prompt, sequences, snapshot, trainer_of
from tinker import types
from transformers import AutoModelForCausalLM

from evert.trainers.engine.common.errors import (
    CheckpointError,
    LossInputError,
    ModelNotFoundError,
    NoCheckpointError,
    TrainingError,
)
from evert.trainers.engine.models.base_models import attach_lora
from evert.trainers.engine.training.losses import warn_of_alpha


def sft(tokens: list[int], **inputs: Any) -> types.Datum:
    fields = {"target_tokens": [*tokens[1:], 9], "weights": [1.0] * len(tokens), **inputs}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=fields)


def rl(tokens: list[int], **inputs: Any) -> types.Datum:
    zeros = [0.0] * len(tokens)
    fields = {"target_tokens": tokens, "logprobs": zeros, "advantages": zeros, **inputs}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=fields)


GOOD = sft([1, 2, 3])
PICTURE = types.ImageChunk(data=b"", format="png", expected_tokens=1)
CE, IS = "cross_entropy", "importance_sampling"
SEEN = types.Datum(types.ModelInput(chunks=[PICTURE]), GOOD.loss_fn_inputs)
NAN, INF = float("nan"), float("inf")
REFUSED: list[tuple[list[types.Datum], str, Any, str]] = [
    ([], CE, None, "The data is empty"),
    ([GOOD, sft([1, 262, 3])], CE, None, "Datum 1: model_input contains token id 262, .* 0 to 261"),
    ([sft([1, -1])], CE, None, "token id -1, but the model's ids go from 0"),
    ([sft([1, 2], target_tokens=[2, -100])], CE, None, "contains token id -100.*set its weight"),
    ([sft([1] * 513)], CE, None, "513 input tokens; expected at least 1 and at most .* of 512"),
    ([sft([])], CE, None, "0 input tokens; expected at least 1"),
    ([sft([1, 2, 3], target_tokens=[1, 2])], CE, None, r"has shape \(2,\) for 3 .*pected \(3,\)"),
    ([GOOD, GOOD, sft([1, 2, 3], weights=[1.0])], CE, None, r"Datum 2: weights has shape \(1,\); "),
    ([rl([1, 2], advantages=[0.0, NAN])], "ppo", None, r"advantages is nan at position \[1\]"),
    ([rl([1, 2], logprobs=[0.0, -INF])], IS, None, "logprobs is -inf at position"),
    ([sft([1, 2], advantages=[0.0] * 2)], CE, None, r"Datum 0 .*unknown \['advantages'\]"),
    ([GOOD], "gspo", None, r"missing \['advantages', 'logprobs'\]"),
    ([SEEN], CE, None, "Datum 0 contains a chunk that is not text"),
    ([GOOD], "mse", None, "Unknown loss 'mse'"),
    ([GOOD], "custom", None, "forward_backward_custom"),
    ([GOOD], CE, {"clip": 1}, "key 'clip'"),
    ([rl([1, 2])], "stable_reinforce", None, "Datum 0.* has no provenance"),
]


async def test_a_wrong_request_has_no_side_effect(training: Any, tiny_model: str) -> None:
    before = training.forward_backward([GOOD], CE)
    for data, loss_fn, config, text in REFUSED:
        for call in (training.forward, training.forward_backward):
            with pytest.raises(LossInputError, match=text) as refused:
                call(data, loss_fn, config)
            assert isinstance(refused.value, tinker.BadRequestError)
        with pytest.raises(LossInputError, match=text):
            await training.forward_backward_async(data, loss_fn, config)
    after = training.forward_backward([GOOD], CE)
    step = training.optim_step(ADAM)
    assert before.result().metrics == after.result().metrics
    twin = trainer_of(tiny_model, rank=4)
    twin.forward_backward([GOOD, GOOD], CE)
    expected = twin.optim_step(ADAM).result().metrics
    assert step.result().metrics == pytest.approx(expected, rel=1e-5)
    assert loss_of(training) == pytest.approx(loss_of(twin), rel=1e-4)


def test_custom_losses_have_the_same_checks(training: Any) -> None:
    def loss_fn(data: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        return torch.stack([row.sum() for row in logprobs]).sum(), {}

    bare = types.Datum(model_input=prompt())
    for data, text in (
        ([], "The data is empty"),
        ([GOOD, bare], "Datum 1 for a custom loss .*must include target_tokens"),
        ([sft([1, 300])], "Datum 0: model_input contains token id 300"),
    ):
        with pytest.raises(LossInputError, match=text):
            training.forward_backward_custom(data, loss_fn)
    with pytest.raises(LossInputError, match="loss_type_input"):
        training.forward_backward_custom([GOOD], loss_fn, loss_type_input="logits")
    odd = sft([1, 2], advantages=[5.0])  # custom losses may ignore other inputs
    assert training.forward_backward_custom([odd], loss_fn).result().metrics
    assert training.optim_step(ADAM).result().metrics


def test_a_wrong_optimizer_step_is_refused_and_keeps_the_gradient(training: Any) -> None:
    training.forward_backward([GOOD], CE)
    wrong: list[tuple[dict[str, float], str]] = [
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0; expected a number of 0 or more"),
        ({"beta2": 1.0}, "beta2=1.0; expected a number of at least 0 and less than 1"),
        ({"weight_decay": float("inf")}, "weight_decay=inf"),
    ]
    for adam, text in wrong:
        with pytest.raises(TrainingError, match=text) as caught:
            training.optim_step(types.AdamParams(**adam))
        assert isinstance(caught.value, tinker.RequestFailedError)
    assert training.optim_step(ADAM).result().metrics["optim/grad_norm"] > 0


PEFT = "merge it into its base model first \\(peft's merge_and_unload"
HOSTED = "tinker://0-1-2:train:0/sampler_weights/final"
OF_THE_SERVICE = "is a checkpoint on the hosted Tinker service"


def test_invalid_arguments_are_refused_when_the_method_is_called(
    training: Any, tiny_model: str, tmp_path: Path
) -> None:
    service: Any = tinker.ServiceClient()
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    attach_lora(model, 2, seed=0).save_pretrained(tmp_path / "adapter")
    adapter, for_sampler = str(tmp_path / "adapter"), training.save_weights_for_sampler
    start = service.create_lora_training_client
    resume = service.create_training_client_from_state
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: start(tiny_model, 0), TrainingError, "rank=0; expected a positive integer"),
        (lambda: start(tiny_model, 2.5), TrainingError, "rank=2.5; expected"),
        (lambda: training.save_state("x", -5), CheckpointError, "ttl_seconds .* is -5; expected"),
        (lambda: for_sampler("x", ttl_seconds=0), CheckpointError, "is 0; .* seconds, or None"),
        (lambda: training.save_weights_external("x", -1), CheckpointError, "is -1; expected"),
        (lambda: training.save_state("step 3"), CheckpointError, "step 3' is not a checkpoint"),
        (lambda: service.create_sampling_client(HOSTED), NoCheckpointError, OF_THE_SERVICE),
        (lambda: resume(HOSTED).result(), NoCheckpointError, OF_THE_SERVICE),
        (lambda: training.load_state(HOSTED).result(), NoCheckpointError, OF_THE_SERVICE),
        (lambda: service.create_sampling_client(adapter), CheckpointError, PEFT),
        (lambda: resume(adapter).result(), CheckpointError, PEFT),
        (lambda: start(adapter).result(), ModelNotFoundError, r"a LoRA adapter \(.* Merge"),
    ]
    for call, error, text in refused:
        with pytest.raises(error, match=text):
            call()


def rollout(client: Any, count: int = 3) -> list[types.Datum]:
    """Return data like the Cookbook's loop: sampled tokens with advantages and sequence ids."""
    start, data = prompt(5, 6, 7), []
    for i, reply in enumerate(sequences(client, 5, 6, 7, count=count, max_tokens=4)):
        length, name = len(reply.tokens), {"sequence_id": reply.sequence_id}
        inputs: Any = {
            "target_tokens": [0, 0, *reply.tokens],
            "logprobs": [0.0, 0.0, *reply.logprobs],
            "advantages": [0.0, 0.0, *[i - 1.0] * length],
        }
        text = types.EncodedTextChunk(tokens=reply.tokens[:-1])
        datum = types.Datum(model_input=start.append(text), loss_fn_inputs=inputs)
        prompted: Callable[..., Any] = types.PromptProvenanceSpan
        sampled: Callable[..., Any] = types.SampledProvenanceSpan
        read = [prompted(length=3, **name), sampled(length=length - 1, **name)]
        aimed_at = [prompted(offset=1, length=2, **name), sampled(length=length, **name)]
        data.append(datum.with_provenance(model_input=read, loss_fn_inputs=aimed_at))
    return data


def test_stable_reinforce_equals_importance_sampling_on_policy(
    training: Any, tiny_model: str, caplog: Logs
) -> None:
    warn_of_alpha.cache_clear()
    client = training.save_weights_and_get_sampling_client(record_stability_info=True).result()
    data = rollout(client)
    twin = trainer_of(tiny_model, rank=4)
    training.forward_backward(data, "stable_reinforce", {"kl_coeff": 0.3}).result()
    training.forward_backward(data, "stable_reinforce").result()
    twin.forward_backward(data, IS).result()
    twin.forward_backward(data, IS).result()
    metrics, expected = (client.optim_step(ADAM).result().metrics for client in (training, twin))
    assert metrics == pytest.approx(expected, rel=1e-3)
    assert caplog.text.count("stable_reinforce is in alpha") == 1
    assert "the service's formula is not public" in caplog.text


def test_stable_reinforce_requires_recorded_samples(training: Any) -> None:
    silent = snapshot(training)
    with pytest.raises(LossInputError, match="not recorded.*record_stability_info=True"):
        training.forward_backward(rollout(silent), "stable_reinforce")
    path = training.save_weights_for_sampler("x").result().path
    service: Any = tinker.ServiceClient()
    for client in (
        training.create_sampling_client(path, record_stability_info=True),
        service.create_sampling_client(path, record_stability_info=True),
    ):
        [datum] = rollout(client, 1)
        assert training.forward([datum], "stable_reinforce").result().metrics
    datum.loss_fn_inputs["advantages"].to_numpy()[0] = 1.0
    with pytest.raises(LossInputError, match="advantage on a target that was not sampled"):
        training.forward([datum], "stable_reinforce")


def test_gspo_reads_the_mask_of_its_ratio_from_the_datum(training: Any) -> None:
    client = snapshot(training)
    mask: Any = {"sequence_ratio_mask": torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0])}
    data = [types.Datum(d.model_input, {**d.loss_fn_inputs, **mask}) for d in rollout(client)]
    first = training.forward_backward(data, "gspo").result().metrics["loss:sum"]
    assert first == pytest.approx(0.0, abs=1e-4)  # the ratio is 1, and the advantages sum to 0
    training.optim_step(ADAM)
    second = training.forward_backward(data, "gspo").result().metrics["loss:sum"]
    assert second < first - 1e-3
