"""Checks for servers that return token ids: llama.cpp's in CI, vLLM's by hand."""

import asyncio
import csv
from pathlib import Path

import tinker
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, embedded_engine
from evert.bridge.tokens.bases import base_tokenizer
from evert.envs.guess_number import TRAIN_TASKS, guess_number_agent
from evert.envs.identity import identity_agent
from evert.trainers.commands import evaluate
from evert.trainers.serving.policy import ServedPolicy
from evert.trainers.system.files import SCORES

TOLERANCE = 1e-3
"""Tolerance for log-probabilities, in nats."""


def played(base_url: str, episodes: int, temperature: float = 1.0) -> list[Trajectory]:
    """Play episodes concurrently, half of them in each of the two games."""
    policy = ServedPolicy(
        base_url,
        "evert-tiny",
        max_tokens=16,
        temperature=temperature,
        seed=1,
        tokenizer=base_tokenizer(),
    )
    half = episodes // 2
    envs = [ChatAgentEnv(identity_agent, task) for task in range(half)]
    envs += [ChatAgentEnv(guess_number_agent, TRAIN_TASKS[task]) for task in range(half)]

    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*[do_single_rollout(policy, env) for env in envs])

    return asyncio.run(all_of_them())


def largest_difference(trajectories: list[Trajectory], store: Path) -> tuple[float, int]:
    """Return the largest difference from the engine's log-probabilities, and the token count."""
    worst, count = 0.0, 0
    with embedded_engine(store, device="cpu", threads=1):
        client = tinker.ServiceClient().create_sampling_client(base_model="evert-tiny")
        for trajectory in trajectories:
            for turn in trajectory.transitions:
                prompt = turn.ob.to_ints()
                whole = tinker.ModelInput.from_ints([*prompt, *turn.ac.tokens])
                own = client.compute_logprobs(whole).result()[len(prompt) :]
                pairs = zip(own, turn.ac.logprobs, strict=True)
                worst = max([worst, *(abs((a or 0.0) - b) for a, b in pairs)])
                count += len(own)
    return worst, count


def evaluated(base_url: str, out: Path, *settings: str) -> dict[str, dict[str, str]]:
    """Evaluate the base model on server and engine; return the table's rows by model."""
    names = [f"vllm:{base_url}#evert-tiny", "evert-tiny"]
    arguments = ["env=identity", f"models={','.join(names)}", "split=test", f"out={out}", *settings]
    assert evaluate.main(arguments) == 0
    with (out / SCORES).open() as file:
        rows = {row.pop("model"): row for row in csv.DictReader(file)}
    for row in rows.values():
        del row["split"], row["category"]
    return {"served": rows[names[0]], "engine": rows[names[1]]}


def check_log_probabilities(base_url: str, store: Path, episodes: int, temperature: float) -> str:
    """Assert that the server's log-probabilities match the engine's; return a summary."""
    trajectories = played(base_url, episodes, temperature)
    worst, count = largest_difference(trajectories, store)

    assert len(trajectories) == episodes
    assert count > 4 * episodes
    assert worst < TOLERANCE
    return f"temperature {temperature}: at most {worst:.1e} apart in {count} tokens"
