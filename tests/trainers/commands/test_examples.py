"""Run the training examples as a reader would."""

import asyncio
import os
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.kit import Patch, play, reward
from tinker_cookbook.utils.ml_log import JsonLogger

import evert
from evert.trainers import cli
from evert.trainers.commands import serve
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.files import METRICS, read_jsonl

ROOT = Path(__file__).parents[3]


def test_a_policy_gradient_with_the_gymnasium_interface_learns() -> None:
    train = runpy.run_path("examples/gymnasium_reinforce.py")["train"]
    with evert.embedded_engine(threads=1):
        curve = asyncio.run(train(steps=5))
    assert max(curve[2:]) > curve[0]


@pytest.mark.nightly
def test_a_student_learns_from_a_run(tmp_path: Path, monkeypatch: Patch) -> None:
    distil = runpy.run_path("examples/distillation.py")["distil"]
    monkeypatch.chdir(tmp_path)
    distil()
    divergences = [row["teacher_kl"] for row in read_jsonl(Path("student_run", METRICS))]
    assert divergences[-1] < 0.7 * divergences[0]


def test_the_closed_loop_raises_the_reward(tmp_path: Path, monkeypatch: Patch) -> None:
    page = (ROOT / "docs/use.md").read_text().partition("## Close the loop")[2]
    commands = page.replace("\\\n", " ").splitlines()
    lines = [shlex.split(line)[1:] for line in commands if line.startswith("evert ")]
    first, served, view, rescore, export, second = lines
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples/closed_loop"), *sys.path])
    for key in ("TINKER_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(key, raising=False)

    assert cli.main(first) == 0
    with serve.serving(serve.parse(served[1:])) as text:
        [line] = [line for line in text.splitlines() if line.startswith("  export OPENAI")]
        for assignment in line.split()[1:]:
            monkeypatch.setenv(*assignment.split("="))
        runpy.run_path(str(ROOT / "examples/closed_loop/program.py"))
    assert view == ["view", "served"]
    records = [*evert.read_records("served")]
    assert len(records) == 200
    assert {record.reward for record in records} == {0.0, 0.5}
    assert [cli.main(line) for line in (rescore, export, second)] == [0, 0, 0]

    before, after = (RunFolder(Path("runs", name)) for name in ("first", "second"))
    assert {record.reward for record in evert.read_records("served")} == {0.0, 1.0}
    assert after.before["temperature_1"]["reward"] > before.after["temperature_1"]["reward"] + 0.2


@pytest.fixture
def in_examples(monkeypatch: Patch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.syspath_prepend(ROOT / "examples")


NAMES = re.compile(r"\b(?!Sort|Add )[A-Z]\w+")
FOUR = ("Tom", "Ann", "Zoe", "Ben")
CALL = '<tool_call>{"name": "multiply", "arguments": {"a": 12, "b": 34}}</tool_call>'
PRODUCT = (12, 34)


@pytest.mark.usefixtures("in_examples")
@pytest.mark.parametrize(
    ("name", "task", "replies", "earned"),
    [
        ("reverse_text", "bako", ["o k a b"], 1.0),
        ("reverse_text", "bako", ["b a k o"], 0.25),
        ("reverse_text", "bako", ["I do not know this word."], 2 * 2 / (4 + 19)),
        ("alphabet_sort", FOUR, ["Ann, Tom", "Ann, Tom, Zoe", "Ann, Ben, Tom, Zoe"], 1.0),
        ("alphabet_sort", FOUR, ["Tom, Ann", "Ann, Tom, Zoe", ""], (0.5**4 + 1) / 3),
        ("wordle", "crane", ["c l o u d", "no", "c r a n e"], 1 + 1 / 3),
        ("wordle", "crane", ["c r a s h"] * 5 + ["c a r r y"], 0.2 + 0.1 + 0.1),
        ("wordle", "crane", ["c r a n e s"] * 6, 0.0),
        ("multiply", PRODUCT, [CALL, "12 times 34 is 408."], 1.0),
        ("multiply", PRODUCT, [CALL, "408 is 12 times 34."], 0.0),
        ("multiply", PRODUCT, [CALL, CALL], 0.0),
        ("multiply", PRODUCT, [CALL.replace("34", "[]"), "408"], 1.0),
    ],
)  # fmt: skip
async def test_a_public_experiment_plays_an_episode(
    name: str, task: Any, replies: list[str], earned: float
) -> None:
    agent = runpy.run_path(str(ROOT / f"examples/{name}.py"))["agent"]
    episode = await play(agent, *replies, task=task)
    assert reward(episode) == pytest.approx(earned)


@pytest.mark.usefixtures("in_examples")
@pytest.mark.parametrize(
    ("name", "task_of"),
    [
        ("reverse_text", lambda asked, _: "".join(asked[0].rpartition(": ")[2].split())),
        ("alphabet_sort", lambda asked, _: NAMES.findall(" ".join(asked))),
        ("wordle", lambda _, said: "".join(said[-1].split())),
    ],
)
async def test_demonstrations_of_a_public_experiment_solve_training_tasks(
    name: str, task_of: Callable[[list[str], list[str]], Any]
) -> None:
    example = runpy.run_path(str(ROOT / f"examples/{name}.py"))
    assert not {*example["TRAIN"]} & {*example["TEST"]}
    messages = next(example["demonstrations"](0))
    asked, said = (
        [message["content"] for message in messages if message["role"] == role]
        for role in ("user", "assistant")
    )
    task = task_of(asked, said)
    assert (tuple(task) if isinstance(task, list) else task) in example["TRAIN"]
    assert reward(await play(example["agent"], *said, task=task)) >= 1


def test_the_prompt_search_finds_the_best_prompt() -> None:
    """The policy replies with only the number if the prompt asks for it."""

    def answer(prompt: str) -> str:
        first, second = prompt.rpartition("What is ")[2].partition("?")[0].split(" + ")
        total = int(first) + int(second)
        return f"{total}" if "Only the number" in prompt else f"It is {total}."

    questions = list[str]()

    def reflect(question: str) -> str:
        questions.append(question)
        return "```\nOnly the number.\n```"

    example = runpy.run_path("examples/gepa_prompt.py")
    result = example["optimise"](evert.ScriptedPolicy(answer), reflect, 40)
    assert result.best_candidate == {"prompt": "Only the number."}
    assert result.val_aggregate_scores == [0.0, 1.0]
    assert "You are helpful." in questions[0]
    assert "It is " in questions[0]
    assert "and nothing else" in questions[0]


@pytest.mark.nightly
async def test_two_models_that_are_trained_together_improve(tmp_path: Path) -> None:
    with evert.embedded_engine(tmp_path / "store", device="cpu", full_parameter=False, threads=1):
        await runpy.run_path("examples/compression.py")["main"](
            JsonLogger(tmp_path), seed=0, steps=3
        )
    first, *_, last = read_jsonl(tmp_path / METRICS)
    assert last["compressor/reward"] > first["compressor/reward"] + 3
    assert last["reconstructor/gain"] > first["reconstructor/gain"] + 3


def read_notebook() -> Any:
    return nbformat.read(ROOT / "examples/first_agent.ipynb", 4)  # type: ignore[no-untyped-call]


def test_the_notebook_has_the_readmes_agent_and_no_outputs() -> None:
    cells = [cell for cell in read_notebook().cells if cell.cell_type == "code"]
    [file] = [cell.source for cell in cells if cell.source.startswith("%%writefile who.py\n")]
    agent = file.partition("\n")[2]

    assert agent in (ROOT / "README.md").read_text()
    assert [cell for cell in cells if cell.outputs or cell.execution_count] == []


@pytest.mark.nightly
def test_the_notebook_shows_a_curve_and_two_episodes(tmp_path: Path, monkeypatch: Patch) -> None:
    notebook = read_notebook()
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=800, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "".join(output.get("text", "") for output in outputs)

    assert [float(reward) for reward in re.findall(r"1 turns, reward (\S+),", text)] == [-1, 1]
    assert any("image/png" in output.get("data", {}) for output in outputs)
