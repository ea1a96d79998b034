"""``evert.train``: the training command from Python, including an agent that uses images."""

import functools
import gc
import pickle
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from bases.seeing import SeeingConfig, main
from examples.colours import agent, demonstrations, square
from rich.console import Console
from tests.kit import Patch, Shown, ask
from tests.trainers.kit import interrupt_in_finalizer

import evert
from evert.bridge.groups.curriculum import read_sampler_log
from evert.bridge.groups.dataset import AgentDatasetBuilder
from evert.bridge.tokens.bases import model_renderer
from evert.envs.as_gymnasium.env import AgentGymEnv
from evert.trainers.commands import train as command
from evert.trainers.config.recipes import path_of
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.files import RunFolderError

TASKS = ["tree", "river"]
SMALL: dict[str, Any] = {
    "device": "cpu", "batch_size": 2, "group_size": 2, "max_tokens": 4, "samples": 1,
    "console": Console(quiet=True),
}  # fmt: skip


def make_agent(letter: str) -> Any:
    """Return an agent that has no import path."""

    async def says(client: Any, task: str) -> float:
        return float(letter in await ask(client, task))

    return says


def test_evert_train_trains_a_function_and_returns_the_run(tmp_path: Path) -> None:
    path, agent, playing, most = tmp_path / "run", make_agent("e"), Counter[str](), Counter[str]()

    async def says(client: Any, task: str) -> float:
        kind = "trained" if task in TASKS else "held out"
        playing[kind] += 1
        most[kind] = max(most[kind], playing[kind])
        reward = await agent(client, task)
        playing[kind] -= 1
        return float(reward)

    held_out: Any = np.array(["lake", "hill"])
    run = evert.train(
        says, TASKS, test_tasks=held_out, steps=2, eval_every=1, parallel=1,
        log_path=str(path), **SMALL,
    )  # fmt: skip

    assert most == {"trained": 4, "held out": 1}  # held out: evaluated before, during and after
    assert run.path == path
    assert [row["step"] for row in run.steps()] == [0, 1]
    assert run.result["name"] == "says"
    for scores in (run.before, run.after):
        assert scores is not None
        assert 0 <= scores["greedy"]["reward"] <= 1
    assert run.plot.read_bytes().startswith(b"\x89PNG")
    about = run.read_json("run.json") or {}
    assert about["settings"]["agent"] == "says"
    assert about["settings"]["train_tasks"] == "2 tasks"


def test_training_does_not_change_the_callers_random_numbers(tmp_path: Path) -> None:
    def numbers() -> tuple[Any, ...]:
        return random.random(), np.random.random(), float(torch.rand(()))

    def drawn(letter: str) -> list[tuple[Any, ...]]:
        found = []
        says = make_agent(letter)

        async def agent(client: Any, task: str) -> float:
            found.append(numbers())
            return float(await says(client, task))

        path = tmp_path / letter
        evert.train(agent, TASKS, steps=1, log_path=path, **SMALL)
        return found

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = [numbers(), numbers()]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = numbers()
    first = drawn("e")
    assert [before, numbers()] == expected
    assert drawn("t") == first  # agents draw the same numbers in every run


def test_training_leaves_objects_frozen_that_the_caller_froze(tmp_path: Path) -> None:
    gc.freeze()
    evert.train(make_agent("e"), TASKS, steps=1, log_path=tmp_path / "run", **SMALL)
    assert gc.get_freeze_count()


def test_a_run_of_a_function_is_resumed_by_another_call(tmp_path: Path, capsys: Shown) -> None:
    again = {"log_path": str(tmp_path / "run"), **SMALL}
    first = evert.train(make_agent("e"), TASKS, steps=1, **again)
    assert first.before is first.after is None
    assert command.main([f"log_path={tmp_path / 'run'}", "steps=2"]) == 1
    message = capsys.readouterr().err
    assert "the agent 'says'" in message
    assert f"them to evert.train again, together with log_path='{tmp_path / 'run'}'" in message
    run = evert.train(make_agent("e"), TASKS, steps=2, **again)
    assert [row["step"] for row in run.steps()] == [0, 1]
    with pytest.raises(RunFolderError, match="train_tasks: '2 tasks' -> '3 tasks'"):
        evert.train(make_agent("e"), [*TASKS, "sea"], steps=3, **again)


def test_ctrl_c_in_a_finalizer_stops_training_during_startup(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    def collect() -> int:
        monkeypatch.undo()
        interrupt_in_finalizer()
        return 0

    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(gc, "collect", collect)
    with pytest.raises(KeyboardInterrupt):
        evert.train(make_agent("e"), TASKS, steps=1, log_path=str(tmp_path / "run"), **SMALL)


async def test_evert_train_works_inside_a_running_loop(tmp_path: Path) -> None:
    settings = {**SMALL, "log_path": tmp_path / "run", "test_group_size": 1}
    run = evert.train(env="identity", steps=1, cookbook={"temperature": 0.5}, **settings)
    assert isinstance(run, RunFolder)
    assert run.result["name"] == "identity"
    assert (run.read_json("config.json") or {})["temperature"] == 0.5


def test_objects_with_an_import_path_are_recorded_by_it() -> None:
    assert path_of(command.main) == "evert.trainers.commands.train:main"
    assert path_of("a.b:c") == "a.b:c"
    assert path_of(make_agent("e")) == "says"
    assert path_of(functools.partial(command.main, [])) == "main"
    assert path_of(RunFolder(Path()).write) == "write"
    assert path_of(TASKS) == "2 tasks"


def test_a_resumed_run_chooses_the_tasks_of_an_uninterrupted_one(tmp_path: Path) -> None:
    def dealt(name: str, steps: int, sampler: str = "evert:Curriculum") -> list[Any]:
        run = evert.train(
            make_agent("e"), [*"abcdef"], steps=steps, sampler=sampler, log_path=tmp_path / name,
            **SMALL,
        )  # fmt: skip
        records = read_sampler_log(run.path / "sampler.jsonl")
        return sorted((each["step"], each["task"], each["rewards"]) for each in records)

    whole = dealt("whole", 2)
    assert [step for step, *_ in whole] == [0, 0, 1, 1]
    assert dealt("resumed", 1) == whole[:2]
    assert dealt("resumed", 2) == whole
    with pytest.raises(RunFolderError, match="sampler: 'evert:Curriculum' -> ''"):
        dealt("resumed", 3, "")
    with pytest.raises(evert.InvalidDatasetError, match="No sampler at 'evert:Nothing'"):
        dealt("other", 1, "evert:Nothing")
    assert not (tmp_path / "other").exists()


RENDERER = "qwen3_vl_instruct"


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("seeing"))
    main(SeeingConfig(out=folder))
    return folder


async def test_a_dataset_builds_its_renderer_with_the_models_image_processor(seeing: str) -> None:
    builder = AgentDatasetBuilder(
        agent=agent, train_tasks=range(2), batch_size=2, model_name=seeing, renderer_name=RENDERER
    )
    dataset, _ = await builder()
    [group, _] = pickle.loads(pickle.dumps(dataset.get_batch(0)))  # as it arrives in a worker
    [env, *_] = await group.make_envs()
    found: Any = await env.initial_observation()
    await group.cleanup()
    [image] = [c for c in found[0].chunks if isinstance(c, tinker.types.ImageChunk)]
    assert image.expected_tokens == 4


def test_an_agent_with_images_is_warmed_up_and_trained(seeing: str, tmp_path: Path) -> None:
    run = evert.train(
        agent, range(4), test_tasks=range(2), log_path=str(tmp_path / "run"), device="cpu",
        model_name=seeing, renderer_name=RENDERER, demonstrations=demonstrations, warm_up_steps=2,
        warm_up_batch=4, steps=2, batch_size=2, group_size=2, max_tokens=3, samples=1,
        console=Console(quiet=True),
    )  # fmt: skip
    assert [row["step"] for row in run.steps()] == [0, 1]
    assert all(row["optim/kl_sample_train_v2"] < 1e-6 for row in run.steps())
    assert run.after is not None


def test_a_gymnasium_env_has_images_in_its_messages_but_refuses_tokens(seeing: str) -> None:
    renderer = model_renderer(seeing, RENDERER)
    env: Any = AgentGymEnv(agent, range(4), renderer=renderer, render_mode="ansi")
    observation, info = env.reset(seed=1)
    colour, url = square(info["task"])
    assert observation[0]["content"] == "[image_url]What colour is the square?"
    assert env.observation_space.contains(observation)
    assert info["messages"][0]["content"][0]["image_url"]["url"] == url
    assert "tokens" not in info
    assert "[image_url]What colour" in str(env.render())
    observation, reward, terminated, _, info = env.step(colour)
    assert (reward, terminated) == (1.0, True)
    assert observation[-1] == {"role": "assistant", "content": colour}
    env.close()
    env = AgentGymEnv(agent, range(4), renderer=renderer, level="tokens")
    with pytest.raises(evert.RendererMismatchError, match="contains images, which have no token"):
        env.reset()
    env.close()
