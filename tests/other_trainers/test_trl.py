"""evert's agents under TRL's own ``GRPOTrainer``, on the CPU.

For the same episodes, TRL gets exactly the tokens in the Cookbook's data, and its loss covers
exactly the sampled tokens. Every Env is closed, whatever happens.
"""

import asyncio
import itertools
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from evert import AgentClient, AgentError, ChatAgentEnv, InvalidDatasetError, Outcome
from evert.bridge.tokens.bases import BASE_RENDERER, base_path
from evert.trainers.config.arguments import UsageError
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.sampling_client import model_client
from evert.trainers.engine.models.loading import EngineSettings
from evert.trl import Rollouts

pytestmark = pytest.mark.filterwarnings("default")  # warnings of TRL and its dependencies

ROOT = Path(__file__).parents[2]
BASE = str(base_path())
GAMES = "evert.envs"
ROWS = ("prompt_ids", "completion_ids", "env_mask", "logprobs")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recorded(Rollouts):
    """Rollouts that record what they return to TRL."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, renderer_name=BASE_RENDERER, **options)
        self.prompts: list[list[str]] = []
        self.given: list[dict[str, Any]] = []

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        self.prompts.append(prompts)
        self.given.append(super().__call__(prompts, trainer))
        return self.given[-1]


def trainer(rollouts: Rollouts, folder: Path, **settings: Any) -> GRPOTrainer:
    """Return a TRL trainer created the way users create one."""
    quiet: dict[str, Any] = {
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "use_cpu": True,
        "bf16": False,
    }
    usual: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_steps": 1,
        "max_completion_length": 256,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "scale_rewards": "none",
        "gradient_checkpointing": False,
    }
    return GRPOTrainer(
        model=BASE,
        args=GRPOConfig(output_dir=str(folder), **quiet | usual | settings),
        rollout_func=rollouts,
        reward_funcs=rollouts.reward,
        train_dataset=rollouts.dataset,
        processing_class=AutoTokenizer.from_pretrained(BASE, padding_side="left"),
    )


def trained(rollouts: Rollouts, folder: Path, **settings: Any) -> list[dict[str, float]]:
    """Train and return the log, with one entry per step."""
    run = trainer(rollouts, folder, **settings)
    run.train()
    return [entry for entry in run.state.log_history if "reward" in entry]


def game(name: str, **options: Any) -> Recorded:
    home = f"{GAMES}.{name}"
    options = {"limits": RolloutLimits(max_turn_tokens=16)} | options
    return Recorded(f"{home}:{name}_agent", f"{home}:TRAIN_TASKS", **options)


# -- training ------------------------------------------------------------------------------------


def test_the_identity_agent_learns(tmp_path: Path) -> None:
    log = trained(game("identity"), tmp_path, max_steps=10, per_device_train_batch_size=32)

    rewards = [entry["reward"] for entry in log]
    assert len(rewards) == 10
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.5


def test_trl_takes_a_step_on_ten_turns_of_guess_number(tmp_path: Path) -> None:
    rollouts = game("guess_number")
    (step,) = trained(rollouts, tmp_path)

    (given,) = rollouts.given
    assert step["grad_norm"] > 0
    assert step["evert/turns"] > 5
    assert (step["evert/lineages"], step["evert/dropped_lineages"]) == (1, 0)
    assert 40 < max(map(len, given["completion_ids"])) <= 256


# -- ids, masks, log-probabilities ---------------------------------------------------------------


def cookbook_data(agent: str, tasks: list[Any], run: GRPOTrainer) -> list[list[tinker.Datum]]:
    """Return the Cookbook's data for the run's first step, one list per episode."""
    numbers = run.state.global_step, 0, 0
    engine = Engine(EngineSettings(device="cpu", seed=run.args.seed))
    client = model_client(engine, "trl", run.model, run.processing_class, *numbers)
    renderer = get_renderer(BASE_RENDERER, run.processing_class)

    async def play() -> list[list[tinker.Datum]]:
        policy = TinkerTokenCompleter(client, max_tokens=16)
        envs = [ChatAgentEnv(Rollouts(agent, tasks)._agent, t, renderer=renderer) for t in tasks]
        played = await asyncio.gather(*(do_single_rollout(policy, env) for env in envs))
        return [trajectory_to_data(each, 1.0) for each in played]

    return asyncio.run(play())


@pytest.mark.parametrize("name", ["identity", "guess_number"])
def test_trls_rows_equal_the_cookbooks_data_token_by_token(name: str, tmp_path: Path) -> None:
    rollouts = game(name)
    run = trainer(rollouts, tmp_path)
    tasks = [3, 3, 3, 17, 17, 17]

    rows = rollouts([str(rollouts._tasks.index(task)) for task in tasks], run)

    data = cookbook_data(f"{GAMES}.{name}:{name}_agent", tasks, run)
    for prompt, ids, mask, logprobs, (datum,) in zip(*(rows[r] for r in ROWS), data, strict=True):
        before = [0.0] * (len(prompt) - 1)
        inputs = {key: value.to_numpy().tolist() for key, value in datum.loss_fn_inputs.items()}
        assert [*prompt, *ids][:-1] == datum.model_input.to_ints()
        assert [*prompt, *ids][1:] == inputs["target_tokens"]
        assert [*before, *mask] == inputs["mask"]
        assert [*before, *logprobs] == pytest.approx(inputs["logprobs"], abs=1e-4)


def test_the_sampled_log_probabilities_match_those_computed_by_trl(tmp_path: Path) -> None:
    rollouts = game("guess_number")
    run = trainer(rollouts, tmp_path, num_iterations=2)  # makes TRL compute old logprobs
    seen: list[dict[str, Any]] = []
    compute_loss = run._compute_loss

    def watched(model: Any, inputs: dict[str, Any]) -> Any:
        seen.append(inputs)
        return compute_loss(model, inputs)

    run._compute_loss = watched
    run.train()

    inputs = seen[0]
    sampled = inputs["completion_mask"] * inputs["tool_mask"] == 1
    assert int(sampled.sum()) == sum(map(sum, rollouts.given[0]["env_mask"]))
    torch.testing.assert_close(
        inputs["sampling_per_token_logps"][sampled],
        inputs["old_per_token_logps"][sampled],
        atol=1e-4,
        rtol=0,
    )


# -- several lineages ----------------------------------------------------------------------------


async def two_talks(client: AgentClient, task: int) -> float:
    """Play two independent conversations."""
    for text in ("Left", f"Right {task}"):
        await client.chat.completions.create(messages=[{"role": "user", "content": text}])
        client.reward(task)
    return 0.5


async def calls_at_once(client: AgentClient, task: int) -> float:
    """Make two concurrent calls."""

    async def say(text: str) -> None:
        await client.chat.completions.create(messages=[{"role": "user", "content": text}])
        client.reward(task)

    await asyncio.gather(say("Left"), say(f"Right {task}"))
    return 0.5


@pytest.mark.parametrize("agent", [two_talks, calls_at_once])
def test_lineages_that_trl_cannot_use_are_counted_and_warned_about_once(
    agent: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = Recorded(agent, range(10))
    with caplog.at_level(logging.WARNING, "evert"):
        log = trained(rollouts, tmp_path, max_steps=2)

    assert [entry["evert/dropped_lineages"] for entry in log] == [1, 1]
    assert rollouts.dropped_lineages == 16
    said = [record.getMessage() for record in caplog.records if "one per rollout" in record.message]
    assert len(said) == 1
    assert agent.__name__ in said[0]
    assert "8 of 16" in said[0]
    given = rollouts.given[0]
    assert [2 * task + 0.5 for task in given["task"]] == given["episode_reward"]  # of both
    decode = AutoTokenizer.from_pretrained(BASE).decode
    assert all("Right" in decode(ids) for ids in given["prompt_ids"])


# -- failures ------------------------------------------------------------------------------------


class Sometimes:
    """An agent that fails in every n-th episode, after its call."""

    def __init__(self, every: int) -> None:
        self._numbers = itertools.count(1)
        self._every = every

    async def __call__(self, client: AgentClient, task: int) -> Outcome:
        number = next(self._numbers)
        await client.chat.completions.create(messages=[{"role": "user", "content": f"Say {task}"}])
        if number % self._every == 0:
            raise ConnectionError("the tool is down")
        return Outcome(float(number), metrics={"number": number})


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[ChatAgentEnv]:
    """Return a list that collects all closed Envs."""
    found: list[ChatAgentEnv] = []
    close = ChatAgentEnv.close

    async def counted(env: ChatAgentEnv) -> None:
        found.append(env)
        await close(env)

    monkeypatch.setattr(ChatAgentEnv, "close", counted)
    return found


def test_a_failed_episode_is_left_out_of_its_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, closed: list[ChatAgentEnv]
) -> None:
    rollouts = Recorded(Sometimes(4), range(10))
    with caplog.at_level(logging.WARNING, "evert"):
        (step,) = trained(rollouts, tmp_path)

    (given,) = rollouts.given
    failed = [reward is None for reward in given["episode_reward"]]
    assert failed.count(True) == 2
    assert [sum(mask) == 0 for mask in given["env_mask"]] == failed
    rewards = [reward for reward in given["episode_reward"] if reward is not None]
    assert step["reward"] == pytest.approx(sum(rewards) / 6)
    assert step["evert/failed"] == 0.25
    assert step["evert/number"] == pytest.approx(sum(rewards) / 6)
    assert step["grad_norm"] > 0
    assert rollouts.failed == 2
    assert "2 of 8 episodes failed" in caplog.text
    assert "the tool is down" in caplog.text
    assert len({*closed}) == 8


def test_a_failed_episode_is_scored_if_its_error_has_a_reward(tmp_path: Path) -> None:
    rollouts = Recorded(Sometimes(4), range(10), on_agent_error=-1.0)
    (step,) = trained(rollouts, tmp_path)

    (given,) = rollouts.given
    assert given["episode_reward"].count(-1.0) == 2
    assert all(map(sum, given["env_mask"]))
    assert step["evert/failed"] == 0
    assert step["evert/stop/agent_error"] == 0.25
    assert rollouts.failed == 0


def test_a_batch_in_which_all_episodes_fail_ends_the_run_with_the_agents_error(
    tmp_path: Path, closed: list[ChatAgentEnv]
) -> None:
    with pytest.raises(AgentError, match=r"8 of 8 episodes failed.*\n.*the tool is down"):
        trained(Recorded(Sometimes(1), range(10)), tmp_path)

    assert len({*closed}) == 8


async def silent(client: AgentClient, task: int) -> float:
    await asyncio.sleep(0)
    return float(task)


def test_an_episode_without_a_call_has_a_reward_but_no_trained_token(tmp_path: Path) -> None:
    rollouts = Recorded(silent, range(10))
    (step,) = trained(rollouts, tmp_path)

    (given,) = rollouts.given
    assert step["reward"] == pytest.approx(sum(given["task"]) / 8)
    assert not any(map(sum, given["env_mask"]))
    assert step["grad_norm"] == 0


def test_ctrl_c_closes_every_env(tmp_path: Path, closed: list[ChatAgentEnv]) -> None:
    async def agent(client: AgentClient, task: int) -> float:
        if task == 2:
            await asyncio.sleep(0.5)  # let the main thread start waiting
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.sleep(60)
        return 0.0

    rollouts = Recorded(agent, range(3))
    with pytest.raises(KeyboardInterrupt):
        rollouts(["0", "1", "2"], trainer(rollouts, tmp_path))

    deadline = time.monotonic() + 30
    while len({*closed}) < 3 or any(env.is_running for env in closed):
        assert time.monotonic() < deadline, closed
        time.sleep(0.01)


# -- settings ------------------------------------------------------------------------------------


def test_trl_passes_each_prompt_once_per_rollout(tmp_path: Path) -> None:
    """TRL's docstring says otherwise. If the docstring were right, groups would be mixed up."""
    rollouts = game("identity", limits=RolloutLimits(max_turn_tokens=3))
    trained(rollouts, tmp_path)

    (prompts,) = rollouts.prompts
    assert len(prompts) == 8
    assert [prompts[:4].count(prompts[0]), prompts[4:].count(prompts[4])] == [4, 4]
    assert prompts[0] != prompts[4]
    assert {len(ids) for ids in rollouts.given[0]["completion_ids"]} == {3}


def test_the_same_seed_reproduces_the_rows(tmp_path: Path) -> None:
    first, second, other = game("identity"), game("identity"), game("identity")
    trained(first, tmp_path, max_steps=2, seed=1)
    trained(second, tmp_path, max_steps=2, seed=1)
    trained(other, tmp_path, max_steps=2, seed=2)

    for one, again in zip(first.given, second.given, strict=True):
        # Equal only up to rounding, because timing decides which requests share a forward pass.
        found, expected = again.pop("logprobs"), one.pop("logprobs")
        assert [*itertools.chain(*found)] == pytest.approx([*itertools.chain(*expected)], abs=1e-4)
        assert again == one
    assert first.given[0]["completion_ids"] != other.given[0]["completion_ids"]
    assert first.given[0]["completion_ids"] != first.given[1]["completion_ids"]


def test_a_completion_has_at_most_max_completion_length_tokens(tmp_path: Path) -> None:
    rollouts = game("guess_number")
    (step,) = trained(rollouts, tmp_path, max_completion_length=40)

    (given,) = rollouts.given
    assert max(map(len, given["completion_ids"])) <= 40
    assert step["evert/turns"] > 1
    assert step["evert/stop/max_tokens"] > 0.5


def test_limits_apply_to_the_whole_episode(tmp_path: Path) -> None:
    rollouts = game("guess_number", limits=RolloutLimits(max_turns=2))
    (step,) = trained(rollouts, tmp_path)

    assert step["evert/turns"] == 2
    assert step["evert/stop/max_turns"] == 1


def test_the_models_context_length_limits_prompts_and_another_dataset_is_refused(
    tmp_path: Path,
) -> None:
    rollouts = game("guess_number")
    run = trainer(rollouts, tmp_path)
    run.model.config.max_position_embeddings = 72  # the game's rules take 67 of these tokens

    rows = rollouts(["1", "2"], run)

    assert all(m["stop/max_tokens"] == 1 for m in rows["episode_metrics"])
    assert all(
        len(prompt) + len(ids) <= 72
        for prompt, ids in zip(rows["prompt_ids"], rows["completion_ids"], strict=True)
    )
    with pytest.raises(InvalidDatasetError, match="train_dataset=rollouts.dataset"):
        rollouts(["What is 2 + 2?"], run)


def test_log_probabilities_are_left_out_at_other_temperatures(tmp_path: Path) -> None:
    """The engine's log-probabilities are at temperature 1; TRL trains the sampling distribution."""
    rollouts = game("identity")
    (step,) = trained(rollouts, tmp_path, temperature=1e-4)

    (given,) = rollouts.given
    assert given["logprobs"] is None
    assert len({tuple(ids) for ids in given["completion_ids"][:4]}) == 1
    assert step["reward_std"] >= 0


@pytest.mark.parametrize(
    "setting", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}]
)
def test_settings_that_change_the_sampling_distribution_are_refused(
    setting: dict[str, float], tmp_path: Path
) -> None:
    [(name, value)] = setting.items()

    with pytest.raises(UsageError, match=f"GRPOConfig has {name}={value}"):
        trained(game("identity"), tmp_path, **setting)


def test_trl_evaluates_the_test_tasks(tmp_path: Path) -> None:
    rollouts = game("identity", test_tasks=f"{GAMES}.identity:TEST_TASKS")
    run = trainer(rollouts, tmp_path, per_device_eval_batch_size=8)

    scores = run.evaluate(rollouts.eval_dataset.select(range(4)))

    assert -1 <= scores["eval_reward"] <= 1
    assert scores["eval_evert/turns"] == 1
    assert {task for given in rollouts.given for task in given["task"]} == {*range(1000, 1004)}


def test_agents_keep_their_event_loop_between_steps(tmp_path: Path) -> None:
    loops = set()

    async def agent(client: AgentClient, task: int) -> float:
        loops.add(asyncio.get_running_loop())
        return await silent(client, task)

    trained(Rollouts(agent, range(10), renderer_name=BASE_RENDERER), tmp_path, max_steps=3)

    assert len(loops) == 1


async def test_training_works_inside_a_running_loop_as_in_a_notebook(tmp_path: Path) -> None:
    (step,) = trained(game("identity"), tmp_path)

    assert step["evert/failed"] == 0


def test_the_example_of_the_docs_runs_in_two_processes(tmp_path: Path) -> None:
    """DDP: each process samples its share of every group from its own copy of the weights."""
    script = ROOT / "examples" / "trl_on_cpu" / "identity.py"
    twice = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [sys.executable, *twice, str(script), "--steps=2", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stderr
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    steps = [entry for entry in state["log_history"] if "reward" in entry]
    assert [entry["evert/turns"] for entry in steps] == [1, 1]
    assert all(entry["grad_norm"] > 0 for entry in steps)
