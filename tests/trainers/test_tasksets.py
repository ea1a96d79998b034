"""``tasks=``: games that a taskset makes, reasoning-gym's among them, and an agent with a tool.

1. A taskset is named on the command line and from Python alike, trains, and is gone on with.
2. Held-out questions are never trained on; the score is the generator's own.
3. A wrong name or argument is answered by what there is.
4. The calculator agent of ``examples`` is paid for what its tool does; a warm-up shows it how.
"""

import runpy
from importlib.metadata import EntryPoint
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.bridge.chat_templates import TEMPLATES, tokenizer_of
from tests.kit import play, reward
from tinker_cookbook.supervised.data import conversation_to_datum

import evert
from evert.bridge.import_paths import resolve
from evert.bridge.tokens.template import TemplateRenderer
from evert.envs import tasksets
from evert.envs.games import GameError
from evert.envs.reasoning_gym import Reasoning, reasoning_gym
from evert.trainers.config.evaluate import read_evaluate_settings
from evert.trainers.config.train import read_train_settings, recorded
from evert.trainers.training.warm_up import messages_of

SUMS = {"tasks": "reasoning_gym:chain_sum", "tasks.max_terms": "2", "tasks.max_digits": "1"}
PYTHON = {"id": "reasoning_gym:chain_sum", "max_terms": 2, "max_digits": 1}


def test_it_is_named_on_the_command_line_and_from_python() -> None:
    typed = read_train_settings(SUMS, {})
    evaluated = read_evaluate_settings({**SUMS, "models": "evert-tiny"})
    path = "evert.envs.reasoning_gym:Reasoning('chain_sum', max_digits=1, max_terms=2)"

    assert typed.agent == path
    assert typed.name == evaluated.name == "reasoning_gym:chain_sum"
    assert recorded(typed) == recorded(read_train_settings({"tasks": PYTHON}, {}))
    assert [len(tasks) for tasks in evaluated.tasks_by_split().values()] == [200, 100]
    assert evaluated.agent_of(evaluated.run_of("")) == path


def test_a_run_trains_and_is_gone_on_with(tmp_path: Path) -> None:
    given: dict[str, Any] = {"console": Console(quiet=True), "log_path": tmp_path / "run"}
    small: dict[str, Any] = {
        "batch_size": 2,
        "group_size": 2,
        "max_tokens": 4,
        "test_tasks": "",
        "steps": 1,
    }
    first = evert.train(tasks=PYTHON, **given, **small)
    second = evert.train(**given, steps=2)

    assert "env/all/solved" in first.steps()[0]
    assert len(second.steps()) == 2


def test_held_out_questions_are_never_trained_on() -> None:
    agent = Reasoning("chain_sum", "leg_counting", max_instances=3)
    with pytest.raises(GameError, match=r"chain_sum takes no 'max_instances'\. It takes prompt, "):
        agent.check()
    agent = Reasoning("chain_sum", "gcd", size=500)

    def questions(tasks: Any) -> set[str]:
        return {agent.item(task)[1]["question"] for task in tasks}

    trained, held_out = questions(agent.train_tasks[:300]), questions(agent.test_tasks)
    assert not trained & held_out
    assert len(held_out) > 60
    assert {task % 2 for task in agent.test_tasks} == {0, 1}
    assert agent.train_tasks[:9] == resolve(f"evert.envs.reasoning_gym:{agent!r}", "agent",
                                            GameError).train_tasks[:9]  # fmt: skip
    alike = Reasoning("chain_sum", min_terms=1, max_terms=1, min_digits=1, max_digits=1, size=1)
    with pytest.raises(GameError, match="makes too few different questions to hold some out"):
        _ = alike.test_tasks[0], alike.train_tasks[0]


@pytest.mark.parametrize(
    ("reply", "score"),
    [("{}", 1.0), ("I think.\n<answer> {} </answer>", 1.0), ("It is {}.", 0.2), ("", 0.0)],
)
async def test_the_score_is_the_generators_own(reply: str, score: float) -> None:
    agent = Reasoning("chain_sum", "gcd", prompt="default")
    task = agent.train_tasks[0]
    trajectory = await play(agent, reply.format(agent.item(task)[1]["answer"]), task=task)

    earned = reward(trajectory)
    metrics = trajectory.transitions[-1].metrics
    assert earned == pytest.approx(score, abs=0.19)
    assert metrics["solved"] == (score == 1)
    assert metrics["score_chain_sum"] == earned


async def test_a_demonstration_gives_the_agents_question_and_an_answer_that_is_scored_in_full() -> (
    None
):
    for agent in (Reasoning("chain_sum"), Reasoning("leg_counting", prompt="default")):
        shown = list(islice(agent.demonstrations(3), 20))
        asked = {agent.item(task)[1]["question"]: task for task in agent.train_tasks[:2000]}
        first = next(one for one in shown if one[-2]["content"] in asked)
        task = asked[first[-2]["content"]]
        trajectory = await play(agent, first[-1]["content"], task=task)

        assert reward(trajectory) == 1
        assert shown == list(islice(agent.demonstrations(3), 20))
    with pytest.raises(GameError, match="has no answers to show"):
        next(Reasoning("rush_hour", size=50).demonstrations(0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": "sums"}, r"tasks=sums names no taskset; expected .* There are broken, "),
        ({"id": "reasoning_gym:chain_sun"}, r"no generator 'chain_sun'\. Did you mean chain_sum\?"),
        ({**PYTHON, "max_terms": 0}, "chain_sum cannot be made with .*max_terms must be"),
        ({"id": "broken:x"}, "tasks=broken:x could not be made with {}: ValueError: inv"),
        ({"id": "wrong:x"}, r"The taskset wrong \(builtins:str\) made a str of 'x'; expected"),
    ],
)
def test_what_there_is_not_is_said(
    given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = f"{reasoning_gym.__module__}:reasoning_gym"
    values = {"reasoning_gym": own, "broken": "builtins:int", "wrong": "builtins:str"}
    entries = [EntryPoint(name, value, tasksets.GROUP) for name, value in values.items()]
    monkeypatch.setattr(tasksets, "entry_points", lambda group: entries)

    with pytest.raises(GameError, match=message):
        tasksets.task_game(given)


# -- the calculator --------------------------------------------------------------------------------


CALCULATOR = runpy.run_path("examples/calculator.py")


def hermes(expression: str) -> str:
    call = f'{{"name": "calculate", "arguments": {{"expression": "{expression}"}}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.mark.parametrize(
    ("replies", "earned"),
    [
        ([hermes("12 * 34"), "It is 408."], 1.0),
        (["408"], 1.0),
        ([hermes("12 * 34"), "It is 40."], 0.5),
        ([hermes("12 / 34"), "No."], 0.1),
        (["It is 40."], 0.0),
    ],
)
async def test_the_calculator_is_paid_for_what_its_tool_does(
    replies: list[str], earned: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    own = TemplateRenderer(tokenizer_of(TEMPLATES["SmolLM2"]), hermes=True)
    trajectory = await play(
        CALCULATOR["agent"],
        *replies,
        task={"question": "What is 12 * 34?", "answer": "408"},
        renderer=own,
        policy_names=["gpt-4o-mini"],
    )

    assert reward(trajectory) == earned


def test_a_demonstration_with_tools_is_learned_as_the_agent_would_say_it() -> None:
    own = TemplateRenderer(tokenizer_of(TEMPLATES["SmolLM2"]), hermes=True)
    shown = next(CALCULATOR["demonstrations"](0))
    messages = messages_of(shown, own)
    datum = conversation_to_datum(messages, own, None)
    targets, weights = (
        datum.loss_fn_inputs[key].to_torch().tolist() for key in ("target_tokens", "weights")
    )
    learned = own.tokenizer.decode([t for t, w in zip(targets, weights, strict=True) if w])
    asked = own.build_generation_prompt(messages[:-1]).to_ints()

    expression = shown["messages"][0]["content"].removeprefix("What is ").removesuffix("?")
    answer = shown["messages"][-1]["content"]
    assert learned == f"{hermes(expression)}<|im_end|>{answer}<|im_end|>"
    assert datum.model_input.to_ints()[: len(asked)] == asked
