"""Short runs of ``benchmarks/learning.py`` and ``trainers.py``, and tables of other benchmarks."""

import json
import shlex
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
from benchmarks import algorithms, drift, experiments, learning, trainers
from rich.console import Console
from tests.kit import Patch, Shown

from evert import Group, read_records
from evert.bridge.clients.client import AgentClient
from evert.envs.twenty_questions.game import QuestionGame, Rules
from evert.envs.twenty_questions.measures import measures
from evert.envs.twenty_questions.player import (
    TEST_TASKS,
    TRAIN_TASKS,
    Task,
    TwentyQuestions,
    noun_of,
)
from evert.trainers.commands.train import parse, train
from evert.trainers.config.fields import RecipeError
from evert.trainers.reporting.figures.metrics import Curve


def result(seed: int, before: float, after: float) -> dict[str, Any]:
    held_out = {
        when: {how: {"reward": mean} for how in ("greedy", "temperature_1")}
        for when, mean in (("before", before), ("after", after))
    }
    seconds = {"total": 10.0}
    return {"seed": seed, "steps": 3, "held_out": held_out, "seconds": seconds, "folder": ""}


@pytest.mark.nightly
def test_quick_benchmarks_save_their_results(tmp_path: Path, capsys: Shown) -> None:
    out = ["--out", str(tmp_path)]
    assert learning.main(["--quick", "--games", "identity", "--seeds", "1", *out]) == 0
    assert "at T = 1" in capsys.readouterr().out
    saved = json.loads((tmp_path / "learning.json").read_text())
    assert saved["machine"]["cpus"]
    assert [run["steps"] for run in saved["runs"]["identity"]] == [learning.QUICK_STEPS]
    figure = tmp_path / "docs.png"
    quick = ["--quick", "--only", "cookbook", "own", "--figure", str(figure), *out]
    assert trainers.main(quick) == 0
    saved = json.loads((tmp_path / "trainers.json").read_text())
    assert saved["machine"]["cpus"]
    lengths = [len(run["scores"]) for of in saved["runs"].values() for run in of]
    assert lengths == [trainers.QUICK_STEPS] * 2
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_trainers_log_becomes_a_curve() -> None:
    trl = [{"reward": 0.5, "step_time": 2.0}, {"reward": 0.75, "step_time": 3.0}, {"loss": 5.0}]
    verl = [{"critic/score/mean": 0.25, "timing_s/step": 6.0}]
    assert trainers.curve_of(trl, *trainers.TRL) == Curve([1, 2], [2.0, 5.0], [0.5, 0.75])
    assert trainers.curve_of(verl, *trainers.VERL) == Curve([1], [6.0], [0.25])


def test_a_benchmark_fails_if_a_run_learns_nothing(
    tmp_path: Path, capsys: Shown, monkeypatch: Patch
) -> None:
    def train(*, seed: int, **values: Any) -> SimpleNamespace:
        if seed == 0:
            raise RecipeError("it broke")
        return SimpleNamespace(result=result(seed, 0.5, 1.0 if seed == 1 else 0.5))

    monkeypatch.setattr(learning, "train", train)
    assert learning.main(["--games", "identity", "--seeds", "3", "--out", str(tmp_path)]) == 1
    failed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("FAILED")]
    assert failed == [
        "FAILED identity, seed 0: RecipeError: it broke",
        "FAILED identity, seed 2: no better after training than before",
    ]
    assert len(json.loads((tmp_path / "learning.json").read_text())["runs"]["identity"]) == 2


def curve(*scores: float) -> Curve:
    return Curve([*range(len(scores))], [2.0 * (n + 1) for n in range(len(scores))], [*scores])


def test_a_benchmark_fails_if_a_trainer_ends_with_a_low_reward(
    tmp_path: Path, capsys: Shown, monkeypatch: Patch
) -> None:
    def broken(*_: object) -> Curve:
        raise RuntimeError("it broke")

    for learns in ("cookbook", "own"):
        monkeypatch.setitem(trainers.TRAINERS, learns, lambda *_: curve(0, *[1.0] * 5))
    monkeypatch.setitem(trainers.TRAINERS, "verl", lambda *_: curve(0, *[0.94] * 5))
    monkeypatch.setitem(trainers.TRAINERS, "trl", broken)
    assert trainers.main(["--out", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert all(figure in output.out for figure in ("1.000", "0.940", "2.0"))  # 2.0 seconds a step
    assert [line for line in output.err.splitlines() if line.startswith("FAILED")] == [
        "FAILED verl, seed 0: ends at 0.940, below 0.95",
        "FAILED trl, seed 0: RuntimeError: it broke",
    ]


def test_a_failing_process_raises_and_a_slow_one_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(trainers, "PYTHON", Path(sys.executable))
    with pytest.raises(trainers.RunError, match=r"(?s)ended with code 1.*ValueError: no GPU"):
        trainers.run(tmp_path, sys.executable, "-c", "raise ValueError('no GPU')")
    monkeypatch.setattr(trainers, "LONGEST", 3.0)
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
    code = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True); "
        "sys.stdin.read(); import time; time.sleep(120)"
    )
    with pytest.raises(trainers.RunError, match="The run took over 3 s"):
        trainers.run(tmp_path, sys.executable, "-c", code)
    pid, deadline = int((tmp_path / "output.log").read_text()), time.monotonic() + 30
    with suppress(psutil.NoSuchProcess):
        left = psutil.Process(pid)
        while left.status() != psutil.STATUS_ZOMBIE:  # an orphan may stay around as a zombie
            assert time.monotonic() < deadline
            time.sleep(0.01)


ONE = Rules(max_questions=1, show_category=False)


async def first_question(client: AgentClient, task: Task) -> float:
    """Ask one question and return how many bits of information it gives."""
    game = await TwentyQuestions(rules=ONE, style="short").play(
        client, QuestionGame(noun_of(task), ONE)
    )
    scores = measures(game)
    client.metric("asks_first", scores["asks_first"])
    return scores["bits"]


@pytest.mark.nightly
def test_a_few_steps_of_rl_make_the_base_ask_the_most_informative_question(tmp_path: Path) -> None:
    run = train(
        first_question, TRAIN_TASKS, test_tasks=TEST_TASKS, model_name="evert-tiny-20q", steps=8,
        batch_size=16, group_size=16, learning_rate=2e-3, max_tokens=24, eval_every=0, save_every=0,
        samples=0, test_group_size=2, device="cpu", log_path=str(tmp_path / "run"),
        console=Console(quiet=True),
    )  # fmt: skip
    held_out = run.result["held_out"]
    before, after = (held_out[when]["temperature_1"]["reward"] for when in ("before", "after"))
    assert before < 0.75  # the best question gives 1.27 bits
    assert after > before + 0.2
    assert run.steps()[-1]["env/all/asks_first"] > 0.9


def test_only_evert_keeps_every_token_once_for_an_agent_that_compacts(
    tmp_path: Path, capsys: Shown
) -> None:
    def rows(*options: str) -> dict[str, dict[str, int]]:
        only = ["--only", "compacting", "--episodes", "2", "--out", str(tmp_path)]
        assert drift.main([*only, *options]) == 0
        saved: dict[str, Any] = json.loads((tmp_path / "drift.json").read_text())
        assert f"{saved['rows']['compacting']['evert']['rendered']:,}" in capsys.readouterr().out
        return dict(saved["rows"]["compacting"])

    def said(calls: int = 9) -> int:
        played = [record.row["steps"] for record in read_records(tmp_path / "compacting")]
        assert [len(steps) for steps in played] == [9, 9]
        return sum(len(step["tokens"]) for steps in played for step in steps[:calls])

    odd = rows()
    before, sampled = said(5), said()
    trained = {way: (row["data"], row["trained"], row["lost"]) for way, row in odd.items()}
    assert trained["evert"] == (
        4,
        sampled,
        0,
    )  # per episode: one datum before the summary, one after
    assert trained["each call"] == (18, sampled, 0)
    assert 4 < trained["merged"][0] < 18
    assert odd["last"]["lost"] > before  # later tokens that are spelled differently are lost too
    assert odd["last"]["not sampled"] > 0
    assert odd["evert"]["rendered"] * 2 < odd["each call"]["rendered"]

    tidy = rows("--tidy")
    before, sampled = said(5), said()
    assert tidy["merged"] == tidy["evert"] | {"rendered": tidy["each call"]["rendered"]}
    assert tidy["last"] | {"rendered": 0, "in data": 0} == {
        "data": 2, "trained": sampled - before, "lost": before, "not sampled": 0,
        "rendered": 0, "in data": 0,
    }  # fmt: skip


def test_a_wrong_datum_count_fails_the_benchmark_but_a_missing_program_does_not(
    tmp_path: Path, capsys: Shown, monkeypatch: Patch
) -> None:
    out = ["--quick", "--only", "claude", "compacting", "--out", str(tmp_path)]
    missing = drift.CASES["claude"]._replace(program="no-such-program")
    monkeypatch.setitem(drift.CASES, "claude", missing)
    wrong = drift.CASES["compacting"]._replace(conversations=1)
    monkeypatch.setitem(drift.CASES, "compacting", wrong)
    assert drift.main(out) == 1
    shown = capsys.readouterr().out
    assert "no-such-program is not installed: npm install -g @anthropic-ai/claude-code" in shown
    assert "FAILED compacting: expected 1 data (one per conversation)" in shown
    monkeypatch.setitem(drift.CASES, "compacting", wrong._replace(conversations=2))
    assert drift.main(out) == 0


def save_run(folder: Path, rewards: list[float], after: float = 0.8) -> None:
    """Save a run's results so that the benchmark does not repeat the run."""
    record = {"before": 0.5, "after": after, "rewards": rewards, "tokens": 1000}
    path = folder.with_suffix(".json")
    path.write_text(json.dumps({**record, "seconds": 60.0, "cpu_seconds": 50.0}))


def test_the_settings_of_every_experiment_and_algorithm_can_be_parsed() -> None:
    rows = [f"{row.game} {row.training}" for row in experiments.EXPERIMENTS.values()]
    rows += [f"{algorithms.SUMS} {settings}" for settings, _ in algorithms.ROWS.values()]
    assert len(rows) == 20
    for row in rows:
        assert parse(shlex.split(f"{row} {experiments.COMMON}"))


def test_a_row_without_a_warm_up_starts_with_the_untrained_score(
    tmp_path: Path, capsys: Shown
) -> None:
    save_run(tmp_path / "multiply-0", [0.5, 0.7], after=1.0)
    assert experiments.main(["--only", "multiply", "--seeds", "0", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("0.50") == 2


@pytest.mark.parametrize(("after", "code"), [(0.8, 0), (0.1, 1)])
def test_a_public_experiment_outside_its_interval_fails_the_benchmark(
    tmp_path: Path, capsys: Shown, monkeypatch: Patch, after: float, code: int
) -> None:
    row = replace(experiments.EXPERIMENTS["reverse_text"], accepted=(0.7, 0.9))
    monkeypatch.setitem(experiments.EXPERIMENTS, "reverse_text", row)
    untrained = tmp_path / "reverse_text-untrained"
    untrained.mkdir()
    (untrained / "scores.csv").write_text("model,reward\nsmollm2,0.1\n")
    for seed in range(3):
        save_run(tmp_path / f"reverse_text-{seed}", [0.5, 0.7], after + 0.01 * seed)

    assert experiments.main(["--only", "reverse_text", "--out", str(tmp_path)]) == code
    output = capsys.readouterr()
    assert all(figure in output.out for figure in ("0.10", f"{after + 0.01:.2f} (", "1,000"))
    assert ("FAILED reverse_text: 0.110 is outside 0.7 to 0.9" in output.err) == bool(code)


def test_the_table_of_algorithms_marks_a_collapsed_run(tmp_path: Path, capsys: Shown) -> None:
    for seed in range(3):
        save_run(tmp_path / f"sums-0-{seed}", [0.1, 0.3, 0.5, 0.6, 0.6, 0.6, 0.6])
        save_run(tmp_path / f"sums-10-{seed}", [0.6] * 5 + [0.1 if seed else 0.6] * 5)
    names = [[*algorithms.ROWS][number] for number in (0, 10)]
    figure = tmp_path / "figure.png"

    out = ["--out", str(tmp_path), "--plot", str(figure)]
    assert algorithms.main(["--only", *names, *out]) == 0
    shown = capsys.readouterr().out
    assert "2 of 3 collapsed" in shown
    assert shown.count("collapsed") == 1
    assert figure.read_bytes().startswith(b"\x89PNG")
    save_run(tmp_path / "sums-0-0", [0.1] * 7)
    assert algorithms.main(["--only", names[0], *out]) == 1
    assert "FAILED importance_sampling" in capsys.readouterr().err


def test_dividing_by_the_standard_deviation_gives_each_group_the_same_scale() -> None:
    different, alike = (
        algorithms.divided(cast(Group, SimpleNamespace(rewards=np.array(rewards))))
        for rewards in ([0.0, 0.0, 0.0, 1.0], [1.0] * 4)
    )
    assert different.std() == pytest.approx(1, abs=1e-4)
    assert alike.tolist() == [0] * 4
