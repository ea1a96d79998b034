"""A sweep's command line, read into a plan.

1. A list and a range are searched, all else is fixed; a range is logarithmic where it should be.
2. Every value is one the setting takes; what is not is refused before anything starts.
3. Mistakes get an answer: unknown keys, bad ranges, nothing to search.
"""

import pytest

from evert.bridge.errors import EvertError
from evert.trainers.runs.settings import RecipeError
from evert.trainers.sweeping.space import Choices, Range, SweepError, read_plan

GAME = ["env=identity", "steps=2"]


def test_lists_are_searched_and_the_rest_is_fixed() -> None:
    plan = read_plan([*GAME, "learning_rate=1e-4,3e-4", "loss_fn=ppo,cispo"])
    assert plan.axes == (
        Choices("learning_rate", (1e-4, 3e-4)),
        Choices("loss_fn", ("ppo", "cispo")),
    )
    assert plan.fixed == ("env=identity", "steps=2")
    assert (plan.search, plan.trials, plan.name, plan.steps) == ("grid", 4, "identity", 2)


def test_ranges_make_a_random_search_of_twenty_runs() -> None:
    plan = read_plan([*GAME, "learning_rate=1e-4..1e-2", "group_size=4..16"])
    assert plan.axes == (
        Range("learning_rate", 1e-4, 1e-2, log=True, integer=False),
        Range("group_size", 4, 16, log=False, integer=True),
    )
    assert (plan.search, plan.trials) == ("random", 20)


@pytest.mark.parametrize(
    ("text", "log"),
    [("0..1", False), ("-1..1", False), ("0.1..0.5", True), ("0.1..0.5:linear", False)],
)
def test_a_range_of_fractions_is_logarithmic_if_it_is_above_zero(text: str, log: bool) -> None:
    (axis,) = read_plan([*GAME, f"on_agent_error={text}"]).axes
    assert isinstance(axis, Range)
    assert axis.log is log


def test_a_range_of_whole_numbers_is_logarithmic_if_it_says_so() -> None:
    (axis,) = read_plan([*GAME, "batch_size=4..64:log"]).axes
    assert axis == Range("batch_size", 4, 64, log=True, integer=True)


def test_values_that_are_the_same_are_tried_once() -> None:
    (axis,) = read_plan([*GAME, "learning_rate=1e-3,0.001,2e-3"]).axes
    assert axis == Choices("learning_rate", (1e-3, 2e-3))


def test_games_and_optional_settings_can_be_searched() -> None:
    plan = read_plan(["env=identity,guess-number", "threads=None,2", "full_parameter=True,None"])
    assert [axis.values for axis in plan.axes if isinstance(axis, Choices)] == [
        ("identity", "guess_number"),
        (None, 2),
        (True, None),
    ]


def test_a_setting_that_is_a_list_itself_is_fixed() -> None:
    plan = read_plan([*GAME, "seed=0,1", "allow_hosts=a,b"])
    assert [axis.key for axis in plan.axes] == ["seed"]
    assert "allow_hosts=a,b" in plan.fixed


def test_a_path_with_two_dots_is_no_range() -> None:
    with pytest.raises(SweepError, match="nothing to search"):
        read_plan([*GAME, "base_url=../a..b"])


def test_the_arguments_of_a_run_are_read_back_as_its_settings() -> None:
    from evert.trainers.train import parse

    plan = read_plan([*GAME, "learning_rate=1e-5..1e-2", "threads=None,2"])
    chosen = parse(plan.arguments({"learning_rate": 1.234567890123e-5, "threads": None}))
    assert (chosen.learning_rate, chosen.threads) == (1.234567890123e-5, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*GAME], "nothing to search.*learning_rate=1e-4,3e-4"),
        ([*GAME, "learning_rat=1,2"], "no setting 'learning_rat'.*Did you mean 'learning_rate'"),
        ([*GAME, "seed=0,1", "trails=3"], "Did you mean 'trials'"),
        ([*GAME, "seed=0,1", "log_path=x"], "out="),
        (["seed"], "expected key=value"),
        ([*GAME, "seed=5..2"], "from a lower to a higher"),
        ([*GAME, "seed=..2"], "expected a range such as seed=1..10"),
        ([*GAME, "learning_rate=0..nan"], "from a lower to a higher"),
        ([*GAME, "seed=0..9:log"], "a log range has to be above 0"),
        ([*GAME, "seed=0..9", "search=grid"], "search=grid needs lists, and seed has a range"),
        ([*GAME, "seed=0,1", "search=bayes"], "expected one of grid, random, tpe"),
        ([*GAME, "seed=0,1", "trials=5"], "this grid has 2 runs"),
        ([*GAME, "seed=0..9", "trials=none"], "trials=none, expected a whole number"),
        ([*GAME, "seed=0,1", "test_tasks="], "needs held-out tasks"),
    ],
)
def test_a_mistake_is_refused_with_what_to_do(arguments: list[str], message: str) -> None:
    with pytest.raises(SweepError, match=message):
        read_plan(arguments)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("loss_fn=ppo,poo", "poo"),
        ("group_size=0,4", "group_size must be at least 1"),
        ("steps=1.5..3", "1.5"),
        ("env=identity,identiy", "Did you mean env=identity"),
    ],
)
def test_a_value_the_setting_does_not_take_is_refused(argument: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read_plan([*GAME, argument])


def test_an_agent_that_is_not_there_is_found_missing_before_the_first_run() -> None:
    with pytest.raises(EvertError, match="No agent at 'nowhere:a'"):
        read_plan(["agent=nowhere:a", "train_tasks=nowhere:T", "seed=0,1"])
