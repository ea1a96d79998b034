"""``evert rescore`` and ``evert export``, and the runs and evaluations that they read."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.kit import assistant, call, policy_of, system, tool, user
from tests.trainers.kit import Cli
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

import evert
from evert import ChatAgentGroupBuilder, Recorder, RolloutRecord, read_records
from evert.bridge.tokens.bases import register_with_cookbook
from evert.trainers.config.train import read_train_settings
from evert.trainers.system.files import read_jsonl
from evert.trainers.training.cookbook import cookbook_config

HERE = "tests.trainers.commands.test_records"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TASKS = [1, 2, 3]


async def agent(client: Any, task: int) -> float:
    """Make two calls that offer a tool, and return the task as the reward."""
    messages: list[Any] = [system("Add."), user(f"{task} + 1?")]
    for _ in range(2):
        completion = await call(client, *messages, tools=[tool("add")])
        messages += [completion.choices[0].message, user("Sure?")]
    return float(task)


async def with_few_shot_calls(client: Any, task: int) -> float:
    request = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    shown = {**assistant(""), "tool_calls": [request]}
    await call(client, user("?"), shown, {"role": "tool", "tool_call_id": "1", "content": "2"})
    return 1.0


async def record(path: Path, of: Any = agent) -> Path:
    """Record a group of two rollouts for each of the three tasks and return the folder."""
    recorder = Recorder(path / "rollouts.jsonl")
    policy = policy_of(lambda prompt: "Two." if "Sure?" in prompt else CALL)
    for task in TASKS:
        await do_group_rollout(ChatAgentGroupBuilder(of, task, 2, record=recorder), policy)
    return path


async def length(record: RolloutRecord) -> float:
    return len(record.messages()) + float(record.task == 3)


def broken(record: RolloutRecord) -> None:
    """A reward function that returns None."""


def raising(record: RolloutRecord) -> float:
    raise KeyError("x")


async def test_rescoring_shows_old_and_new_rewards(tmp_path: Path, cli: Cli) -> None:
    await record(tmp_path)
    shown = cli(f"rescore run={tmp_path} reward={HERE}:length show=2")
    assert "6 rollouts, 6 with a different reward" in shown
    [mean] = [line.split() for line in shown.splitlines() if "mean" in line]
    assert mean == ["mean", "2.000", "5.333"]
    assert shown.count(" -> ") == 2
    assert "1 -> 5  iteration 0, group 0, member 0  1" in shown
    rows = read_jsonl(tmp_path / "rescored.jsonl")
    assert [(row["old"], row["new"]) for row in rows] == [(1, 5)] * 2 + [(2, 5)] * 2 + [(3, 6)] * 2
    for reward, message in (
        ("broken", "The reward of rollout 0/0 is None"),
        ("raising", "The reward of rollout 0/0 raised KeyError: 'x' (at "),
        ("TASKS", "is a list; expected a function that takes a RolloutRecord and returns"),
    ):
        error = cli(f"rescore run={tmp_path} reward={HERE}:{reward}", status=1)
        assert error.startswith("error: ")
        assert message in error


def test_a_run_without_a_complete_rollout_is_refused(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rollouts.jsonl").write_text('{"evert_sch')
    rescored = cli(f"rescore run={tmp_path} reward={HERE}:length", status=1)
    assert "contains no complete rollouts" in rescored
    assert "no model was called" in cli(f"export run={tmp_path}", status=1)


async def test_an_export_trains_on_the_sampled_tokens(tmp_path: Path, cli: Cli) -> None:
    await record(tmp_path)
    out = tmp_path / "sft.jsonl"
    shown = cli(f"export run={tmp_path} min_reward=2 out={out}")
    assert "2 conversations from 4 rollouts (6 recorded)" in shown
    register_with_cookbook()
    how = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer="evert-tiny", renderer_name="qwen3_instruct", max_length=4096,
        batch_size=2,
    )  # fmt: skip
    dataset, _ = FromConversationFileBuilder(common_config=how, file_path=str(out))()
    trained = [
        [*datum.model_input.to_ints(), int(datum.loss_fn_inputs["target_tokens"].to_numpy()[-1])]
        for datum in dataset.get_batch(0)
    ]
    played = [[*r.prompts[-1], *r.action(1).tokens] for r in read_records(tmp_path)]
    assert sorted(trained) == sorted([played[2], played[4]])


async def test_conversations_that_are_not_only_text_are_left_out(tmp_path: Path, cli: Cli) -> None:
    await record(tmp_path, with_few_shot_calls)
    out = tmp_path / "sft.jsonl"
    shown = cli(f"export run={tmp_path} out={out}", status=1)
    assert "Could not make a conversation from any of 6 rollouts" in shown
    await record(tmp_path)
    assert (
        "skipped: 6. First reason: The conversation that ends with turn 0 cannot be exported"
        in cli(f"export run={tmp_path} out={out} unique=False")
    )
    shown = cli(f"export run={tmp_path} out={out} min_reward=9", status=1)
    assert "None of the 12 rollouts reaches min_reward=9" in shown


async def record_groups(path: Path) -> Path:
    """Record two groups of three. The second replies differ in one group and agree in the other."""
    recorder = Recorder(path / "rollouts.jsonl")
    for task, says in ((2, ["No.", "Two.", "Perhaps."]), (3, ["Yes."] * 3)):
        replies = iter(says)

        def reply(prompt: str, replies: Any = replies) -> str:
            return str(next(replies)) if "Sure?" in prompt else CALL

        group = ChatAgentGroupBuilder(said, task, 3, record=recorder)
        await do_group_rollout(group, policy_of(reply))
    return path


async def said(client: Any, task: int) -> float:
    """Offer a tool, send back its result, and reward the reply "Two."."""
    messages: list[Any] = [system("Add."), user(f"{task} + 1?")]
    completion = await call(client, *messages, tools=[tool("add")])
    reply = completion.choices[0].message
    called = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "3"}
    messages += [reply, called, user("Sure?")]
    completion = await call(client, *messages, tools=[tool("add")])
    return float(completion.choices[0].message.content == "Two.")


async def test_pairs_are_the_best_and_worst_rollout_of_a_group(tmp_path: Path, cli: Cli) -> None:
    await record_groups(tmp_path)
    out = tmp_path / "pairs"
    shown = cli(f"export run={tmp_path} format=pairs out={out}")
    assert "1 pairs from 6 rollouts (6 recorded)" in shown
    [pair] = read_jsonl(out / "train.jsonl")
    assert pair["chosen"] == [assistant("Two.")]
    assert pair["rejected"][0]["content"] in ("No.", "Perhaps.")
    roles = [message["role"] for message in pair["prompt"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert CALL in pair["prompt"][2]["content"]
    assert (pair["chosen_reward"], pair["rejected_reward"]) == (1, 0)
    await record(tmp_path / "alike")
    shown = cli(f"export run={tmp_path}/alike format=pairs out={out}", status=1)
    assert "There are no pairs to export" in shown


async def test_trajectories_have_calls_results_and_sampled_tokens(tmp_path: Path, cli: Cli) -> None:
    await record_groups(tmp_path)
    cli(f"export run={tmp_path} format=atif out={tmp_path}/atif")
    written = [json.loads(f.read_text()) for f in sorted((tmp_path / "atif").iterdir())]
    for played, record in zip(written, read_records(tmp_path), strict=True):
        sources = [step["source"] for step in played["steps"]]
        assert sources == ["system", "user", "agent", "user", "agent"]
        first, second = (step for step in played["steps"] if step["source"] == "agent")
        assert first["tool_calls"][0]["arguments"] == {"a": 1}
        assert first["observation"]["results"][0]["content"] == "3"
        for turn, step in enumerate((first, second)):
            assert step["metrics"]["completion_token_ids"] == [*record.action(turn).tokens]
            assert step["metrics"]["logprobs"] == record.action(turn).maybe_logprobs
            assert step["metrics"]["prompt_tokens"] == len(record.prompts[turn])
        assert played["extra"]["reward"] == record.reward


async def test_exporting_again_removes_the_trajectories_of_the_first_export(
    tmp_path: Path, cli: Cli
) -> None:
    await record_groups(tmp_path)
    out = tmp_path / "atif"
    cli(f"export run={tmp_path} format=atif out={out}")
    (out / "notes.json").write_text("{}")
    cli(f"export run={tmp_path} format=atif out={out} min_reward=1")
    assert sorted(file.name for file in out.iterdir()) == ["000000.json", "notes.json"]


@pytest.mark.parametrize("form", ["sft", "atif"])
async def test_an_export_into_a_file_is_refused(form: str, tmp_path: Path, cli: Cli) -> None:
    await record_groups(tmp_path)
    file = tmp_path / "notes"
    file.write_text("mine")
    error = cli(f"export run={tmp_path} format={form} out={file}", status=1)
    assert error.startswith(f"error: {file} cannot be used: File exists.")
    assert file.read_text() == "mine"


async def test_a_run_records_only_its_training_rollouts(tmp_path: Path) -> None:
    settings = {"env": "identity", "record": True, "batch_size": 2, "steps": 2}
    config = cookbook_config(read_train_settings(settings, {}), tmp_path, embedded=True)
    train, test = await config.dataset_builder()
    assert test is not None
    for builder in [*train.get_batch(1), *test.get_batch(0)[:1]]:
        await do_group_rollout(builder, policy_of(lambda prompt: "I am 7."))
    assert [file.name for file in (tmp_path / "rollouts").iterdir()] == ["000001.jsonl"]
    records = [*read_records(tmp_path)]
    played = [(r.row["iteration"], r.row["group_idx"]) for r in records]
    assert played == [(1, 0)] * 8 + [(1, 1)] * 8
    plain = read_train_settings(settings | {"record": False}, {})
    off: Any = cookbook_config(plain, tmp_path, embedded=True)
    assert off.dataset_builder.record is None


@pytest.mark.parametrize(
    ("share", "batch", "recorded"), [(0.1, 4, [0]), (0.1, 21, [0, 10, 20]), (0.5, 5, [0, 2, 4])]
)
async def test_a_fraction_of_each_steps_groups_is_recorded_but_at_least_one(
    share: float, batch: int, recorded: list[int], tmp_path: Path
) -> None:
    settings = {"env": "identity", "batch_size": batch, "steps": 1, "record": share}
    config: Any = cookbook_config(read_train_settings(settings, {}), tmp_path, embedded=True)
    train, _ = await config.dataset_builder()
    assert [place for place, group in enumerate(train.get_batch(0)) if group.record] == recorded


@pytest.mark.parametrize("share", ["1.5", "-1", "some"])
def test_an_invalid_fraction_is_refused(share: str, cli: Cli) -> None:
    cli(f"train env=identity record={share}", status=1)


async def test_rollouts_of_a_users_own_loop_are_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "step-3.jsonl")
    batch = await evert.rollout(agent, TASKS, policy_of(), group_size=2, record=recorder)
    records = sorted(read_records(recorder.path), key=lambda record: str(record.task))
    assert [record.reward for record in records] == batch.rewards.flatten().tolist()


def test_an_evaluation_records_its_rollouts(tmp_path: Path, cli: Cli) -> None:
    plays = f"evaluate agent={HERE}:agent test_tasks={HERE}:TASKS models=evert-tiny max_tokens=4"
    cli(f"{plays} seeds=2 record=True out={tmp_path}")
    about = [record.row["about"] for record in read_records(tmp_path)]
    played = sorted((row["task_number"], row["seed"]) for row in about)
    assert played == [*itertools.product(range(3), range(2))]
    assert {row["model"] for row in about} == {"evert-tiny"}
