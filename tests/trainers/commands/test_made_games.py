"""
Games created from Gymnasium ids, tasksets and ``docs/add-a-game.md``, plus the calculator agent.
"""

import re
import runpy
import shlex
from importlib.metadata import EntryPoint
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.bridge.tokens.chat_templates import TEMPLATES, tokenizer_of
from tests.kit import Patch, play, reward
from tests.trainers.kit import Cli

import evert
from evert.bridge.import_paths import resolve
from evert.bridge.tokens.renderer import prompt_renderer
from evert.bridge.tokens.template import TemplateRenderer
from evert.envs import tasksets
from evert.envs.games import GameError
from evert.envs.tasksets.reasoning_gym import Reasoning, reasoning_gym
from evert.trainers.config.evaluate import read_evaluate_settings
from evert.trainers.config.train import as_record, read_train_settings
from evert.trainers.training.warm_up import data_of, render

ID = "gymnasium:FrozenLake-v1"
LAKE = {"tasks": ID, "tasks.is_slippery": "False", "tasks.max_episode_steps": "6"}
AGENT = (
    "evert:GymAgent('FrozenLake-v1', illegal=-1.0, "
    "is_slippery=False, max_episode_steps=6, prompt='')"
)


def test_an_id_with_keyword_arguments_makes_a_recipe() -> None:
    typed = read_train_settings({**LAKE, "steps": "3", "limits.max_tool_calls": "1"}, {})
    python = {"id": ID, "is_slippery": False, "max_episode_steps": 6}
    values = {"tasks": python, "steps": 3, "limits": {"max_tool_calls": 1}}
    from_python = read_train_settings(values, {})
    for settings in (typed, from_python):
        assert settings.agent == AGENT
        assert settings.demonstrations == f"{AGENT}.demonstrations"
        assert settings.name == ID
        assert settings.steps == 3
        assert settings.limits.keys() == {"max_turns", "max_tool_calls"}
    assert as_record(typed) == as_record(from_python) | {"limits": as_record(typed)["limits"]}


def test_an_evaluation_takes_the_same_id_and_arguments() -> None:
    settings = read_evaluate_settings({**LAKE, "models": "evert-tiny"})
    assert settings.game is settings.game, "a taskset is made once"
    run = settings.run_of("")
    assert settings.agent_of(run) == AGENT
    assert settings.name == ID
    assert [len(tasks) for tasks in settings.tasks_by_split({}).values()] == [200, 200]
    assert "max_turns" in settings.limits
    assert settings.run_of("Qwen/Qwen3-8B").agent == AGENT.replace(", prompt=''", "")


def test_a_run_learns_the_reply_format_by_a_warm_up_and_trains(tmp_path: Path) -> None:
    options: dict[str, Any] = {"console": Console(quiet=True), "log_path": tmp_path / "run"}
    run = evert.train(
        tasks={"id": ID, "is_slippery": False, "max_episode_steps": 3}, test_tasks="",
        eval_every=0, batch_size=4, steps=2, warm_up_steps=12, warm_up_batch=16, **options,
    )  # fmt: skip
    first = run.steps()[0]
    assert first["env/all/illegal"] < 0.5  # every reply was illegal before the warm-up
    assert first["env/all/turns_per_episode"] > 1
    assert len(evert.train(steps=3, **options).steps()) == 3


SUMS = {"tasks": "reasoning_gym:chain_sum", "tasks.max_terms": "2", "tasks.max_digits": "1"}
PYTHON = {"id": "reasoning_gym:chain_sum", "max_terms": 2, "max_digits": 1}


def test_a_taskset_is_written_the_same_way_in_python_on_the_command_line_and_on_resuming() -> None:
    typed = read_train_settings(SUMS, {})
    evaluated = read_evaluate_settings({**SUMS, "models": "evert-tiny"})
    path = "evert.envs.tasksets.reasoning_gym:Reasoning('chain_sum', max_digits=1, max_terms=2)"
    assert typed.agent == path
    assert typed.name == evaluated.name == "reasoning_gym:chain_sum"
    assert as_record(typed) == as_record(read_train_settings({"tasks": PYTHON}, {}))
    assert [len(tasks) for tasks in evaluated.tasks_by_split({}).values()] == [200, 100]
    assert evaluated.agent_of(evaluated.run_of("")) == path
    before = {k: tuple(v) if isinstance(v, list) else v for k, v in as_record(typed).items()}
    again = as_record(read_train_settings({"steps": "9"}, before))
    assert again == as_record(typed) | {"steps": 9}


def test_held_out_questions_are_never_trained_on() -> None:
    agent = Reasoning("chain_sum", "leg_counting", max_instances=3)
    with pytest.raises(GameError, match=r"has no setting 'max_instances'\. Available: prompt, "):
        agent.check()
    agent = Reasoning("chain_sum", "gcd", size=500)

    def questions(tasks: Any) -> set[str]:
        return {agent.item(task)[1]["question"] for task in tasks}

    trained, held_out = questions(agent.train_tasks[:300]), questions(agent.test_tasks)
    assert not trained & held_out
    assert len(held_out) > 60
    assert {task % 2 for task in agent.test_tasks} == {0, 1}
    assert agent.train_tasks[:9] == resolve(f"evert.envs.tasksets.reasoning_gym:{agent!r}", "agent",
                                            GameError).train_tasks[:9]  # fmt: skip
    alike = Reasoning("chain_sum", min_terms=1, max_terms=1, min_digits=1, max_digits=1, size=1)
    with pytest.raises(GameError, match="generates too few distinct questions to hold some o"):
        _ = alike.test_tasks[0], alike.train_tasks[0]


@pytest.mark.parametrize(
    ("reply", "score"),
    [("{}", 1.0), ("I think.\n<answer> {} </answer>", 1.0), ("It is {}.", 0.2), ("", 0.0)],
)
async def test_the_score_comes_from_the_generator(reply: str, score: float) -> None:
    agent = Reasoning("chain_sum", "gcd", prompt="default")
    task = agent.train_tasks[0]
    trajectory = await play(agent, reply.format(agent.item(task)[1]["answer"]), task=task)
    metrics = trajectory.transitions[-1].metrics
    assert reward(trajectory) == metrics["score_chain_sum"] == pytest.approx(score, abs=0.19)
    assert metrics["solved"] == (score == 1)


async def test_a_demonstration_contains_the_agents_question_and_a_right_answer() -> None:
    for agent in (Reasoning("chain_sum"), Reasoning("leg_counting", prompt="default")):
        shown = list(islice(agent.demonstrations(3), 20))
        questions = {agent.item(task)[1]["question"]: task for task in agent.train_tasks[:2000]}
        first = next(messages for messages in shown if messages[-2]["content"] in questions)
        task = questions[first[-2]["content"]]
        assert reward(await play(agent, first[-1]["content"], task=task)) == 1
        assert shown == list(islice(agent.demonstrations(3), 20))
    with pytest.raises(GameError, match="has no answers to demonstrate"):
        next(Reasoning("rush_hour", size=50).demonstrations(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"id": "sums"}, "tasks=sums is not a known taskset; .* tasksets: broken, gone, "),
        ({"id": "sums:x"}, "tasks=sums:x is not a known taskset; .* module of yours with a tasks"),
        ({"id": "json:x"}, r"json/__init__\.py does not define taskset\(name\), a function tha"),
        ({"id": "reasoning_gym"}, "tasks=reasoning_gym is missing the name; expected tasks=reason"),
        ({"id": "reasoning_gymn:x"}, "Did you mean tasks=reasoning_gym:NAME"),
        ({"id": "reasoning_gym:chain_sun"}, r"no generator 'chain_sun'\. Did you mean chain_sum\?"),
        ({**PYTHON, "max_terms": 0}, "Could not create .*chain_sum with .*max_terms must be"),
        ({"id": "gone:x"}, r"The taskset gone \(no_such:f\) could not be loaded: ModuleNotFound"),
        ({"id": "broken:x"}, "tasks=broken:x failed with the arguments {}: ValueError: inv"),
        ({"id": "wrong:x"}, "The taskset wrong returned a str for 'x'; expected"),
    ],
)
def test_a_wrong_taskset_is_refused(arguments: Any, message: str, monkeypatch: Patch) -> None:
    path = f"{reasoning_gym.__module__}:reasoning_gym"
    values = {"reasoning_gym": path, "broken": "builtins:int", "wrong": "builtins:str"}
    values["gone"] = "no_such:f"
    entries = [EntryPoint(name, value, tasksets.GROUP) for name, value in values.items()]
    monkeypatch.setattr(tasksets, "entry_points", lambda group: entries)
    with pytest.raises(GameError, match=message):
        tasksets.task_game(arguments)


CALCULATOR = runpy.run_path("examples/calculator.py")


def hermes(expression: str) -> str:
    call = f'{{"name": "calculate", "arguments": {{"expression": "{expression}"}}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize(
    ("replies", "earned"),
    [
        ([hermes("12 * 34"), "It is 408."], 1.0), (["408"], 1.0), (["It is 40."], 0.0),
        ([hermes("12 * 34"), "It is 40."], 0.5), ([hermes("12 / 34"), "No."], 0.1),
    ],
)  # fmt: skip
async def test_the_calculators_reward_follows_from_its_tool_calls(
    replies: list[str], earned: float, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    renderer = TemplateRenderer(tokenizer_of(TEMPLATES["SmolLM2"]), hermes=True)
    options = {"renderer": renderer, "policy_names": ["gpt-4o-mini"]}
    task = {"question": "What is 12 * 34?", "answer": "408"}
    assert reward(await play(CALCULATOR["agent"], *replies, task=task, **options)) == earned


def test_a_demonstration_with_tools_trains_on_the_models_own_call_format() -> None:
    renderer = TemplateRenderer(tokenizer_of(TEMPLATES["SmolLM2"]), hermes=True)
    shown = next(CALCULATOR["demonstrations"](0))
    prompts = prompt_renderer(renderer)
    [datum] = data_of(shown, prompts)
    inputs = {name: tensor.to_torch().tolist() for name, tensor in datum.loss_fn_inputs.items()}
    pairs = zip(inputs["target_tokens"], inputs["weights"], strict=True)
    learned = renderer.tokenizer.decode([token for token, weight in pairs if weight])
    prompt = prompts.full(render(shown, prompts, "it")[0][:-1])
    expression = shown["messages"][0]["content"].removeprefix("What is ").removesuffix("?")
    answer = shown["messages"][-1]["content"]
    assert learned == f"{hermes(expression)}<|im_end|>{answer}<|im_end|>"
    assert datum.model_input.to_ints()[: len(prompt)] == prompt


PAGE = (Path(__file__).parents[3] / "docs" / "add-a-game.md").read_text()


def test_the_commands_on_the_page_run_its_game(
    tmp_path: Path, monkeypatch: Patch, cli: Cli
) -> None:
    [game] = re.findall(r"^```python\n(.*?GAME = .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "round_number.py").write_text(game)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    lines = re.findall(r"^evert .*$", PAGE, re.MULTILINE)
    train, evaluate, report = [shlex.split(line)[1:] for line in lines]
    small = ["steps=2", "batch_size=4", "group_size=4", "eval_every=0", "samples=1", "device=cpu"]
    trained = cli(*train, *small)
    assert "round_number: mean reward, 2 steps" in trained
    assert "25 held-out tasks" in trained
    assert "Pick a number between" in (tmp_path / "runs/round/samples.md").read_text()
    cli(*evaluate, "seeds=1", "max_tasks=5", "device=cpu", "out=scores")
    rows = (tmp_path / "scores/scores.csv").read_text()
    assert {"evert-tiny", "runs/round"} <= set(re.findall(r"evert-tiny|runs/round", rows))
    cli(*report)
    assert "round_number" in (tmp_path / "runs/round/report/index.html").read_text()
