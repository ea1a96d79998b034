"""What evert needs from a Tinker service: sampling, checkpoints, training and resuming."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tinker

PROMPT = tinker.ModelInput.from_ints([5, 6, 7])
pytestmark = [
    pytest.mark.timeout(1800),  # a server may spend several minutes compiling
    pytest.mark.filterwarnings("default"),  # the SDK deprecates features that its servers need
]


def sampled(
    client: tinker.SamplingClient, count: int = 1, **params: Any
) -> list[tinker.SampledSequence]:
    """Sample replies to the prompt from the service."""
    given = tinker.SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **params})
    future = client.sample(prompt=PROMPT, num_samples=count, sampling_params=given)
    return [*future.result().sequences]


def greedy(client: tinker.SamplingClient) -> list[int]:
    return sampled(client)[0].tokens


@pytest.fixture(scope="module")
def sampler(trained: tinker.TrainingClient) -> tinker.SamplingClient:
    return trained.save_weights_and_get_sampling_client().result()


def test_the_requested_number_of_sequences_is_returned_with_correct_logprobs(
    sampler: tinker.SamplingClient,
) -> None:
    sequences = sampled(sampler, 3, max_tokens=6, temperature=1.0)

    assert len(sequences) == 3
    for sequence in sequences:
        whole = tinker.ModelInput.from_ints([*PROMPT.to_ints(), *sequence.tokens])
        again = sampler.compute_logprobs(whole).result()

        assert 1 <= len(sequence.tokens) <= 6
        assert sequence.logprobs is not None
        assert len(sequence.logprobs) == len(sequence.tokens)
        assert all(logprob <= 0 for logprob in sequence.logprobs)
        assert again[PROMPT.length :] == pytest.approx(sequence.logprobs, abs=0.05)


def test_a_reply_ends_at_a_stop_token(sampler: tinker.SamplingClient) -> None:
    first = greedy(sampler)[0]
    [sequence] = sampled(sampler, stop=[first])

    assert (sequence.tokens, sequence.stop_reason) == ([first], "stop")


def test_saved_weights_can_be_sampled_by_their_path(
    service: tinker.ServiceClient, trained: tinker.TrainingClient, sampler: tinker.SamplingClient
) -> None:
    saved = trained.save_weights_for_sampler("contract").result()
    again = service.create_sampling_client(model_path=saved.path).result()

    assert greedy(again) == greedy(sampler)


def test_training_continues_from_a_saved_state(
    service: tinker.ServiceClient, trained: tinker.TrainingClient, sampler: tinker.SamplingClient
) -> None:
    saved = trained.save_state("contract-state").result()
    again = service.create_training_client_from_state_with_optimizer(saved.path)
    client = again.save_weights_and_get_sampling_client().result()

    assert greedy(client) == greedy(sampler)


def test_identity_trains_two_steps_and_is_resumed_for_a_third(
    base_url: str, model: str, renderer: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = [
        "env=identity", "engine=service", f"base_url={base_url}", f"model_name={model}",
        f"renderer_name={renderer}", "batch_size=4", "group_size=4", "lora_rank=8",
        "max_tokens=16", "test_tasks=", "samples=0", "eval_every=0", "save_every=1",
    ]  # fmt: skip

    def steps_of_training(steps: int) -> list[int]:
        command = [sys.executable, "-m", "evert.trainers.cli", "train", f"log_path={run}"]
        subprocess.run([*command, *settings, f"steps={steps}"], check=True)  # closes its session
        rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
        return [row["step"] for row in rows if "env/all/reward/total" in row]

    assert steps_of_training(2) == [0, 1]
    assert steps_of_training(3) == [0, 1, 2]
