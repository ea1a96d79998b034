"""Examples that train, run as a reader would."""

import asyncio
import os
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.trainers.kit import Patch
from tinker_cookbook.utils.ml_log import JsonLogger

import evert
from evert.trainers import cli
from evert.trainers.commands import serve
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.files import METRICS, read_jsonl

ROOT = Path(__file__).parents[3]


def test_a_policy_gradient_on_gymnasiums_interface_learns() -> None:
    train = runpy.run_path("examples/gymnasium_reinforce.py")["train"]
    with evert.embedded_engine(threads=1):
        curve = asyncio.run(train(steps=5))
    assert max(curve[2:]) > curve[0]


def test_a_student_learns_from_a_run(tmp_path: Path, monkeypatch: Patch) -> None:
    distil = runpy.run_path("examples/distillation.py")["distil"]
    monkeypatch.chdir(tmp_path)
    distil()
    divergences = [row["teacher_kl"] for row in read_jsonl(Path("student_run", METRICS))]
    assert divergences[-1] < 0.7 * divergences[0]


def test_the_pages_loop_closes_and_the_reward_rises(tmp_path: Path, monkeypatch: Patch) -> None:
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


def test_the_prompt_that_makes_the_model_right_is_found() -> None:
    """The policy answers with the number alone where the prompt asks for it."""

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
async def test_two_models_that_learn_together_get_better(tmp_path: Path) -> None:
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
