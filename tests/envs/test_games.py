"""The games: their rewards, their sameness with the Cookbook, their documentation.

The documentation is a docstring under Gymnasium's headings; the test reads it back, and one with a
heading missing is found out.
"""

import inspect
import re
from typing import Any

import gymnasium
import pytest
from tinker_cookbook.recipes.multiplayer_rl.guess_number import env as cookbook

from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.renderer import prompt_renderer
from evert.bridge.tokens.token_log import flatten
from evert.envs import guess_number, identity
from evert.envs.as_gymnasium.env import AgentGymEnv
from evert.envs.games import games

HEADINGS = [
    "Action Space",
    "Observation Space",
    "Starting State",
    "Reward",
    "Episode End",
    "Information",
    "Arguments",
    "References",
    "Version History",
]


def problems_of(doc: str) -> list[str]:
    """What a docstring lacks: headings out of order, missing, or with nothing under them."""
    parts = re.split(r"^## (.+)$", doc, flags=re.MULTILINE)
    titles, bodies = parts[1::2], parts[2::2]
    problems = [f"no {title}" for title in HEADINGS if title not in titles]
    problems += [
        f"nothing under {title}"
        for title, body in zip(titles, bodies, strict=True)
        if not body.strip()
    ]
    if not problems and titles != HEADINGS:
        problems.append(f"order: {titles}")
    return problems


# -- documentation -----------------------------------------------------------------------------


@pytest.mark.parametrize("id", [game.id for game in games().values()])
def test_each_game_is_documented_under_gymnasiums_headings(id: str) -> None:
    env = gymnasium.make(id)
    doc = env.unwrapped.__doc__
    assert doc is not None
    assert problems_of(doc) == []
    assert doc.partition("\n")[0].endswith(".")


def test_a_docstring_without_a_heading_is_found_out() -> None:
    whole = "\n".join(f"## {title}\ntext" for title in HEADINGS)
    assert problems_of(whole) == []
    assert problems_of(whole.replace("## Reward\ntext\n", "")) == ["no Reward"]
    assert problems_of(whole.replace("## Reward\ntext", "## Reward")) == ["nothing under Reward"]
    assert problems_of(whole.replace("Reward", "?").replace("Arguments", "Reward")) == [
        "no Arguments"
    ]


def test_the_class_itself_is_documented_too() -> None:
    doc = inspect.getdoc(AgentGymEnv) or ""
    assert problems_of(doc) == ["no References", "no Version History"]


# -- identity ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("I am 7", 1.0),
        ("Well, I'm 7.", 1.0),
        ("I am not 7", -1.0),
        ("You are not 7", -1.0),
        ("You are 7", 0.0),
        ("I am 8", 0.0),
        ("I am 70", 0.0),
        ("I'm 7.5", 0.0),
        ("I am 7,000", 0.0),
        ("I am not 77", 0.0),
        ("I am 77, no, I am 7", 1.0),
        ("", 0.0),
    ],
)
def test_identity_pays_for_saying_who_one_is(answer: str, reward: float) -> None:
    env = gymnasium.make("evert/Identity-v0")
    env.reset(options={"task": 7})
    observation, earned, terminated, truncated, info = env.step(answer)
    assert (earned, terminated, truncated) == (reward, True, False)
    assert observation[-1] == {"role": "assistant", "content": answer}
    assert info["stop_reason"] == "completed"
    env.close()


def test_the_held_out_numbers_are_not_trained_on() -> None:
    assert not set(identity.TRAIN_TASKS) & set(identity.TEST_TASKS)
    assert not set(guess_number.TRAIN_TASKS) & set(guess_number.TEST_TASKS)
    assert sorted([*guess_number.TRAIN_TASKS, *guess_number.TEST_TASKS]) == list(range(1024))


# -- guess the number --------------------------------------------------------------------------


def bisect(conversation: tuple[dict[str, str], ...]) -> str:
    """The next guess of a player who halves what is left."""
    low, high = 0, guess_number.UPPER_BOUND
    guess = (low + high) // 2
    for message in conversation:
        if message["role"] == "assistant":
            guess = int(message["content"].removeprefix("Guess: "))
        elif message["content"] == "Too low":
            low = guess + 1
        elif message["content"] == "Too high":
            high = guess
    return f"Guess: {(low + high) // 2}"


def test_a_bisecting_player_wins_whatever_the_number() -> None:
    env = gymnasium.make("evert/GuessNumber-v0", tasks=range(1024))
    for target in (1, 2, 333, 511, 512, 513, 700, 1022, 1023):
        conversation, _ = env.reset(options={"task": target})
        rewards: list[float] = []
        over = False
        while not over:
            conversation, reward, terminated, truncated, _ = env.step(bisect(conversation))
            rewards.append(float(reward))
            over = terminated or truncated
        assert rewards[-1] == 1.0
        assert set(rewards[:-1]) <= {0.0}
        assert len(rewards) <= guess_number.MAX_TURNS
    env.close()


def test_ten_wrong_replies_end_the_game() -> None:
    env = gymnasium.make("evert/GuessNumber-v0")
    env.reset(options={"task": 13})
    steps = [env.step("I do not know") for _ in range(10)]
    assert [step[1] for step in steps] == [-1.0] * 10
    assert [step[2] for step in steps] == [False] * 9 + [True]
    env.close()


SCRIPTS = [
    ["Guess: 512", "Guess: 256", "Guess: 13"],
    ["Guess: 13"],
    ["hello", "Guess: x", "guess: 13", "Guess: 13.0", "Guess:\n13", "Guess:  13"],
    [" Guess: 13", "Guess: 1 3", "Guess: -5", "Guess: +13"],
    ["Guess: 99999999999999999999", "", "Guess: 13\nor 14"],
    ["Guess: 1_3"],
    ["Guess: 5"] * 10,
    ["Guess: "] * 9 + ["Guess: 13"],
]


@pytest.mark.parametrize("script", SCRIPTS)
async def test_texts_and_rewards_are_those_of_the_cookbooks_environment(script: list[str]) -> None:
    renderer = default_renderer()
    texts = prompt_renderer(renderer)
    theirs = cookbook.GuessNumberEnv(13, renderer)
    ours = gymnasium.make("evert/GuessNumber-v0", level="tokens", tasks=[13])

    prompt, _ = await theirs.initial_observation()
    _, info = ours.reset()
    assert info["tokens"] == flatten(prompt.chunks)
    assert info["stop"] == renderer.get_stop_sequences()
    for reply in script:
        action = [*texts.encode(reply), *texts.end_tokens]
        expected = await theirs.step(action)
        _, reward, terminated, _, info = ours.step(action)
        assert (reward, terminated) == (expected.reward, expected.episode_done)
        assert info["logs"].items() >= expected.logs.items()
        if terminated:
            break
        # Theirs names the policy "player" where ours, as any chat agent, says "assistant".
        theirs_says = texts.decode(flatten_ids(expected.next_observation))
        ours_says = texts.decode(info["tokens"])
        assert ours_says == theirs_says.replace("<|im_start|>player", "<|im_start|>assistant")
    ours.close()


def flatten_ids(prompt: Any) -> list[int]:
    return [token for token in flatten(prompt.chunks) if isinstance(token, int)]


def test_the_split_is_the_cookbooks() -> None:
    builder = cookbook.GuessNumberDatasetBuilder(
        batch_size=1, renderer_name="", train_group_size=1, model_name=""
    )
    expected = builder._get_train_and_test_numbers()
    assert expected == (guess_number.TRAIN_TASKS, guess_number.TEST_TASKS)
