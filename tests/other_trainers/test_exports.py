"""``datasets`` can read the files written by ``evert export``, and TRL can train on them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from tinker_cookbook.rl.rollouts import do_group_rollout
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from evert import ChatAgentGroupBuilder, Recorder, ScriptedPolicy, read_records
from evert.bridge.tokens.bases import base_path
from evert.trainers import cli

pytestmark = pytest.mark.filterwarnings("default")  # warnings of TRL and its dependencies

TASKS = range(4)
TRAINERS = {"sft": (SFTTrainer, SFTConfig), "pairs": (DPOTrainer, DPOConfig)}


async def agent(client: Any, task: int) -> float:
    """Make two calls. The second reply determines the reward."""
    messages: list[Any] = [{"role": "user", "content": f"Say {task}."}]
    for _ in range(2):
        completion = await client.chat.completions.create(messages=messages)
        said = completion.choices[0].message.content
        messages += [completion.choices[0].message, {"role": "user", "content": "Sure?"}]
    return float(said == str(task))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record two rollouts per task, one right and one wrong, and return the folder."""
    path = tmp_path_factory.mktemp("run")
    recorder = Recorder(path / "rollouts.jsonl")
    for task in TASKS:
        replies = iter([str(task), str(task), str(task), "no"])
        policy = ScriptedPolicy(lambda prompt, replies=replies: next(replies))  # type: ignore[misc]
        builder = ChatAgentGroupBuilder(agent, task, 2, record=recorder)
        asyncio.run(do_group_rollout(builder, policy))
    return path


@pytest.mark.parametrize(("form", "rows"), [("sft", 8), ("pairs", 4)])
def test_trl_trains_on_an_export(form: str, rows: int, run: Path, tmp_path: Path) -> None:
    out = tmp_path / form
    assert cli.main(["export", f"run={run}", f"format={form}", f"out={out}"]) == 0
    dataset = load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(dataset) == rows
    if form == "sft":
        told = [[turn["content"] for turn in row["messages"]] for row in dataset]
        played = [[turn["content"] for turn in r.messages()] for r in read_records(run)]
        assert sorted(told) == sorted(played)
    trainer, config = TRAINERS[form]
    how = config(
        output_dir=str(tmp_path / "trained"), max_steps=2, per_device_train_batch_size=2,
        report_to=[], use_cpu=True, bf16=False, save_strategy="no", logging_steps=1,
    )  # fmt: skip
    made: Any = trainer(model=str(base_path()), args=how, train_dataset=dataset)
    made.train()
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert len(losses) == 2
    assert all(loss > 0 for loss in losses)
