"""Which values a sweep searches, and what its journal records."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from tests.kit import Patch

from evert.bridge.errors import EvertError
from evert.trainers.commands.train import parse
from evert.trainers.sweeping.study import Record, SweepPlan, SweepRun, choices, read_plan
from evert.trainers.system.files import RunFolderError

GAME = {"env": "identity", "steps": "2"}
CARDS, LAKE = "gymnasium:Blackjack-v1", "gymnasium:FrozenLake-v1"
SEEDS = {"seed": "0,1,2"}


def plan(**given: str) -> SweepPlan:
    """Return the plan of a sweep over the game."""
    return read_plan({**GAME, **given})


Cat, Float, Int = CategoricalDistribution, FloatDistribution, IntDistribution


@pytest.mark.parametrize(
    ("given", "space", "trials"),
    [
        (
            {"learning_rate": "1e-4,3e-4", "loss_fn": "ppo,cispo"},
            {"learning_rate": Cat((1e-4, 3e-4)), "loss_fn": Cat(("ppo", "cispo"))},
            4,
        ),
        (
            {"learning_rate": "1e-4..1e-2", "group_size": "4..16"},
            {"learning_rate": Float(1e-4, 1e-2, log=True), "group_size": Int(4, 16)},
            20,
        ),
        ({"on_agent_error": "0..1"}, {"on_agent_error": Float(0, 1)}, 20),
        ({"on_agent_error": "-1..1"}, {"on_agent_error": Float(-1, 1)}, 20),
        ({"on_agent_error": "0.1..0.5"}, {"on_agent_error": Float(0.1, 0.5, log=True)}, 20),
        ({"on_agent_error": "0.1..0.5:linear"}, {"on_agent_error": Float(0.1, 0.5)}, 20),
        ({"batch_size": "4..64:LOG"}, {"batch_size": Int(4, 64, log=True)}, 20),
        ({"env": "", "tasks": f"{CARDS},{LAKE}"}, {"tasks": Cat((CARDS, LAKE))}, 2),
        ({"learning_rate": "1e-3,0.001,2e-3"}, {"learning_rate": Cat((1e-3, 2e-3))}, 2),
        (
            {"env": "identity,guess-number", "threads": "None,2"},
            {"env": Cat(("identity", "guess_number")), "threads": Cat((None, 2))},
            4,
        ),
        ({"seed": "0,1", "allow_hosts": "a,b"}, {"seed": Cat((0, 1))}, 2),  # allow_hosts is a list
        (
            {"learning_rate": "1e-4..1e-2", **SEEDS},  # both share the default run count
            {"learning_rate": Float(1e-4, 1e-2, log=True), "seed": Cat((0, 1, 2))},
            21,
        ),
    ],
)
def test_lists_and_ranges_become_search_spaces(
    given: dict[str, str], space: dict[str, Any], trials: int
) -> None:
    found = plan(**given)
    assert (found.space, found.trials) == (space, trials)
    assert found.fixed == {key: v for key, v in {**GAME, **given}.items() if key not in space}
    is_grid = all(isinstance(each, CategoricalDistribution) for each in space.values())
    assert found.search == ("grid" if is_grid else "random")


def test_the_arguments_of_a_run_are_parsed_back_to_its_settings() -> None:
    found = plan(learning_rate="1e-5..1e-2", threads="None,2")
    chosen = parse(found.arguments({"learning_rate": 1.234567890123e-5, "threads": None}))
    assert (chosen.learning_rate, chosen.threads) == (1.234567890123e-5, None)
    key, other = "cookbook.temperature", "cookbook.loss_fn_config.clip_low_threshold"
    found = read_plan({**GAME, key: "0.5..1.0", other: "0.1,0.2"})
    assert found.space[key] == FloatDistribution(0.5, 1.0, log=True)
    chosen = parse(found.arguments({key: 0.75, other: choices(found.space[other])[0]}))
    values = {name: float(value) for name, value in chosen.cookbook.items()}
    assert values == {"temperature": 0.75, "loss_fn_config.clip_low_threshold": 0.1}


OWN = {"env": "", "train_tasks": "nowhere:T", "agent": "nowhere:a", "seed": "0,1"}


def test_an_error_for_invalid_arguments_says_what_to_do() -> None:
    refused: list[tuple[Mapping[str, str], str]] = [
        ({}, "nothing to search.*learning_rate=1e-4,3e-4"),
        ({"base_url": "../a..b"}, "nothing to search"),
        ({"seed": "5..2"}, r"Got seed=5..2, expected a range such as 1..10: .*low"),
        ({"seed": "0..9:log"}, "expected a range such as 1..10: .*low.*log"),
        ({"seed": "0..9", "search": "grid"}, "search=grid only works with lists, but seed h"),
        ({"seed": "0,1", "search": "bayes"}, "search.* got 'bayes'"),
        ({"seed": "0,1", "trials": "5"}, "Got trials=5, expected 2, the size of the grid"),
        ({"seed": "0..9", "trials": "none"}, "trials.* got 'none'"),
        ({"seed": "0..9", "trials": "0"}, "trials must be at least 1, got 0"),
        ({**SEEDS, "trials": "10", "search": "tpe"}, "trials=10, expected a multiple of 3"),
        ({"seed": "0,1", "test_tasks": ""}, "requires held-out tasks"),
        ({"seed": "0,1", "loss_fn": "ppo,poo"}, "poo"),
        ({"seed": "0,1", "group_size": "0,4"}, "group_size must be at least 1"),
        ({"seed": "0,1", "steps": "1.5..3"}, "1.5"),
        ({"seed": "0,1", "learning_rate": "..2"}, r"\.\.2"),
        ({"seed": "0,1", "env": "identity,identiy"}, "Did you mean env=identity"),
        (OWN, "nowhere"),
    ]
    for given, message in refused:
        with pytest.raises(EvertError, match=message):
            plan(**given)


GRID = plan(seed="0,1,2", group_size="2,4", renderer_name="None,qwen3")
DRAWN = {"learning_rate": "1e-4..1e-2", "group_size": "2..64", "loss_fn": "ppo,cispo"}
RANDOM = plan(**DRAWN, trials="12")


def do(record: Record, *endings: str) -> list[SweepRun]:
    """Do one run per ending. A completed run scores its own number."""
    tried = []
    for ending in endings:
        run = record.next()
        assert run is not None
        tried.append(run)
        if ending != "running":
            error = "" if ending == "completed" else "why"
            attempt = {"status": ending, "seconds": 1.5, "error": error}
            record.finish(run, attempt, run.number if ending == "completed" else None)
    return tried


def test_a_grid_has_every_point_once_even_if_the_sweep_is_interrupted(tmp_path: Path) -> None:
    do(Record(GRID, tmp_path), "completed", "failed", "completed", "running", "running")
    again = do(Record(GRID, tmp_path), "completed", "running", "failed")
    assert [run.number for run in again] == [1, 3, 4]
    last = Record(GRID, tmp_path)
    assert [run.number for run in do(last, *["completed"] * 9)] == [3, 4, *range(5, 12)]
    assert last.next() is None
    assert len({tuple(run.values.items()) for run in last.runs}) == len(last.runs) == 12
    assert [run.objective for run in last.runs] == list(range(12))
    assert [len(run.attempts) for run in last.runs] == [1, 2, 1, 3, 3, *[1] * 7]


def test_a_torn_journal_line_is_skipped_and_an_invalid_journal_is_named(tmp_path: Path) -> None:
    do(Record(GRID, tmp_path), "completed", "failed")
    with (tmp_path / "journal.log").open("a") as journal:
        journal.write('{"op_code": 4, "worker')
    do(Record(GRID, tmp_path), "completed")
    assert [len(run.attempts) for run in Record(GRID, tmp_path).runs] == [1, 2]
    for number, line in enumerate(("{}", '{"op_code": 99}', '{"op_code": 4, "trial_id": "x"}')):
        (folder := tmp_path / str(number)).mkdir()
        do(Record(GRID, folder), "completed")
        with (folder / "journal.log").open("a") as journal:
            journal.write(f"{line}\n")
        with pytest.raises(RunFolderError, match=r"journal\.log cannot be read"):
            Record(GRID, folder)


def test_each_attempt_keeps_its_status(tmp_path: Path) -> None:
    record = Record(GRID, tmp_path)
    do(record, "failed", "running", "interrupted")
    attempts = [run.attempts for run in record.runs]
    record = Record(GRID, tmp_path)
    assert [run.attempts for run in record.runs][::2] == attempts[::2]
    do(record, "completed", "running")
    first, second, third = record.runs
    assert [attempt["status"] for attempt in first.attempts] == ["failed", "completed"]
    assert (first.attempts[0]["error"], first.objective) == ("why", 0.0)
    assert [attempt["status"] for attempt in second.attempts] == ["interrupted", "running"]
    assert second.attempts[0]["error"] == "killed with the sweep"
    assert [attempt["status"] for attempt in third.attempts] == ["interrupted"]


def test_an_interrupted_random_search_draws_the_same_values(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = do(Record(RANDOM, tmp_path / "whole"), *["completed"] * 12)
    do(Record(RANDOM, tmp_path / "parts"), "completed", "running", "failed")
    parts = Record(RANDOM, tmp_path / "parts")
    do(parts, *["completed"] * 11)
    assert parts.next() is None
    assert [run.values for run in parts.runs] == [run.values for run in whole]
    assert len({run.values["learning_rate"] for run in whole}) == 12
    assert all(1e-4 <= run.values["learning_rate"] <= 1e-2 for run in whole)


class Killed(BaseException):
    """Simulates a kill in the middle of a call."""


@pytest.mark.parametrize("call", ["ask", "enqueue_trial"])
@pytest.mark.parametrize("chosen", [GRID, RANDOM], ids=["grid", "random"])
def test_a_sweep_that_is_killed_while_drawing_loses_no_run(
    tmp_path: Path, monkeypatch: Patch, chosen: SweepPlan, call: str
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    expected = [run.values for run in do(Record(chosen, whole), *["completed"] * 12)]
    do(Record(chosen, tmp_path), "completed", "failed")
    record = Record(chosen, tmp_path)
    real: Any = getattr(optuna.Study, call)

    def killed(study: optuna.Study, *_: Any, **known: Any) -> None:
        real(study, *([{}] if call == "enqueue_trial" else []), **known)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, call, killed)
        with pytest.raises(Killed):
            record.next()
    record = Record(chosen, tmp_path)
    do(record, *["completed"] * 11)
    assert record.next() is None
    assert [run.values for run in record.runs] == expected


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_every_drawn_combination_gets_each_seed(tmp_path: Path, search: str) -> None:
    chosen = plan(learning_rate="1e-4..1e-2", search=search, trials="6", **SEEDS)
    do(Record(chosen, tmp_path), "completed", "failed")
    record = Record(chosen, tmp_path)
    do(record, *["completed"] * 5)
    assert record.next() is None
    assert [run.values["seed"] for run in record.runs] == [0, 1, 2, 0, 1, 2]
    rates = [run.values["learning_rate"] for run in record.runs]
    assert rates == [rates[0]] * 3 + [rates[3]] * 3
    assert rates[0] != rates[3]


def test_a_tpe_search_moves_towards_higher_scores(tmp_path: Path) -> None:
    record = Record(plan(learning_rate="1e-5..1e-1", search="tpe", trials="40"), tmp_path)
    rates = []
    while (run := record.next()) is not None:
        rates.append(run.values["learning_rate"])  # the objective: larger is better
        record.finish(run, {"status": "completed", "seconds": 1.0, "error": ""}, rates[-1])
    assert len(rates) == 40
    assert sum(rates[20:]) > 2 * sum(rates[:10])
