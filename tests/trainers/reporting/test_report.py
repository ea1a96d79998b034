"""``evert report`` on made-up run folders. ``test_report_browser.py`` uses real ones."""

import base64
import hashlib
import html.parser
import json
import math
import re
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.kit import Patch, Shown

from evert.envs.games import Game, Metric, games
from evert.trainers.commands import report
from evert.trainers.episodes.failures import read_batches
from evert.trainers.episodes.scores import Score, half_of
from evert.trainers.reporting import panels
from evert.trainers.reporting.drawing import differing_settings, labels, reward_curve
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
from evert.trainers.rundir.metrics import FAILED, HELD_OUT_REWARD, SKIPPED, TRAIN_REWARD
from evert.trainers.viewing import asking, report_page
from evert.trainers.viewing.incremental_index import indexed
from evert.trainers.viewing.tokens import Tokens, cost, count_tokens

HOSTILE = """\"'><script>document.title = "taken"</script><img src=x onerror="document.title=1">
</style></p></section>{{ 7 * 7 }}{% raw %}<a href="javascript:alert(1)" onclick=alert(1)>&lt;"""
ROLLOUTS = "train_rollout_summaries.jsonl"


def row(step: int, **more: Any) -> dict[str, Any]:
    """Return the metrics that the Cookbook writes for a step of two seconds and eight episodes."""
    return {
        "step": step, "progress/done_frac": 0.5, "time/total": 2.0, "time/sampling": 0.5,
        "time/train_step": 1.25, "env/all/reward/total": step / 10, "env/all/total_episodes": 8,
        "env/all/total_ac_tokens": 80, "env/all/total_ob_tokens": 400,
        "env/all/ac_tokens_per_turn": 10.0, "optim/entropy": 0.5, **more,
    }  # fmt: skip


def turn(given: int, sampled: int, *, lineage: int | None = 0, **notes: Any) -> dict[str, Any]:
    """Return a step for a rollout record."""
    known = {} if lineage is None else {"lineage": lineage}
    logs = {"caller": "evert agent", **known, **notes}
    return {"ob_len": given, "ac_len": sampled, "reward": 0.0, "metrics": {}, "logs": logs}


def episode(*turns: dict[str, Any], group: int = 0, reward: float = 1.0) -> dict[str, Any]:
    """Return a rollout record."""
    turns[-1]["metrics"] = {"stop/completed": 1.0, "lineages": 1, "drift": 0}
    return {
        "schema_version": 1, "split": "train", "iteration": 0, "group_idx": group, "traj_idx": 0,
        "total_reward": reward, "steps": list(turns),
    }  # fmt: skip


def scores(mean: float) -> dict[str, Any]:
    """Return held-out scores: ``mean`` at temperature 1, and 0.1 more with greedy sampling."""
    return {
        name: asdict(Score("game", "test", "", 4, 0.5, 0.25, 0.75, value, None, 0.0, 0))
        for name, value in (("greedy", mean + 0.1), ("temperature_1", mean))
    }


def sample(said: str, reward: float = 0.0) -> dict[str, Any]:
    """Return a held-out episode with one turn."""
    dialogue = [{"told": "Say seven.", "said": said}]
    return {"target": "7", "reward": reward, "dialogue": dialogue}


def write_lines(path: Path, records: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@dataclass
class MadeUp:
    """A run folder written file by file."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=lambda: [row(step) for step in range(3)])

    def write(self, *, finished: bool = True, name: str = "game", **values: Any) -> Path:
        """Write the folder with these settings. An unfinished run has no result."""
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
        """Write the rollout file of a step."""
        rows = [record | {"iteration": step} for record in records]
        write_lines(self.path / f"iteration_{step:06d}" / ROLLOUTS, rows)

    def _json(self, name: str, value: Any) -> None:
        (self.path / name).write_text(json.dumps(value))


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    return MadeUp(tmp_path / "run")


def page_of(*arguments: str | Path) -> str:
    """Run the command and return the page it writes."""
    out = Path(arguments[0]) / "report"
    assert report.main([str(argument) for argument in arguments]) == 0
    return (out / "index.html").read_text(encoding="utf-8")


def answers_of(page: str) -> dict[str, Any]:
    """Return the answers embedded in a page."""
    [data] = re.findall(
        '<script type="application/json" id="saved">(.*?)</script>', page, re.DOTALL
    )
    answers: dict[str, Any] = json.loads(data)["answers"]
    return answers


def tokens_of(path: Path) -> Tokens | None:
    with indexed([path]) as index:
        return count_tokens(read_run(path), index, 1)


def test_a_run_is_read_with_its_scores_and_steps(made: MadeUp) -> None:
    made.rows[0][HELD_OUT_REWARD] = 0.25
    run = read_run(made.write())
    assert (run.name, run.kind, run.finished) == ("game", "run", True)
    assert (run.before["temperature_1"].reward, run.after["greedy"].reward) == (0.25, 0.85)
    assert [step["step"] for step in run.rows] == [0, 1, 2]
    assert run.rows[0][EPISODE_TOKENS] == 10.0
    curve = run.curve(HELD_OUT_REWARD)  # ends with the score of the final weights
    assert (curve.steps, curve.scores, curve.seconds) == ([0, 3], [0.25, 0.75], [0.0, 6.0])
    spent = {"sampling": 1.5, "training": 3.75, "held-out scores": 0.0, "the rest": 0.75}
    assert time_spent(run.rows) == spent
    made.rows = [row(0, note="text"), {"no": "step"}, row(1, **{TRAIN_REWARD: math.nan})]
    run = read_run(made.write())
    assert (run.curve(TRAIN_REWARD).steps, run.curve("note").steps) == ([1], [])
    made.rows = [{"step": 0, "progress/done_frac": 1.0, "time/total": 1.0}]
    assert time_spent(read_run(made.write()).rows) is None


def test_an_unfinished_run_is_marked_and_may_have_no_metrics(made: MadeUp) -> None:
    made.rows = made.rows[:1]
    run = read_run(made.write(finished=False))
    assert (run.finished, bool(run.before), bool(run.after)) == (False, True, False)
    shown = answers_of(page_of(made.path))["run/1"]
    assert (shown["finished"], shown["steps"], shown["planned"]) == (False, 1, 3)
    assert [row["name"] for row in shown["table"]] == [
        "before training, greedy", "before training, temperature 1",
    ]  # fmt: skip
    made.rows = []
    run = read_run(made.write(finished=False))
    assert (run.rows, tokens_of(made.path)) == ([], None)
    shown = answers_of(page_of(made.path))["run/1"]
    assert (shown["panels"], shown["tokens"], shown["time"]) == ([], {}, None)


def test_an_evaluation_is_reported_with_its_scores(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text('{"settings": {"models": ["oracle"], "env": "game"}}')
    (tmp_path / "scores.csv").write_text(
        "model,split,category,episodes,success,low,high,reward,calls,errors\n"
        "oracle,test,,40,0.75,0.5,0.9,0.7,0,0\noracle,test,tools,20,0.75,0.5,0.9,0.7,0,0\n"
    )
    shown = answers_of(page_of(tmp_path))["run/1"]
    assert shown["what"] == "evaluation"
    [row] = shown["table"]
    assert (row["name"], row["success"]) == ("oracle, test", "75.0% (50-90%)")


def test_a_cookbook_run_is_read_with_its_held_out_scores(tmp_path: Path) -> None:
    """The Cookbook's async loop writes held-out scores between steps and after the last step."""
    (tmp_path / "config.json").write_text('{"learning_rate": 0.1, "max_steps": 5}')
    scored = {"time/total": 9.0, "test/time/evaluation": 1.0}
    held = [{"step": step, HELD_OUT_REWARD: 0.25 + step / 4, **scored} for step in range(3)]
    write_lines(tmp_path / "metrics.jsonl", [held[0], row(0), row(1), *held[1:]])
    run = read_run(tmp_path)
    assert (run.name, run.settings["learning_rate"]) == (tmp_path.name, 0.1)
    assert run.curve(TRAIN_REWARD).steps == [1, 2]
    held_out = run.curve(HELD_OUT_REWARD)
    assert (held_out.steps, held_out.scores) == ([0, 1, 2], [0.25, 0.5, 0.75])
    assert held_out.seconds == [0.0, 2.0, 4.0]
    assert len(run.rows) == 2


def test_a_repeated_step_keeps_only_the_held_out_scores_of_the_first_attempt(made: MadeUp) -> None:
    again = row(1, **{TRAIN_REWARD: 9.0})
    made.rows = [row(0), row(1, odd=1.0), {"step": 1, HELD_OUT_REWARD: 0.5}, again]
    run = read_run(made.write())
    assert run.curve(TRAIN_REWARD).scores == [0.0, 9.0]
    assert "odd" not in run.rows[1]
    assert run.rows[1][HELD_OUT_REWARD] == 0.5


def test_unknown_entries_from_another_version_are_left_out(made: MadeUp) -> None:
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
    assert run.before == {}
    failures, skipped = read_batches(path)
    assert skipped == 1
    assert failures.describe().startswith("2 of 8 episodes failed (2 agent errors)")


def test_success_is_found_under_every_name_that_agents_use(made: MadeUp) -> None:
    for name in ("success", "found", "correct"):
        made.rows = [row(0, **{f"env/all/{name}": 0.5}), row(1, **{f"test/env/all/{name}": 0.75})]
        run = read_run(made.write())
        assert run.curve(SUCCESS).scores == [0.5]
        held_out = run.curve(HELD_OUT_SUCCESS)
        assert (held_out.scores, held_out.seconds) == ([0.75], [2.0])


def test_a_folder_without_a_run_is_refused_with_what_to_do(made: MadeUp, tmp_path: Path) -> None:
    made.write()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, message in (
        ("empty", "is not a run folder: it has no readable run.json"),
        ("file", "is a file, not a run folder"),
        ("rum", "Did you mean .*run?"),
        (".", "it has no readable run.json. It contains runs: .*run"),
        ("a/b/c", "There is no folder"),
    ):
        with pytest.raises(ReportError, match=message):
            read_run(tmp_path / name)


def test_paths_without_a_run_are_listed_and_left_out(
    made: MadeUp, tmp_path: Path, capsys: Shown
) -> None:
    run, broken = made.write(), MadeUp(tmp_path / "broken").write()
    (broken / "run.json").write_text('{"name": "ga')
    (broken / "config.json").write_text('{"max_steps": 5}')
    (tmp_path / "empty").mkdir()
    others = [str(tmp_path / name) for name in ("empty", "broken")]
    assert report.main([*others, str(run)]) == 0
    shown = capsys.readouterr().out
    assert f"skipped: {others[0]} is not a run folder: it has no readable run.json" in shown
    assert f"skipped: {others[1]}/run.json is broken; expected the file that" in shown
    assert f"report: {run / 'report' / 'index.html'}" in shown
    for paths, said in (
        ([str(run), str(tmp_path / "rum")], "Did you mean"),
        (others[1:], "run.json is broken"),
        (others, "None of the 2 paths is a run. Pass a run, like runs/NAME."),
    ):
        assert report.main(paths) == 1
        assert said in capsys.readouterr().err


def runs_with(tmp_path: Path, *values: dict[str, Any]) -> list[Run]:
    """Return made-up runs with these settings."""
    return [
        read_run(MadeUp(tmp_path / str(number) / "folder").write(**each))
        for number, each in enumerate(values)
    ]


def test_runs_are_named_by_the_settings_in_which_they_differ(tmp_path: Path) -> None:
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


def test_differing_settings_are_found_except_paths(tmp_path: Path) -> None:
    runs = runs_with(tmp_path, {"log_path": "a", "seed": 0}, {"log_path": "b", "seed": 1})
    assert differing_settings(runs) == ["seed"]
    page = page_of(*(run.path for run in runs))
    first, second = sorted(answers_of(page)["runs"]["runs"], key=lambda run: run["id"])
    assert (first["settings"]["seed"], second["settings"]["seed"]) == ("0", "1")
    assert first["facts"]["git"] == "abcdef-dirty"
    assert first["facts"]["command"] == "evert train env=game"
    assert first["facts"]["engine"] == "engine embedded, device cpu, parameters 853376"
    older = runs_with(tmp_path / "older", {"new": 1}, {})
    assert differing_settings(older) == []


def test_the_interval_of_a_steps_reward_comes_from_its_episodes(made: MadeUp) -> None:
    path = made.write()
    made.rollouts(1, *(episode(turn(9, 1), group=g, reward=float(g == 0)) for g in range(4)))
    with indexed([path]) as index:
        drawn = reward_curve(read_run(path), TRAIN_REWARD, asking.steps(index, 1))
    assert drawn.steps == [1, 2, 3]
    half = half_of([[1.0], [0.0], [0.0], [0.0]])
    assert drawn.errors == pytest.approx([math.nan, half, math.nan], nan_ok=True)


def test_tokens_are_counted_once_per_recorded_lineage(made: MadeUp) -> None:
    made.rows = [row(0)]  # 480 tokens, as in its rollouts
    path = made.write()
    linear = episode(turn(100, 10), turn(120, 10))
    forked = episode(turn(100, 10), turn(110, 20, lineage=1))
    made.rollouts(0, linear, forked)
    tokens = tokens_of(path)
    assert tokens == Tokens(prefill=400, sample=80, train=130 + 110 + 130, is_estimate=False)
    held_out = {"test/env/all/total_ob_tokens": 1000, "test/env/all/total_ac_tokens": 100}
    made.rows = [row(0, **held_out)]  # not trained on
    tokens = tokens_of(made.write())
    assert tokens == Tokens(prefill=1400, sample=180, train=370, is_estimate=False)
    for records in ([], [episode(turn(100, 10, lineage=None))]):
        made.rollouts(0, *records)
        tokens = tokens_of(path)
        assert tokens is not None
        assert tokens.train is None


def test_the_token_count_is_an_estimate_if_not_all_episodes_are_recorded(made: MadeUp) -> None:
    made.rows = [row(step) for step in range(60)]
    path = made.write()
    for step in range(0, 60, 2):
        made.rollouts(step, episode(turn(45, 5), turn(45, 5)))
    tokens = tokens_of(path)
    assert tokens is not None
    assert (tokens.train, tokens.is_estimate) == (60 * 480 // 2, True)


def test_a_cost_needs_a_price_and_a_token_count() -> None:
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


def test_a_page_includes_the_worst_best_and_first_episodes_of_three_steps(made: MadeUp) -> None:
    path = made.write()
    for step in range(5):
        rewards = [0.5] * 20 + [0.0, 0.5, 1.0]
        made.rollouts(
            step, *(episode(turn(9, 1), group=g, reward=r) for g, r in enumerate(rewards))
        )
    answers = answers_of(page_of(path))
    steps = [name for name in answers if name.startswith("step/1/train/")]
    assert steps == [f"step/1/train//{step}" for step in (0, 2, 4)]
    held = {answers[name]["entry"]["id"] for name in answers if name.startswith("episode/")}
    for name in steps:
        shown = [each for each in answers[name]["episodes"] if each["id"] in held]
        assert [each["grp"] for each in shown] == [0, 1, 2, 3, 20, 22]
    samples = [name for name in answers if name.startswith("step/1/test/")]
    assert samples == ["step/1/test//-1", f"step/1/test//{2**31}"]  # before and after training
    words = json.dumps([answers[name]["row"] for name in answers if name.startswith("episode/")])
    assert "Say seven." in words


def test_incomplete_lines_are_counted_and_left_out(made: MadeUp) -> None:
    path, whole = made.write(), episode(turn(9, 1))
    odd: list[Any] = [[{}], [5], 5, [turn(9, 1) | {"reward": None, "ac_len": "x"}]]
    unsaid = whole | {"total_reward": None}
    made.rollouts(0, unsaid, *(whole | {"steps": steps} for steps in odd), whole)
    file = path / "iteration_000000" / ROLLOUTS
    file.write_text('{"cut of\n[1]\n' + file.read_text())
    both = {"task": "7", "before": sample("six"), "after": None}
    write_lines(path / "samples.jsonl", [{"before": 5}, both, {"after": "seven"}])
    answers = answers_of(page_of(path))
    assert (answers["run/1"]["episodes"], answers["run/1"]["broken"]) == (1, 9)
    assert len(answers["step/1/train//0"]["episodes"]) == 1


def test_a_page_stays_within_its_size_limit_and_says_what_was_omitted(
    made: MadeUp, monkeypatch: Patch, capsys: Shown
) -> None:
    path = made.write()
    for step in range(3):
        long = (turn(9, 1, text="<" * 9_000) for _ in range(10))
        made.rollouts(step, *(episode(each, group=group) for group, each in enumerate(long)))
    whole = page_of(path)
    assert json.loads(re.findall('"about":({.*?}),"answers"', whole)[0])["omitted"] == 0
    monkeypatch.setattr(report_page, "LARGEST", len(whole) // 2)
    page = page_of(path)
    assert len(page.encode()) <= len(whole) // 2
    assert "step/1/train//0" in answers_of(page)
    assert json.loads(re.findall('"about":({.*?}),"answers"', page)[0])["omitted"] > 0
    monkeypatch.setattr(report_page, "LARGEST", 10_000)
    assert report.main([str(path)]) == 1
    assert "even without episodes. Pass fewer runs" in capsys.readouterr().err


class Tags(html.parser.HTMLParser):
    """Parser that collects tags with their attributes, scripts, styles, and the remaining text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.code: dict[str, list[str]] = {"script": [], "style": []}
        self.within: list[str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.text += " "
        self.within = self.code.get(tag) if not attrs else None
        if self.within is not None:
            self.within.append("")

    def handle_endtag(self, tag: str) -> None:
        self.within = None

    def handle_data(self, data: str) -> None:
        if self.within is None:
            self.text += data
        else:
            self.within[-1] += data

    def attributes(self) -> Iterator[tuple[str, str | None]]:
        for _, attributes in self.tags:
            yield from attributes.items()


def write_hostile(made: MadeUp) -> Path:
    """Create a run in which every text is an attack; return its folder."""
    note: dict[str, Any] = {HOSTILE: HOSTILE}
    made.rows = [row(step, **{f"env/all/drift/{HOSTILE}": 1.0}) for step in range(3)]
    path = made.write(name=HOSTILE, agent=HOSTILE, **note)
    made.rollouts(0, episode(turn(9, 1, **note, nul="\x00\x1b[31m\x9b1m", half="\ud83d")))
    both = {"task": HOSTILE, "before": sample(HOSTILE), "after": sample(HOSTILE)}
    write_lines(path / "samples.jsonl", [both])
    return path


def test_hostile_text_is_escaped_and_the_page_links_to_nothing_outside(made: MadeUp) -> None:
    page = page_of(write_hostile(made), f"title={HOSTILE}")
    tags = Tags(page)
    names = [tag for tag, _ in tags.tags]
    assert not {*names} & {"img", "iframe", "object", "embed", "base"}
    assert (names.count("script"), names.count("style"), names.count("form")) == (3, 2, 1)
    assert tags.text.count(HOSTILE) == 1  # once in the title; otherwise only in the data
    assert json.dumps(answers_of(page)).count(json.dumps(HOSTILE)[1:-1]) >= 5
    assert not {"\x00", "\x1b", "\x9b"} & set(page)  # no terminal escape sequences
    for name, value in tags.attributes():
        assert not name.startswith("on")
        if name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (value or "").startswith(("data:", "#")), value
    [style] = [text for text in tags.code["style"] if ":root" in text]
    assert "url(" not in style
    assert "@import" not in style


def test_only_the_pages_own_scripts_and_styles_may_run(made: MadeUp) -> None:
    tags = Tags(page_of(made.write()))
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in tags.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules.pop("default-src"), rules.pop("img-src")) == ("'none'", "data:")
    assert (rules.pop("base-uri"), rules.pop("form-action")) == ("'none'", "'none'")
    for tag, texts in tags.code.items():
        digests = [hashlib.sha256(text.encode()).digest() for text in texts]
        hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        assert rules.pop(f"{tag}-src").split() == hashes
    assert not rules


def test_no_secret_is_in_the_page(made: MadeUp, monkeypatch: Patch) -> None:
    secret = "sk-proj-abcdefghijklmnop123456"
    path = made.write(agent=secret, name=secret)
    made.rollouts(0, episode(turn(9, 1, note=f"my key is {secret}")))
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    page = page_of(path, f"title=a {secret}")
    assert secret not in page
    assert "my key is [OPENAI_API_KEY]" in page
    assert "<title>\na [OPENAI_API_KEY]</title>" in page


def test_the_page_shows_the_runs_settings_and_scores(made: MadeUp) -> None:
    path = made.write(learning_rate=0.125)
    shown = answers_of(page_of(path))["run/1"]
    assert (shown["trains"], shown["model"], shown["settings"]["learning_rate"]) == (
        "game", "tiny", "0.125",
    )  # fmt: skip
    assert shown["scores"] == {"before": "0.25", "after": "0.75"}
    assert [(row["name"], row["reward"]) for row in shown["table"]] == [
        ("before training, greedy", "0.35"), ("before training, temperature 1", "0.25"),
        ("after training, greedy", "0.85"), ("after training, temperature 1", "0.75"),
    ]  # fmt: skip
    assert {(row["success"], row["episodes"]) for row in shown["table"]} == {("50.0% (25-75%)", 4)}
    assert shown["time"]["sampling"] == 1.5
    assert "cost" not in shown["tokens"]
    titles = {panel["title"] for panel in shown["panels"]}
    assert {"Reward in training", "Entropy", "Time per step"} <= titles
    assert not {"Success in training", "KL, sampler to trainer", "Tool calls", "Bits"} & titles

    files = {file.name for file in (path / "report").iterdir()}
    assert {"reward.png", "entropy.png", "time_spent.png", "index.html"} <= files
    assert not {"success.png", "kl.png", "tool_calls.png", "bits.png"} & files
    for file in (path / "report").glob("*.png"):
        png = file.read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", png[16:24]) >= (600, 300)


def test_metrics_have_panels_prices_and_texts(made: MadeUp, monkeypatch: Patch) -> None:
    odd = Game("my/Odd-v0", "odd:agent", "odd:TASKS", metrics={"odd": Metric("Oddness", "odds")})
    monkeypatch.setattr(panels, "games", lambda: {**games(), "odd": odd})
    noted = "success", "drift", "drift/history", "lineages", "tools/calls", "tools/calls_unparsed"
    own = {"env/all/bits": 0.5, "test/env/all/asks_first": 1}  # metrics of a game
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
    shown = answers_of(page_of(path, "sample_price=1000", "prefill_price=10"))["run/1"]
    assert shown["tokens"]["cost"] == "$0.252"  # 3 steps with 80 sampled and 400 prompt tokens each
    assert shown["tokens"]["dollars per million"] == "prefill 10, sample 1000"
    assert shown["failures"] == [
        {"kind": "agent_error", "count": 6, "error": "ValueError: <b>no table"}
    ]
    assert shown["skipped"] == 1
    assert any("entropy of its answer over the nouns" in note for note in shown["notes"])
    titles = {panel["title"] for panel in shown["panels"]}
    assert {"Success in training", "Drift", "Tool calls"} <= titles
    assert "oddness" not in json.dumps(shown).lower()
    files = {file.name for file in (path / "report").iterdir()}
    assert {"success.png", "drift.png", "data.png", "tool_calls.png", "failed.png"} <= files
    assert {"bits.png", "held_out_asks_first.png"} <= files
    assert "repeats.png" not in files


def test_the_command_prints_where_the_page_is(made: MadeUp, tmp_path: Path, capsys: Shown) -> None:
    out = tmp_path / "a" / "b"
    run = made.write()
    twice = f"{run}/../run"  # the same run
    assert report.main([str(run), twice, f"out={out}", "title=My runs", "smooth=0"]) == 0
    shown = capsys.readouterr().out
    assert f"report: {out / 'index.html'}\n" in shown
    assert f"plots: {len(list(out.glob('*.png')))} PNG files in the same folder\n" in shown
    page = (out / "index.html").read_text()
    assert "<title>\nMy runs</title>" in page
    assert len(report.parse([str(run), twice])[0]) == 1
    assert not list(out.glob(".*"))


def test_too_many_runs_or_an_unwritable_page_is_a_one_line_error(
    made: MadeUp, capsys: Shown, monkeypatch: Patch
) -> None:
    made.write()
    for number in range(20):
        shutil.copytree(made.path, made.path.parent / f"run{number}")
    monkeypatch.chdir(made.path.parent)
    for line, message in (
        (
            " ".join(f"run{n}" for n in range(20)),
            f"Got 20 runs, but a plot can show at most {MOST_LINES}.",
        ),
        ("run out=run/run.json", "The report cannot be written to run/run.json: "),
    ):
        assert report.main(line.split()) == 1
        shown = capsys.readouterr().err
        assert shown.startswith(f"error: {message}")
        assert len(shown.splitlines()) == 1
