"""evert's agents under verl, played by its own workers and trained by its own ``main_ppo``.

Each output's ids, masks and log-probabilities match the Cookbook's data, token by token.
"""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from tinker_cookbook.completers import TinkerTokenCompleter, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory
from transformers import AutoTokenizer
from verl.experimental.agent_loop import agent_loop as of_verl
from verl.protocol import DataProto
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

import evert
from evert import ChatAgentEnv, ScriptedPolicy
from evert.bridge.groups.group import sort_by_lineage
from evert.bridge.tokens.bases import base_path, default_renderer
from evert.envs.guess_number import guess_number_agent
from evert.envs.identity import identity_agent
from evert.trainers.integrations.verl.dataset import task_of
from evert.trainers.integrations.verl.servers import ServerPolicy
from evert.trainers.integrations.verl.settings import Room
from evert.verl import write_dataset

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "verl_on_cpu"
TASKS = [17, 512, 900, 3]


# -- the verl side -------------------------------------------------------------------------------


def verl_config(folder: Path, *overrides: str, **loop: Any) -> DictConfig:
    """Return verl's own configuration with one agent loop."""
    loops = [{"name": "evert", "_target_": "evert.verl.EvertAgentLoop", **loop}]
    (folder / "loops.yaml").write_text(json.dumps(loops))
    given = [
        f"actor_rollout_ref.model.path={base_path()}",
        "actor_rollout_ref.rollout.name=vllm",
        "data.max_prompt_length=96",
        "data.max_response_length=448",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder / 'loops.yaml'}",
        "actor_rollout_ref.rollout.agent.default_agent_loop=evert",
        *overrides,
    ]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=given)
    OmegaConf.resolve(config)
    return config


class Servers(LLMServerClient):
    """verl's servers, with a policy in place of the model. They record requests and answers."""

    def __init__(self, config: DictConfig, policy: TokenCompleter, version: int = 7) -> None:
        super().__init__(config)
        self.given = config
        self.policy = policy
        self.version = version
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[tuple[int, ...], list[TokensWithLogprobs]] = {}

    async def generate(self, request_id: str, **asked: Any) -> TokenOutput:  # type: ignore[override]
        self.asked.append({"request_id": request_id, **asked})
        ids, params = asked["prompt_ids"], asked["sampling_params"]
        said = await self.policy(
            tinker.ModelInput.from_ints(ids),
            params.get("stop") or params["stop_token_ids"],
            max_tokens=params["max_tokens"],
        )
        self.answers.setdefault(tuple(ids), []).append(said)
        return TokenOutput(
            token_ids=said.tokens,
            log_probs=said.maybe_logprobs if params["logprobs"] else None,
            stop_reason="completed",
            extra_fields={"min_global_steps": self.version, "max_global_steps": self.version},
        )


class Said(TokenCompleter):
    """A policy that replays the servers' responses."""

    def __init__(self, servers: Servers) -> None:
        self._left = {prompt: list(said) for prompt, said in servers.answers.items()}

    async def __call__(self, model_input: Any, stop: Any, **_: Any) -> TokensWithLogprobs:
        return self._left[tuple(model_input.to_ints())].pop(0)


class Scripted(TokenCompleter):
    """A policy that always gives the same reply, but with log-probabilities that all differ."""

    def __init__(self, reply: str = "Fine.") -> None:
        self._policy = ScriptedPolicy(lambda prompt: reply)
        self._numbers = itertools.count(1)

    async def __call__(self, *args: Any, **options: Any) -> TokensWithLogprobs:
        said = await self._policy(*args, **options)
        logprobs = [-next(self._numbers) / 64 for _ in said.tokens]
        return TokensWithLogprobs(said.tokens, logprobs, said.stop_reason)


def row(task: Any, **more: Any) -> dict[str, Any]:
    info = {"index": 0, "task_json": json.dumps(task)}
    return {"raw_prompt": [{"role": "user", "content": "-"}], "extra_info": info} | more


async def batch_of(servers: Servers, *rows: dict[str, Any]) -> DataProto:
    """Return the batch that verl's worker makes from these rows."""
    names = {name: [each[name] for each in rows] for name in rows[0]}
    columns = {name: np.empty(len(rows), dtype=object) for name in names}
    for name, values in names.items():
        columns[name][:] = values
    batch = DataProto.from_dict(
        tensors={"dummy": torch.zeros(len(rows), 1)},
        non_tensors=columns,
        meta_info={"validate": False, "global_steps": 8},
    )
    return await of_verl.AgentLoopWorker(servers.given, servers).generate_sequences(batch)


async def outputs_of(servers: Servers, task: Any) -> Any:
    """Return the output of an agent loop created the way verl's V1 worker creates it."""
    servers.given.transfer_queue.enable = True
    worker = of_verl.AgentLoopWorker(servers.given, servers)
    found: list[Any] = []

    async def kept(output: Any, validate: bool, **_: Any) -> None:
        found.append(output)

    worker._agent_loop_postprocess = kept
    trajectory = {"step": 8, "sample_index": 0, "rollout_n": 0, "validate": False}
    params = {"temperature": 1.0, "logprobs": True}
    await worker._run_agent_loop(
        params, trajectory, agent_name="evert", trace=False, **row(task, global_steps=8)
    )
    return found[0]


# -- the Cookbook side ---------------------------------------------------------------------------


async def cookbook_data(agent: Any, task: Any, said: Said) -> tuple[Trajectory, list[tinker.Datum]]:
    """Play the same episode with the Cookbook's runner; return its training data."""
    env = ChatAgentEnv(agent, task, renderer=default_renderer())
    trajectory = await do_single_rollout(said, env)
    sort_by_lineage(trajectory, env.turn_lineages)
    return trajectory, trajectory_to_data(trajectory, 1.0)


def of_datum(datum: tinker.Datum) -> dict[str, list[float]]:
    fields = ("target_tokens", "mask", "logprobs")
    values = {name: datum.loss_fn_inputs[name].to_numpy().tolist() for name in fields}
    return {"tokens": datum.model_input.to_ints(), **values}


def of_output(
    prompt: list[int], response: list[int], mask: list[int], logprobs: list[float]
) -> dict[str, list[float]]:
    """Return verl's output as a datum, in which each position's target is the next token."""
    before = [0.0] * (len(prompt) - 1)
    ids = [*prompt, *response]
    return {
        "tokens": ids[:-1],
        "target_tokens": ids[1:],
        "mask": [*before, *mask],
        "logprobs": [*before, *logprobs],
    }


def of_row(batch: DataProto, index: int) -> dict[str, list[float]]:
    """Return a row of verl's tensors without padding."""
    tensors = {name: tensor[index] for name, tensor in batch.batch.items()}
    width = len(tensors["prompts"])
    seen = tensors["attention_mask"].bool()
    before, after = seen[:width], seen[width:]
    return of_output(
        tensors["prompts"][before].tolist(),
        tensors["responses"][after].tolist(),
        tensors["response_mask"][after].tolist(),
        tensors["rollout_log_probs"][after].tolist(),
    )


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Servers]:
    """Return a function that creates verl's servers for an agent from ``verl_agents``."""
    monkeypatch.syspath_prepend(Path(__file__).parent)

    def made(name: str, *overrides: str, reply: str = "Fine.", **loop: Any) -> Servers:
        given = {"agent": f"verl_agents:{name}", "renderer_name": "qwen3_instruct", **loop}
        return Servers(verl_config(tmp_path, *overrides, **given), Scripted(reply))

    return made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TokenCompleter]:
    """Yield a completer for the bundled base model on evert's engine."""
    with evert.embedded_engine(tmp_path, device="cpu", threads=1):
        client = tinker.ServiceClient().create_sampling_client(base_model="evert-tiny")
        yield TinkerTokenCompleter(client, max_tokens=16)


# -- comparison with the Cookbook's data ---------------------------------------------------------

Made = Callable[..., Servers]


@pytest.mark.parametrize("agent", [identity_agent, guess_number_agent])
async def test_an_output_equals_the_cookbooks_datum_token_by_token(
    agent: Any, engine: TokenCompleter, tmp_path: Path
) -> None:
    path = f"{agent.__module__}:{agent.__name__}"
    config = verl_config(tmp_path, agent=path, renderer_name="qwen3_instruct")
    asked = Servers(config, engine)

    for task in TASKS:
        asked.answers.clear()
        batch = await batch_of(asked, row(task))

        trajectory, [datum] = await cookbook_data(agent, task, Said(asked))
        rewards = [turn.reward for turn in trajectory.transitions]
        assert of_row(batch, 0) == of_datum(datum)
        assert float(batch.batch["rm_scores"].sum()) == sum(rewards)
        [found] = batch.non_tensor_batch["turn_scores"]
        assert found == rewards
        assert batch.non_tensor_batch["__num_turns__"].tolist() == [2 * len(rewards)]
        assert batch.non_tensor_batch["min_global_steps"].tolist() == [7]


async def test_all_turns_of_an_episode_go_to_the_same_server(servers: Made) -> None:
    given = servers("two_talks")

    await batch_of(given, row(0), row(1))

    asked = [each["request_id"] for each in given.asked]
    assert len(asked) == 8
    assert len(set(asked)) == 2


async def test_an_output_records_the_oldest_and_newest_weights_of_its_episode(
    servers: Made,
) -> None:
    given = servers("two_talks")
    generate = given.generate

    async def renewed(**asked: Any) -> TokenOutput:
        given.version += 1
        return await generate(**asked)

    given.generate = renewed  # type: ignore[method-assign]
    fields = [output.extra_fields for output in await outputs_of(given, 1)]

    assert [each["min_global_steps"] for each in fields] == [8, 8]
    assert [each["max_global_steps"] for each in fields] == [11, 11]


async def test_stop_texts_do_not_replace_the_end_of_turn_token(servers: Made) -> None:
    given = servers("stops_at_lines", reply="Fine.\nAnd you?")

    batch = await batch_of(given, row(0, extra_info={"index": 0}))

    [asked] = [each["sampling_params"] for each in given.asked]
    [end] = asked["stop_token_ids"]
    assert AutoTokenizer.from_pretrained(base_path()).decode([end]) == "<|im_end|>"
    assert asked["stop"] == ["\n"]
    assert float(batch.batch["rm_scores"].sum()) == 1.0


async def test_outputs_have_no_log_probabilities_if_verl_computes_none(servers: Made) -> None:
    off = "actor_rollout_ref.rollout.calculate_log_probs=False"

    batch = await batch_of(servers("two_talks", off), row(0))

    assert "rollout_log_probs" not in batch.batch


# -- lineages ------------------------------------------------------------------------------------


async def cookbooks(name: str, task: Any, given: Servers) -> list[dict[str, list[float]]]:
    """Return the Cookbook's data for the same episode."""
    import verl_agents

    _, data = await cookbook_data(getattr(verl_agents, name), task, Said(given))
    return [of_datum(datum) for datum in data]


def of_outputs(found: Any) -> list[dict[str, list[float]]]:
    return [
        of_output(each.prompt_ids, each.response_ids, each.response_mask, each.response_logprobs)
        for each in found
    ]


@pytest.mark.parametrize(("name", "turns"), [("two_talks", 4), ("calls_at_once", 2)])
async def test_each_lineage_is_an_output_with_the_full_reward(
    servers: Made, name: str, turns: int
) -> None:
    given = servers(name)

    found = await outputs_of(given, 1)

    assert of_outputs(found) == await cookbooks(name, 1, given)
    assert [each.reward_score for each in found] == [1.25, 1.25]
    assert [each.extra_fields["reward_extra_info"] for each in found] == [
        {"turns": turns, "lineages": 2, "lineages_left_out": 0}
    ] * 2


async def test_the_part_of_a_later_prompt_over_the_limit_starts_the_response_unmasked(
    servers: Made,
) -> None:
    given = servers("short_and_long")

    found = await outputs_of(given, 100)

    assert of_outputs(found) == await cookbooks("short_and_long", 100, given)
    assert len(found[0].prompt_ids) < len(found[1].prompt_ids) == 96
    assert found[1].response_mask[0] == 0


@pytest.mark.parametrize("takes_lists", [True, False])
async def test_if_only_the_last_lineage_is_kept_the_number_left_out_is_reported(
    servers: Made, takes_lists: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = servers("two_talks", **({"branches": "last"} if takes_lists else {}))

    if takes_lists:
        info = (await outputs_of(given, 1)).extra_fields["reward_extra_info"]
    else:
        batch = await batch_of(given, row(1))
        info = {name: batch.non_tensor_batch[name][0] for name in ("lineages", "lineages_left_out")}

    assert (info["lineages"], info["lineages_left_out"]) == (2, 1)
    assert "1 lineages of an episode are not trained on" in caplog.text


# -- refused settings, and how episodes end ------------------------------------------------------


@pytest.mark.parametrize("length", [100, 1000])
async def test_a_first_prompt_over_verls_limit_is_refused_before_sampling(
    servers: Made, length: int
) -> None:
    given = servers("wordy")

    with pytest.raises(evert.EvertError, match=r"\d+ tokens.*data.max_prompt_length=96. Raise"):
        await batch_of(given, row(length))

    assert given.asked == []


ROUTED = "actor_rollout_ref.rollout.enable_rollout_routing_replay=True"


@pytest.mark.parametrize(
    ("overrides", "settings", "message"),
    [
        ([], {"seats": ["a", "b"]}, "which trains one policy"),
        ([], {"branches": "all"}, "Only verl's V1 trainers accept several"),
        ([], {"branches": "some"}, "branches is 'some'; expected 'all' or 'last'"),
        ([], {"policy_name": "gpt-4o"}, "Did you mean 'policy_names'"),
        ([], {"limits": {"max_turn": 3}}, "Did you mean 'limits.max_turns'"),
        ([], {"models": {"judge": "evert-tiny"}}, "verl's workers have no engine to"),
        ([], {"agent": "verl_agents:nobody"}, "No agent at 'verl_agents:nobody'"),
        ([], {"task": "extra_info.question"}, "has no 'extra_info.question'; it has .*task_json"),
        ([ROUTED], {}, "does not pass the expert routing"),
    ],
)
async def test_an_unsupported_setting_is_refused_with_the_reason(
    servers: Made, overrides: list[str], settings: dict[str, Any], message: str
) -> None:
    given = servers("two_talks", *overrides, **settings)

    with pytest.raises(Exception, match=message):  # Hydra raises its own error
        await batch_of(given, row(0))


async def test_images_are_refused(servers: Made) -> None:
    given = servers("two_talks")
    policy = ServerPolicy(given, "1", {}, Room(96, 448, 544), None)
    image = tinker.types.ImageChunk(data=b"png", format="png", expected_tokens=3)

    with pytest.raises(evert.UnsupportedPromptError, match="can only send token ids to verl"):
        await policy(tinker.ModelInput(chunks=[image]), [5])

    assert given.asked == []


async def test_an_agent_that_raises_fails_its_episode(servers: Made) -> None:
    with pytest.raises(evert.AgentError, match="raised KeyError after 1 model calls"):
        await outputs_of(servers("odd_tasks_fail"), 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_agent_that_raises_can_be_scored(servers: Made) -> None:
    batch = await batch_of(servers("odd_tasks_fail", on_agent_error=-1.0), row(0), row(1))

    assert batch.batch["rm_scores"].sum(-1).tolist() == [1.0, -1.0]
    assert batch.batch["response_mask"].sum(-1).min() > 0
    assert batch.non_tensor_batch["stop_reason"].tolist() == ["completed", "agent_error"]


async def test_a_reply_that_the_server_aborts_fails_its_episode(servers: Made) -> None:
    given = servers("two_talks")

    async def generate(request_id: str, **_: Any) -> TokenOutput:
        return TokenOutput(token_ids=[5], log_probs=[-1.0], stop_reason="aborted")

    given.generate = generate  # type: ignore[method-assign]
    with pytest.raises(evert.EvertError, match="aborted a reply after 1 tokens"):
        await outputs_of(given, 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_episode_without_a_call_counts_but_trains_no_token(servers: Made) -> None:
    [output] = await outputs_of(servers("silent"), 1)

    assert output.response_mask == [0]
    assert output.response_logprobs == [0.0]
    assert output.reward_score == 0.5
    assert output.extra_fields["min_global_steps"] == 7


@pytest.mark.parametrize(
    ("settings", "turns"),
    [
        ({}, 1),
        ({"limits": {"max_turns": 2}}, 2),
        ({"limits": {"max_turns": 9}}, 3),
        ({"limits": {"max_turns": 9}, "context_length": 200}, 3),
        ({"limits": {"max_turns": 9}, "context_length": 40}, 2),
    ],
)
async def test_limits_in_the_yaml_override_the_agents_and_the_shorter_context_applies(
    servers: Made, settings: dict[str, Any], turns: int
) -> None:
    [output] = await outputs_of(servers("brief", **settings), 1)

    assert output.extra_fields["reward_extra_info"]["turns"] == turns


async def test_a_conversation_that_grows_too_long_ends_within_verls_limits(servers: Made) -> None:
    batch = await batch_of(servers("talks_on"), row(0))

    assert batch.batch["responses"].shape == (1, 448)
    assert batch.batch["prompts"].shape == (1, 96)
    assert 440 < int(batch.batch["attention_mask"][0, 96:].sum()) <= 448
    assert batch.non_tensor_batch["stop_reason"].tolist() == ["max_tokens"]
    assert float(batch.batch["rm_scores"].sum()) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("agent", "path", "given", "reward"),
    [
        ("tells_its_task", None, row(0.75), 0.75),
        ("tells_its_task", "row", {**row(None), "extra_info": {"wanted": 0.5}}, 0.5),
        (
            "tells_its_task",
            "extra_info.wanted",
            {**row(None), "extra_info": {"wanted": 0.25}},
            0.25,
        ),
        ("without_a_task", None, row(0, extra_info={"index": 0}), 1.0),
    ],
)
async def test_the_task_comes_from_the_field_chosen_in_the_yaml(
    servers: Made, agent: str, path: str | None, given: dict[str, Any], reward: float
) -> None:
    batch = await batch_of(servers(agent, task=path), given)

    assert float(batch.batch["rm_scores"].sum()) == reward


# -- datasets ------------------------------------------------------------------------------------


def test_verl_reads_tasks_back_unchanged(tmp_path: Path) -> None:
    tasks: list[Any] = [3, "three", {"a": [1, None]}, {"b": 2.5}, [True]]
    write_dataset(tmp_path / "tasks.parquet", tasks, agent_name="mine", data_source="test")
    config = OmegaConf.create({"max_prompt_length": 64, "cache_dir": str(tmp_path / "cache")})
    tokenizer = AutoTokenizer.from_pretrained(base_path())

    dataset = RLHFDataset(str(tmp_path / "tasks.parquet"), tokenizer, config)

    rows = [dataset[index] for index in range(len(dataset))]
    assert [task_of(each, None) for each in rows] == tasks
    assert [each["index"] for each in rows] == list(range(5))
    assert {(each["agent_name"], each["data_source"]) for each in rows} == {("mine", "test")}


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "requires at least one task"),
        ([(1, 2)], r"Task 0, \(1, 2\), changes in a JSON round trip"),
        ([0, {1, 2}], r"Task 1, \{1, 2\}, is not JSON-serializable"),
        ("no.such:TASKS", "No tasks at 'no.such:TASKS'"),
    ],
)
def test_tasks_that_could_not_be_read_back_are_refused(
    tasks: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(evert.InvalidDatasetError, match=message):
        write_dataset(tmp_path / "tasks.parquet", tasks)


# -- main_ppo ------------------------------------------------------------------------------------

LOOPS = {
    "identity": {"agent": "evert.envs.identity:identity_agent"},
    "guess_number": {"agent": "evert.envs.guess_number:guess_number_agent"},
    "two_talks": {"agent": "verl_agents:two_talks"},
    "odd_tasks_fail": {"agent": "verl_agents:odd_tasks_fail"},
}


def files_for(folder: Path) -> tuple[Path, str]:
    """Write a YAML file with all loops, and two tasks per loop. Each task's row names its loop."""
    folder.mkdir()
    shared = {
        "_target_": "evert.verl.EvertAgentLoop",
        "renderer_name": "qwen3_instruct",
        "limits": {"max_turn_tokens": 16},
    }
    loops = [{"name": name, **shared, **loop} for name, loop in LOOPS.items()]
    (folder / "loops.yaml").write_text(json.dumps(loops))
    for name in LOOPS:
        write_dataset(folder / f"{name}.parquet", [100, 101], agent_name=name, data_source=name)
    return folder / "loops.yaml", ",".join(str(folder / f"{name}.parquet") for name in LOOPS)


def run_main_ppo(folder: Path, *settings: str) -> list[dict[str, Any]]:
    """Run ``train.sh`` and return its log by step."""
    paths = [str(ROOT / "src"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    given = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHON": sys.executable}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [EXAMPLE / "train.sh", folder, "identity", *settings],
            env={**os.environ, **given},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert process.wait(800) == 0, (folder / "log").read_text()[-5000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also stops Ray's processes
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["data"] for line in lines]


@pytest.mark.timeout(900)
def test_main_ppo_trains_on_all_types_of_episodes_together(tmp_path: Path) -> None:
    loops, files = files_for(tmp_path / "mixed")

    before, *steps = run_main_ppo(
        tmp_path,
        f"data.train_files=[{files}]",
        f"data.val_files=[{files}]",
        "data.max_response_length=448",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
        "trainer.total_training_steps=2",
        "trainer.total_epochs=2",
        "trainer.val_before_train=True",
        f"trainer.rollout_data_dir={tmp_path / 'rollouts'}",
    )

    assert {f"val-aux/{name}/lineages/mean@1" for name in LOOPS} <= before.keys()
    assert before["val-aux/two_talks/lineages/mean@1"] == 2
    assert before["val-core/two_talks/reward/mean@1"] == 0.75
    for number, step in enumerate(steps, 1):
        assert step["actor/grad_norm"] > 0
        # compared with the trainer's own probabilities, in bfloat16
        assert step["training/rollout_actor_probs_pearson_corr"] > 0.999
        assert step["training/rollout_probs_diff_mean"] < 0.01
        outputs = (tmp_path / "rollouts" / f"{number}.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in outputs]
        played = [each for each in found if not each["uid"].startswith("pad")]  # not padding
        # two_talks has two lineages per episode, and one task of odd_tasks_fail fails
        assert len(played) == 2 * 4 + 2 * 4 + 2 * (2 * 4) + 4
        talks = [each for each in played if "I am A" in each["input"]]
        assert sorted(each["score"] for each in talks) == [0.25] * 4 + [1.25] * 4
    assert len(steps) == 2
    assert "raised KeyError after 1 model calls" in (tmp_path / "log").read_text()
