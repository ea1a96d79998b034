"""``evert report`` on run folders made up here; ``test_report_browser.py`` has real ones."""

import html.parser
import json
import math
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.kit import Patch, Shown

from evert.envs.games import Game, Metric, games
from evert.trainers.commands import report
from evert.trainers.episodes.intervals import half_of
from evert.trainers.episodes.scores import Score
from evert.trainers.reporting import panels
from evert.trainers.reporting.figures.metrics import time_spent
from evert.trainers.reporting.figures.style import MOST_LINES
from evert.trainers.reporting.run import (
    EPISODE_TOKENS,
    HELD_OUT_SUCCESS,
    SUCCESS,
    ReportError,
    Run,
    read_run,
)
from evert.trainers.reporting.sections import (
    differing_settings,
    facts,
    labels,
    reward_curve,
    settings,
)
from evert.trainers.reporting.tokens import (
    Tokens,
    cost,
    count_tokens,
    read_rollouts,
    rewards_error,
    rollout_files,
)
from evert.trainers.reporting.transcripts import held_out_episodes, training_episodes
from evert.trainers.rundir.metrics import FAILED, HELD_OUT_REWARD, SKIPPED, TRAIN_REWARD

HOSTILE = """\"'><script>document.title = "taken"</script><img src=x onerror="document.title=1">
</style></p></section>{{ 7 * 7 }}{% raw %}<a href="javascript:alert(1)" onclick=alert(1)>&lt;"""
ROLLOUTS = "train_rollout_summaries.jsonl"


def row(step: int, **more: Any) -> dict[str, Any]:
    """A step's metrics as the Cookbook writes them: two seconds, eight episodes."""
    return {
        "step": step, "progress/done_frac": 0.5, "time/total": 2.0, "time/sampling": 0.5,
        "time/train_step": 1.25, "env/all/reward/total": step / 10, "env/all/total_episodes": 8,
        "env/all/total_ac_tokens": 80, "env/all/total_ob_tokens": 400,
        "env/all/ac_tokens_per_turn": 10.0, "optim/entropy": 0.5, **more,
    }  # fmt: skip


def turn(given: int, sampled: int, *, lineage: int | None = 0, **notes: Any) -> dict[str, Any]:
    """A step of a rollout record."""
    known = {} if lineage is None else {"lineage": lineage}
    logs = {"caller": "evert agent", **known, **notes}
    return {"ob_len": given, "ac_len": sampled, "reward": 0.0, "metrics": {}, "logs": logs}


def episode(*turns: dict[str, Any], group: int = 0, reward: float = 1.0) -> dict[str, Any]:
    """A rollout record."""
    turns[-1]["metrics"] = {"stop/completed": 1.0, "lineages": 1, "drift": 0}
    return {
        "schema_version": 1, "group_idx": group, "traj_idx": 0, "total_reward": reward,
        "steps": list(turns),
    }  # fmt: skip


def scores(mean: float) -> dict[str, Any]:
    """Held-out scores, greedy a tenth above."""
    return {
        name: asdict(Score("game", "test", "", 4, 0.5, 0.25, 0.75, value, None, 0.0, 0))
        for name, value in (("greedy", mean + 0.1), ("temperature_1", mean))
    }


def sample(said: str, reward: float = 0.0) -> dict[str, Any]:
    """A held-out episode of one turn."""
    dialogue = [{"told": "Say seven.", "said": said}]
    return {"target": "7", "reward": reward, "dialogue": dialogue}


def write_lines(path: Path, records: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@dataclass
class MadeUp:
    """A run folder, written file by file."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=lambda: [row(step) for step in range(3)])

    def write(self, *, finished: bool = True, name: str = "game", **values: Any) -> Path:
        """Write the folder with settings; an unfinished run has no result."""
        self.path.mkdir(parents=True, exist_ok=True)
        facts = {
            "name": name,
            "settings": {"env": name, "model_name": "tiny", "steps": 3, **values},
            "command": ["evert", "train", f"env={name}"],
            "engine": {"engine": "embedded", "device": "cpu", "parameters": 853376},
            "versions": {"evert": "0.1.0"},
            "git": "abcdef-dirty",
            "machine": {"system": "Linux", "cpus": 2},
        }
        self._json("run.json", facts)
        self._json("before.json", {"scores": scores(0.25), "samples": [sample("six")]})
        write_lines(self.path / "metrics.jsonl", self.rows)
        if finished:
            self._json("result.json", {"held_out": {"before": scores(0.25), "after": scores(0.75)}})
            both = {"task": "7", "before": sample("six"), "after": sample("seven", 1.0)}
            write_lines(self.path / "samples.jsonl", [both])
        return self.path

    def rollouts(self, step: int, *records: dict[str, Any]) -> None:
        """Write a step's rollout file."""
        write_lines(self.path / f"iteration_{step:06d}" / ROLLOUTS, records)

    def _json(self, name: str, value: Any) -> None:
        (self.path / name).write_text(json.dumps(value))


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    return MadeUp(tmp_path / "run")


def page_of(*arguments: str | Path) -> str:
    """The page that the command writes."""
    out = Path(arguments[0]) / "report"
    assert report.main([str(argument) for argument in arguments]) == 0
    return (out / "index.html").read_text(encoding="utf-8")


def test_a_run_is_read_as_far_as_it_went(made: MadeUp) -> None:
    made.rows[0][HELD_OUT_REWARD] = 0.25
    run = read_run(made.write())
    assert (run.name, run.finished, run.progress, run.seconds) == ("game", True, "3 of 3", 6.0)
    assert (run.before["temperature_1"].reward, run.after["greedy"].reward) == (0.25, 0.85)
    assert [step["step"] for step in run.rows] == [0, 1, 2]
    assert run.rows[0][EPISODE_TOKENS] == 10.0
    curve = run.curve(HELD_OUT_REWARD)  # which ends with the final weights
    assert (curve.steps, curve.scores, curve.seconds) == ([0, 3], [0.25, 0.75], [0.0, 6.0])
    spent = {"sampling": 1.5, "training": 3.75, "held-out scores": 0.0, "the rest": 0.75}
    assert time_spent(run.rows) == spent
    made.rows = [row(0, note="text"), {"no": "step"}, row(1, **{TRAIN_REWARD: math.nan})]
    run = read_run(made.write())
    assert (run.curve(TRAIN_REWARD).steps, run.curve("note").steps) == ([1], [])
    made.rows = [{"step": 0, "progress/done_frac": 1.0, "time/total": 1.0}]
    assert time_spent(read_run(made.write()).rows) is None


def test_an_unfinished_run_is_said_to_be_one_and_may_have_no_figures(made: MadeUp) -> None:
    made.rows = made.rows[:1]
    run = read_run(made.write(finished=False))
    assert (run.finished, bool(run.before), bool(run.after)) == (False, True, False)
    assert [record["before"]["dialogue"][0]["said"] for record in run.samples] == ["six"]
    assert list(held_out_episodes(run)) == ["Before training"]
    text = Tags(page_of(made.path)).words
    assert "0.25 → …" in text
    assert "steps 1 of 3, not finished" in text
    made.rows = []
    run = read_run(made.write(finished=False))
    assert (run.rows, run.seconds, count_tokens(run)) == ([], 0.0, None)
    page = page_of(made.path)
    assert "<img" not in page
    assert "not shown: tokens" in page
    assert "Say seven." in page


def test_a_run_of_the_cookbooks_own_is_read_with_its_held_out_scores(tmp_path: Path) -> None:
    """Its asynchronous loop writes them beside the training, after the last step, too."""
    (tmp_path / "config.json").write_text('{"learning_rate": 0.1, "max_steps": 5}')
    scored = {"time/total": 9.0, "test/time/evaluation": 1.0}
    held = [{"step": step, HELD_OUT_REWARD: 0.25 + step / 4, **scored} for step in range(3)]
    write_lines(tmp_path / "metrics.jsonl", [held[0], row(0), row(1), *held[1:]])
    run = read_run(tmp_path)
    assert (run.name, run.settings["learning_rate"]) == (tmp_path.name, 0.1)
    assert run.progress == "2 of 5, not finished"
    assert run.curve(TRAIN_REWARD).steps == [1, 2]
    held_out = run.curve(HELD_OUT_REWARD)
    assert (held_out.steps, held_out.scores) == ([0, 1, 2], [0.25, 0.5, 0.75])
    assert held_out.seconds == [0.0, 2.0, 4.0]
    assert (len(run.rows), run.seconds) == (2, 4.0)


def test_a_step_done_again_keeps_only_the_held_out_scores_of_the_first(made: MadeUp) -> None:
    again = row(1, **{TRAIN_REWARD: 9.0})
    made.rows = [row(0), row(1, odd=1.0), {"step": 1, HELD_OUT_REWARD: 0.5}, again]
    run = read_run(made.write())
    assert run.curve(TRAIN_REWARD).scores == [0.0, 9.0]
    assert "odd" not in run.rows[1]
    assert run.rows[1][HELD_OUT_REWARD] == 0.5


def test_what_another_version_wrote_is_left_out(made: MadeUp) -> None:
    made.rows[0][HELD_OUT_REWARD] = 0.25
    failure = {"kind": "agent_error", "error": "ValueError: no table"}
    line = {"episodes": 4, "kinds": {"agent_error": 1}, "found": [[failure, 1]]}
    others: list[dict[str, Any]] = [
        {"kinds": {"unheard_of": 1}},
        {"kinds": {"agent_error": "a"}},
        {"found": [[{**failure, "kind": "unheard_of"}, 1]]},
        {"found": [[{**failure, "error": 3}, 1]]},
        {"metrics": None},
    ]
    path = made.write(finished=False)
    lines = [{"step": 0, "metrics": {SKIPPED: 1.0}, **line, **other} for other in ({}, *others)]
    write_lines(path / "batches.jsonl", lines)
    (path / "before.json").write_text('{"scores": {"temperature_1": 3}}')
    run = read_run(path)
    assert run.rows[0][HELD_OUT_REWARD] == 0.25
    assert run.skipped == 1
    assert run.failures.describe().startswith("2 of 8 episodes failed (2 agent errors)")


def test_success_is_found_under_the_names_that_agents_use(made: MadeUp) -> None:
    for name in ("success", "found", "correct"):
        made.rows = [row(0, **{f"env/all/{name}": 0.5}), row(1, **{f"test/env/all/{name}": 0.75})]
        run = read_run(made.write())
        assert run.curve(SUCCESS).scores == [0.5]
        held_out = run.curve(HELD_OUT_SUCCESS)
        assert (held_out.scores, held_out.seconds) == ([0.75], [2.0])


def test_a_folder_that_is_no_run_is_refused_with_what_to_do(made: MadeUp, tmp_path: Path) -> None:
    made.write()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, message in (
        ("empty", "is not a run's folder: it has no readable run.json"),
        ("file", "is a file, not a run's folder"),
        ("rum", "Did you mean .*run?"),
        (".", "it has no readable run.json. Runs are in it: .*run"),
        ("a/b/c", "There is no folder"),
    ):
        with pytest.raises(ReportError, match=message):
            read_run(tmp_path / name)


def test_what_is_no_run_among_several_paths_is_named_and_left_out(
    made: MadeUp, tmp_path: Path, capsys: Shown
) -> None:
    run, broken = made.write(), MadeUp(tmp_path / "broken").write()
    (broken / "run.json").write_text('{"name": "ga')
    (broken / "config.json").write_text('{"max_steps": 5}')
    (tmp_path / "empty").mkdir()
    others = [str(tmp_path / name) for name in ("empty", "broken")]
    assert report.main([*others, str(run)]) == 0
    shown = capsys.readouterr().out
    assert f"left out: {others[0]} is not a run's folder: it has no readable run.json" in shown
    assert f"left out: {others[1]}/run.json is broken: expected the file that" in shown
    assert f"report: {run / 'report' / 'index.html'}" in shown
    for paths, said in (
        ([str(run), str(tmp_path / "rum")], "Did you mean"),
        (others[1:], "run.json is broken"),
        (others, "None of these 2 paths is a run. Name a run: runs/NAME."),
    ):
        assert report.main(paths) == 1
        assert said in capsys.readouterr().err


def runs_with(tmp_path: Path, *values: dict[str, Any]) -> list[Run]:
    """Made-up runs with settings."""
    return [
        read_run(MadeUp(tmp_path / str(number) / "folder").write(**each))
        for number, each in enumerate(values)
    ]


def test_runs_get_names_that_tell_them_apart(tmp_path: Path) -> None:
    none = ["folder (1)", "folder (2)"]
    table: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
        ({"name": "a"}, {"name": "b"}, ["a", "b"]),
        ({"seed": 0}, {"seed": 1}, ["game, seed=0", "game, seed=1"]),
        ({"seed": 0}, {"seed": 0}, none),
        ({"x": 0.123456}, {"x": 1e-4}, ["game, x=0.1235", "game, x=0.0001"]),
        ({"x": 0.123456}, {"x": 0.123457}, none),
        ({"x": 0, "y": 0, "z": 0}, {"x": 1, "y": 1, "z": 1}, none),
    ]
    for number, (one, other, expected) in enumerate(table):
        assert labels(runs_with(tmp_path / str(number), one, other)) == expected


def test_settings_that_differ_come_first_and_paths_do_not_count(tmp_path: Path) -> None:
    runs = runs_with(tmp_path, {"log_path": "a", "seed": 0}, {"log_path": "b", "seed": 1})
    assert differing_settings(runs) == ["seed"]
    assert settings(runs).rows[0] == ("seed", ["0", "1"])
    table = facts(runs)
    assert table.rows[0] == ("seed", ["0", "1"])
    assert table.differ == {"seed"}
    assert dict(table.rows)["git revision"] == ["abcdef-dirty", "abcdef-dirty"]
    assert dict(table.rows)["command"] == ["evert train env=game"] * 2
    older = runs_with(tmp_path / "older", {"new": 1}, {})
    assert differing_settings(older) == []
    assert dict(settings(older).rows)["new"] == ["1", "not recorded"]


def test_the_interval_of_a_steps_reward_is_that_of_its_episodes(made: MadeUp) -> None:
    path = made.write()
    made.rollouts(1, *(episode(turn(9, 1), group=g, reward=float(g == 0)) for g in range(4)))
    (file,) = rollout_files(path).values()
    assert rewards_error(file) == half_of([[1.0], [0.0], [0.0], [0.0]])
    drawn = reward_curve(read_run(path), TRAIN_REWARD)
    assert drawn.steps == [1, 2, 3]
    assert drawn.errors == pytest.approx([math.nan, rewards_error(file), math.nan], nan_ok=True)


def test_a_conversation_is_trained_on_once_a_lineage_where_that_was_recorded(made: MadeUp) -> None:
    made.rows = [row(0)]  # 480 tokens: as many as its rollouts have
    path = made.write()
    linear = episode(turn(100, 10), turn(120, 10))
    forked = episode(turn(100, 10), turn(110, 20, lineage=1))
    made.rollouts(0, linear, forked)
    tokens = count_tokens(read_run(path))
    assert tokens == Tokens(prefill=400, sample=80, train=130 + 110 + 130, is_estimate=False)
    held_out = {"test/env/all/total_ob_tokens": 1000, "test/env/all/total_ac_tokens": 100}
    made.rows = [row(0, **held_out)]  # which are not trained on
    tokens = count_tokens(read_run(made.write()))
    assert tokens == Tokens(prefill=1400, sample=180, train=370, is_estimate=False)
    for records in ([], [episode(turn(100, 10, lineage=None))]):
        made.rollouts(0, *records)
        tokens = count_tokens(read_run(path))
        assert tokens is not None
        assert tokens.train is None


def test_of_many_steps_some_are_read_and_the_count_is_an_estimate(made: MadeUp) -> None:
    made.rows = [row(step) for step in range(60)]
    path = made.write()
    for step in range(60):
        made.rollouts(step, episode(turn(45, 5), turn(45, 5)))
    tokens = count_tokens(read_run(path))
    assert tokens is not None
    assert (tokens.train, tokens.is_estimate) == (60 * 480 // 2, True)


def test_a_cost_needs_a_price_and_a_count() -> None:
    tokens = Tokens(prefill=2_000_000, sample=1_000_000, train=500_000, is_estimate=False)
    unknown = replace(tokens, train=None)
    for of, prices, dollars_in_all in (
        (tokens, {}, None),
        (tokens, {"prefill": 0.5, "sample": 2.0, "train": 4.0}, 1.0 + 2.0 + 2.0),
        (tokens, {"sample": 0.0}, 0.0),
        (unknown, {"sample": 2.0}, 2.0),
        (unknown, {"sample": 2.0, "train": 4.0}, None),
    ):
        assert cost(of, prices) == dollars_in_all


def test_training_episodes_are_of_the_first_the_middle_and_the_last_step(made: MadeUp) -> None:
    path = made.write()
    for step in range(5):
        made.rollouts(step, *(episode(turn(9, 1, guess=f"{step}-{g}"), group=g) for g in range(3)))
    file = path / "iteration_000000" / ROLLOUTS  # with lines that are no episodes
    file.write_text('{"cut of\n{"schema_version": 99}\n' + file.read_text())
    columns = training_episodes(read_run(path))
    assert list(columns) == ["Step 1", "Step 3", "Step 5"]
    for episodes, step in zip(columns.values(), (0, 2, 4), strict=True):
        shown = [each.turns[0].texts for each in episodes]
        assert shown == [[("guess", f"{step}-0")], [("guess", f"{step}-1")]]
        assert episodes[0].ending == "1 turn, completed"


def test_lines_that_lack_something_are_left_out(made: MadeUp) -> None:
    path, whole = made.write(), episode(turn(9, 1))
    odd: list[Any] = [[{}], [5], 5, [turn(9, 1) | {"reward": None}]]
    unsaid = whole | {"total_reward": None}
    made.rollouts(0, unsaid, *(whole | {"steps": steps} for steps in odd), whole)
    both = {"task": "7", "before": sample("six"), "after": None}
    write_lines(path / "samples.jsonl", [{"before": 5}, both, {"after": "seven"}])
    assert read_rollouts(path / "iteration_000000" / ROLLOUTS) == [whole]
    assert read_run(path).samples == [both]
    page_of(path)


def test_who_called_is_shown_only_where_there_are_several(made: MadeUp) -> None:
    path = made.write()
    two = episode(turn(9, 1), {**turn(9, 1, lineage=1), "logs": {"caller": "tool", "lineage": 1}})
    two["steps"][-1]["metrics"]["drift"] = 2
    made.rollouts(0, two)
    ((shown,),) = training_episodes(read_run(path)).values()
    assert shown.turns[1].texts == [("caller", "tool"), ("lineage", "1")]
    assert shown.ending == "2 turns, completed, drift 2"


def test_long_episodes_and_long_texts_say_what_is_missing(made: MadeUp) -> None:
    path = made.write()
    made.rollouts(0, episode(*(turn(9, 1, n=number, text="x" * 90) for number in range(500))))
    ((shown,),) = training_episodes(read_run(path)).values()
    numbers = [dict(each.texts)["n"] for each in shown.turns]
    assert (numbers[:2], numbers[-2:]) == (["0", "1"], ["10", "499"])
    assert shown.left_out == 500 - len(shown.turns) == 488
    notes: dict[str, Any] = {f"note {number}": "y" * 5000 for number in range(20)}
    made.rollouts(0, episode(turn(9, 1, **notes)))
    ((shown,),) = training_episodes(read_run(path)).values()
    texts = shown.turns[0].texts
    assert texts[0][1].endswith("… (3,000 more characters)")
    assert texts[1:] == [("…", "19 more notes are not shown")]


def test_held_out_episodes_are_shown_before_on_the_way_and_after(made: MadeUp) -> None:
    path = made.write()
    for step in range(3):
        games = [episode(turn(9, 1, question=f"{step}-{g}"), group=g) for g in range(3)]
        made.rollouts(step, episode(turn(9, 1, question="in training")))
        write_lines(path / f"iteration_{step:06d}" / "eval_test_rollout_summaries.jsonl", games)
    shown = held_out_episodes(read_run(path))
    assert list(shown) == ["Before training", "After 2 steps, temperature 1", "After training"]
    (before,), during, (after,) = shown.values()
    assert before.turns[0].texts == [("told", "Say seven."), ("said", "six")]
    assert [e.turns[0].texts for e in during] == [[("question", "2-0")], [("question", "2-1")]]
    assert (after.reward, after.ending) == (1.0, "task 7, 1 turn")


class Tags(html.parser.HTMLParser):
    """Every tag with its attributes, and all text but the style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] != "style":
            self.text += data

    def attributes(self) -> Iterator[tuple[str, str | None]]:
        for _, attributes in self.tags:
            yield from attributes.items()

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def write_hostile(made: MadeUp) -> Path:
    """A run in which every text is an attack."""
    note: dict[str, Any] = {HOSTILE: HOSTILE}
    made.rows = [row(step, **{f"env/all/drift/{HOSTILE}": 1.0}) for step in range(3)]
    path = made.write(name=HOSTILE, agent=HOSTILE, **note)
    made.rollouts(0, episode(turn(9, 1, **note, nul="\x00\x1b[31m\x9b1m", half="\ud83d")))
    both = {"task": HOSTILE, "before": sample(HOSTILE), "after": sample(HOSTILE)}
    write_lines(path / "samples.jsonl", [both])
    return path


def test_hostile_text_is_text_and_the_page_names_nothing_outside_itself(made: MadeUp) -> None:
    page = page_of(write_hostile(made), f"title={HOSTILE}")
    tags = Tags(page)
    names = {tag for tag, _ in tags.tags}
    assert not names & {"script", "iframe", "object", "embed", "form", "base"}
    assert tags.text.count(HOSTILE) >= 5
    assert "{{ 7 * 7 }}" in tags.text
    assert not {"\x00", "\x1b", "\x9b"} & set(tags.text)  # no escape sequences of a terminal's
    for name, value in tags.attributes():
        assert not name.startswith("on")
        if name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (value or "").startswith(("data:", "#")), value
    (policy,) = [
        attributes["content"]
        for tag, attributes in tags.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert (policy or "").startswith("default-src 'none'; img-src data:;")
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_says_what_the_run_is_what_it_reached_and_what_is_missing(made: MadeUp) -> None:
    path = made.write(learning_rate=0.125)
    tags = Tags(page_of(path))
    for shown in (
        "game", "tiny", "0.25 → 0.75", "greedy 0.35 → 0.85", "steps 3 of 3",
        "success after 50 %", "95 % interval 25 to 75 %", "held-out episodes 4",
        "embedded on cpu, 853,376 parameters", "system Linux, cpus 2", "abcdef-dirty",
        "evert train env=game", "learning_rate 0.125", "sampling 1.5 s (25 %)",
        "No prices were given, so no cost is shown.",
        "Not recorded, so not shown: groups that teach; episodes that failed.",
        "The agent records no success, so none is drawn by step",
        "Not recorded, so not shown: KL, sampler to trainer; KL, policy to reference.",
    ):  # fmt: skip
        assert shown in tags.words, shown
    for hidden in ("$", "failed in training", "Bits say"):
        assert hidden not in tags.words, hidden

    named = {value for name, value in tags.attributes() if name == "id"}
    targets = {v[1:] for n, v in tags.attributes() if n == "href" and v and v.startswith("#")}
    assert len(targets) > 5
    assert targets <= named

    files = {file.name for file in (path / "report").iterdir()}
    assert {"reward.png", "entropy.png", "time_spent.png", "index.html"} <= files
    assert not {"success.png", "kl.png", "tool_calls.png", "bits.png"} & files
    sources = [attributes["src"] for tag, attributes in tags.tags if tag == "img"]
    assert len(sources) == len(files) - 1 > 3
    for file in (path / "report").glob("*.png"):
        png = file.read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", png[16:24]) >= (600, 300)


def test_what_there_is_has_its_figure_its_price_and_words(made: MadeUp, monkeypatch: Patch) -> None:
    odd = Game("my/Odd-v0", "odd:agent", "odd:TASKS", metrics={"odd": Metric("Oddness", "odds")})
    monkeypatch.setattr(panels, "games", lambda: {**games(), "odd": odd})
    noted = "success", "drift", "drift/history", "lineages", "tools/calls", "tools/calls_unparsed"
    own = {"env/all/bits": 0.5, "test/env/all/asks_first": 1}  # of a game
    measured = {f"env/all/{name}": 1.0 for name in noted}
    made.rows = [row(step, **measured, **own) for step in range(3)]
    path = made.write()
    failure = {"kind": "agent_error", "error": "ValueError: <b>no table", "traceback": "..."}
    batch = {"episodes": 4, "kinds": {"agent_error": 2}, "found": [[failure, 2]]}
    batches = [
        {"step": step, "metrics": {FAILED: 0.5, SKIPPED: float(step == 1)}, **batch}
        for step in range(3)
    ]
    write_lines(path / "batches.jsonl", batches)
    text = Tags(page_of(path, "sample_price=1000", "prefill_price=10")).words
    for shown in (
        "Causes seen: history.", "Success by step is the agent's metric success.",
        "cost $0.252", "prefill $10, sample $1000",  # 3 steps of 80 sampled and 400 given
        "failed in training 6 of 12 episodes failed (6 agent errors)",
        "most frequent failure ValueError: <b>no table", "batches skipped 1",
        "Bits are the entropy of an answer over the nouns",
    ):  # fmt: skip
        assert shown in text, shown
    assert "oddness" not in text.lower()
    files = {file.name for file in (path / "report").iterdir()}
    assert {"success.png", "drift.png", "data.png", "tool_calls.png", "failed.png"} <= files
    assert {"bits.png", "held_out_asks_first.png"} <= files
    assert "repeats.png" not in files


def test_the_command_says_where_the_page_is(made: MadeUp, tmp_path: Path, capsys: Shown) -> None:
    out = tmp_path / "a" / "b"
    run = made.write()
    twice = f"{run}/../run"  # which is one run
    assert report.main([str(run), twice, f"out={out}", "title=My runs", "smooth=0"]) == 0
    shown = capsys.readouterr().out
    assert f"report: {out / 'index.html'}\n" in shown
    assert f"figures: {len(list(out.glob('*.png')))} PNG files beside it\n" in shown
    page = (out / "index.html").read_text()
    assert "<title>My runs</title>" in page
    assert len(report.parse([str(run), twice])[0]) == 1
    assert not list(out.glob(".*"))


def test_too_many_runs_and_a_page_that_cannot_be_written_are_a_line(
    made: MadeUp, capsys: Shown, monkeypatch: Patch
) -> None:
    made.write()
    for number in range(20):
        shutil.copytree(made.path, made.path.parent / f"run{number}")
    monkeypatch.chdir(made.path.parent)
    for line, message in (
        (" ".join(f"run{n}" for n in range(20)), f"Got 20 runs; a figure can show {MOST_LINES}"),
        ("run out=run/run.json", "The report cannot be written to run/run.json: "),
    ):
        assert report.main(line.split()) == 1
        shown = capsys.readouterr().err
        assert shown.startswith(f"error: {message}")
        assert len(shown.splitlines()) == 1
