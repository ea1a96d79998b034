"""The contents of every figure. Their appearance is not tested."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.collections import LineCollection

from evert.trainers.episodes.scores import Score
from evert.trainers.reporting.figures.bars import draw_categories, draw_splits, draw_time
from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.reporting.figures.curves import (
    draw_panel,
    draw_run,
    mean,
    smoothed,
)
from evert.trainers.reporting.figures.metrics import Curve, thinned
from evert.trainers.reporting.figures.style import (
    DASHES,
    MOST_LINES,
    apart,
    clock_unit,
    plain,
    save,
    short_names,
)
from evert.trainers.reporting.figures.sweep import Scale, draw_sweep

SPENT = {"sampling": 30.0, "training": 60.0, "held-out scores": 1.0, "the rest": 9.0}
RISING = Curve([0, 1, 2], [1.0, 2.0, 3.0], [0.0, 0.5, 0.75])


def texts(figure: Any) -> list[str]:
    """Return all visible texts of a figure."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    return [t.get_text() for t in figure.findobj(Text) if t.get_visible() and t.get_text()]


def score(model: str, split: str = "test", category: str = "", success: float = 0.75) -> Score:
    """Return a score of 40 episodes."""
    return Score(model, split, category, 40, success, success - 0.25, 1.0, 1.0, None, 0.0, 0)


def test_a_wide_interval_leaves_the_line_a_third_of_the_axis() -> None:
    curve = Curve([0, 1], [1.0, 2.0], [0.0, 1.0], errors=[3.0, math.nan])
    [axes] = draw_panel("Reward", "mean reward", [("run", curve)]).axes
    low, high = axes.get_ylim()
    assert low < -0.9
    assert high - low < 3.5


def test_lines_are_smoothed_and_thinned_and_their_labels_do_not_overlap() -> None:
    assert smoothed([4.0, 4.0, 4.0], 0.9) == pytest.approx([4.0, 4.0, 4.0])
    assert smoothed([1.0, 2.0, 3.0], 0.0) == [1.0, 2.0, 3.0]
    # 2.0 = (0.5 * 0 * 0.5 + 0.5 * 3) / 0.75
    assert smoothed([0.0, 3.0], 0.5) == pytest.approx([0.0, 2.0])
    assert thinned([1.0, 3.0, 5.0, 7.0, 9.0], 3) == [2.0, 6.0, 9.0]
    assert (thinned([1.0, 2.0], 3), thinned([])) == ([1.0, 2.0], [])
    assert len(thinned([0.0] * 100_001)) <= 200
    assert apart([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.5, 0.6, 0.7])
    assert apart([0.9, 1.0, 0.95], 0.1) == pytest.approx([0.8, 1.0, 0.9])
    assert apart([0.1, 0.9], 0.1) == pytest.approx([0.1, 0.9])
    assert apart([], 0.1) == []
    lengths = (100, 600, 9000, 200_000)
    assert [clock_unit(each)[0] for each in lengths] == ["seconds", "minutes", "hours", "days"]


def test_a_mean_curve_covers_the_steps_that_every_seed_has() -> None:
    found = mean([RISING, Curve([0, 2], [0.0, 0.0], [1.0, 0.25])])
    assert (found.steps, found.scores) == ([0, 2], [0.5, 0.5])
    assert mean([]).steps == []


def test_lines_are_labelled_by_the_settings_in_which_they_differ() -> None:
    assert short_names(["a, x=1", "a, x=2"]) == ["x=1", "x=2"]
    assert short_names(["a", "a, x=2"]) == ["a", "x=2"]
    assert short_names(["a, x=1"]) == [""]
    one = texts(draw_panel("Reward", "mean", [("game, seed=0", RISING)]))
    assert "game, seed=0" not in one
    assert {"Reward", "mean", "training step"} <= set(one)
    lines = [("game, lr=1, seed=0", RISING), ("game, lr=2, seed=1", RISING)]
    two = texts(draw_panel("Reward", "mean", lines, by_clock=True))
    assert {"lr=1,\nseed=0", "lr=2,\nseed=1", "seconds of training"} <= set(two)


def test_lines_have_distinct_styles_up_to_a_limit_and_keep_their_colours() -> None:
    lines = [(f"run {number}", RISING) for number in range(MOST_LINES)]
    (axes,) = draw_panel("Reward", "mean", lines).axes
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert len(looks) == MOST_LINES == len(COLOURS) * len(DASHES)
    (axes,) = draw_panel("Reward", "mean", [("a", Curve()), ("b", RISING)]).axes
    assert axes.lines[-1].get_color() == COLOURS[1]


def test_lines_that_hardly_change_look_flat() -> None:
    for unit, scores, (low, high) in (
        ("mean reward of an episode", [0.0, 0.0, 0.0], (0.0, 1.0)),
        ("mean reward of an episode", [-1.0, -1.0, -0.99], (-1.0, 0.0)),
        ("mean reward of an episode", [0.97, 0.98, 0.99], (0.0, 0.99)),
        ("model calls per episode", [1.0, 1.0, 1.0], (0.0, 1.0)),
        ("nats per token", [4e-8, 1.8e-7, 9e-8], (0.0, 0.01)),
        ("share of episodes", [0.02, 0.0, 0.01], (0.0, 1.0)),
    ):
        curve = Curve([1, 2, 3], [1.0, 2.0, 3.0], scores)
        (axes,) = draw_panel("A metric", unit, [("a", curve)]).axes
        margin = 0.05 * (high - low)
        assert axes.get_ylim() == pytest.approx((low - margin, high + margin)), (unit, scores)


def test_a_score_is_drawn_with_its_interval_if_known() -> None:
    known = Curve([1, 2, 3], [1.0, 2.0, 3.0], [0.0, 0.5, 0.75], [0.25, math.nan, 0.5])
    (axes,) = draw_panel("Reward", "mean", [("a", known)]).axes
    (bars,) = axes.collections
    assert isinstance(bars, LineCollection)
    drawn = [[float(y) for _, y in each] for each in bars.get_segments()]
    assert (drawn[0], drawn[2]) == ([-0.25, 0.25], [0.25, 1.25])
    low, high = axes.get_ylim()
    assert low < -0.25 < 1.25 < high


def test_a_run_is_drawn_by_step_and_by_time() -> None:
    shown = texts(draw_run("a run", RISING, RISING))
    assert {"a run", "training step", "seconds of training"} <= set(shown)
    assert (shown.count("held out"), shown.count("in training")) == (1, 1)


def test_a_success_rate_is_shown_with_its_interval_and_number_of_episodes() -> None:
    shown = texts(draw_splits("scores", [score("runs/mine"), score("base", success=1.0)]))
    assert {"mine", "base", "75.0% (50-100%), n = 40", "100 %"} <= set(shown)
    assert "held out" not in shown  # there is only one split
    scores = [score(model, split) for model in ("a", "b") for split in ("train", "test")]
    shown = texts(draw_splits("scores", scores))
    assert (shown.count("seen in training"), shown.count("held out"), shown.count("a")) == (2, 2, 1)
    scores = [score(model, "", kind) for model in ("a", "b") for kind in ("tool", "animal")]
    shown = texts(draw_categories("scores", scores))
    assert (shown.count("a"), shown.count("b"), shown.count("tool")) == (2, 2, 1)


def test_the_time_is_split_into_labelled_parts_with_their_percentage() -> None:
    shown = texts(draw_time(["game, seed=0", "game, seed=1", "game, seed=2"], [SPENT, None, SPENT]))
    assert {*SPENT, "30 %", "60 %", "seed=0", "seed=2", "seconds of training"} <= set(shown)
    assert "seed=1" not in shown


def test_choices_and_powers_are_evenly_spaced_and_ranges_have_round_ticks() -> None:
    scale = Scale("loss_fn", ("ppo", "cispo", None))
    assert scale.ticks() == [(0.0, "ppo"), (0.5, "cispo"), (1.0, "None")]
    scale = Scale("learning_rate", low=1e-4, high=1e-2, log=True)
    assert scale.place(1e-3) == pytest.approx(0.5)
    assert [label for _, label in scale.ticks()] == ["0.0001", "0.001", "0.01"]
    scale = Scale("group_size", low=3, high=16)
    places, labels = zip(*scale.ticks(), strict=True)
    assert (labels[0], labels[-1]) == ("3", "16")
    assert 4 <= len(labels) <= 8
    assert all(high - low >= 0.05 for low, high in itertools.pairwise(places))
    assert scale.place(9.5) == pytest.approx(0.5)


def test_the_best_run_of_a_sweep_is_bold_even_if_all_scores_are_equal() -> None:
    scales = [Scale("lr", low=1e-4, high=1e-2, log=True), Scale("loss_fn", ("ppo", "cispo"))]
    values = {"lr": 1e-3, "loss_fn": "ppo"}
    for scores, end in (((0.0, 1.0, 0.5), 1.0), ((0.5, 0.5, 0.5), 0.0)):
        figure = draw_sweep("a sweep", scales, [(values, score) for score in scores], "held_out")
        assert {"a sweep", "lr", "loss_fn", "held_out", "0.01", "cispo"} <= set(texts(figure))
        runs = figure.axes[0].lines[: len(scores)]
        widths = [line.get_linewidth() for line in runs]
        assert widths[-1] > max(widths[:-1])
        reached: Any = runs[-1].get_ydata()
        assert reached[-1] == end


def test_a_name_is_never_parsed_as_a_formula_or_left_out(tmp_path: Path) -> None:
    hostile = "$\\frac{ _hidden"
    lines = [(hostile, RISING), ("_b", RISING)]
    figure = draw_panel(hostile, hostile, lines)
    save(figure, tmp_path / "panel.png")  # an invalid formula would raise
    assert {plain(hostile, 99), "_b"} <= set(texts(figure))
    save(draw_time([hostile, "_b"], [SPENT, SPENT]), tmp_path / "time.png")
    save(draw_splits(hostile, [score(hostile), score("_b")]), tmp_path / "splits.png")
    save(draw_run("a run without steps", Curve(), Curve()), tmp_path / "none.png")
    assert [plain("a" * 30 + "b" * 30, 11), plain("short", 11)] == ["aaaaa…bbbbb", "short"]
    for name in ("长名字", "a\u202eb", ""):  # a warning would raise
        save(draw_panel(name, name, [(name, RISING), (name, RISING)]), tmp_path / "one.png")
