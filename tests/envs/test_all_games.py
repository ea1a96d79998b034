"""What every built-in game guarantees, and how each one is won, lost or misplayed."""

import copy
import inspect
import itertools
import pickle
import re
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from tests.kit import play_group
from tinker_cookbook.recipes.multiplayer_rl.guess_number import env as cookbook

from evert import ScriptedPolicy
from evert.bridge.import_paths import resolve
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.renderer import prompt_renderer
from evert.bridge.tokens.token_log import flatten
from evert.envs import guess_number, hints, identity
from evert.envs.as_gymnasium.env import LEVELS, AgentGymEnv
from evert.envs.as_gymnasium.spaces import AnyText
from evert.envs.games import Game, GameError, games
from evert.envs.tic_tac_toe import best, free, read_board

ALL = [*itertools.product([game.id for game in games().values()], LEVELS)]
HEADINGS = [
    "Action Space", "Observation Space", "Starting State", "Reward", "Episode End", "Information",
    "Arguments", "References", "Version History",
]  # fmt: skip


def episode(env: gymnasium.Env[Any, Any], seed: int | None) -> list[Any]:
    """Play random actions until the game is over; return all results."""
    observation, info = env.reset(seed=seed)
    env.action_space.seed(0)
    came: list[Any] = [(observation, info)]
    while len(came) == 1 or not (came[-1][2] or came[-1][3]):
        came.append(env.step(env.action_space.sample()))
    return came


@pytest.mark.parametrize(("id", "level"), ALL)
def test_a_game_is_a_valid_gymnasium_environment(id: str, level: str) -> None:
    env = gymnasium.make(id, level=level)
    assert "OrderEnforcing<PassiveEnvChecker<" in str(env)
    check_env(env.unwrapped)
    first, then = episode(env, 7), episode(env, None)
    assert first[-1][2], "no sampled action ended it"
    assert all(came[0] in env.observation_space for came in first + then)

    assert env.spec is not None
    specs = (EnvSpec.from_json(env.spec.to_json()), pickle.loads(pickle.dumps(env.spec)), id)
    for spec in specs:
        copied = gymnasium.make(spec, level=level)
        assert episode(copied, 7) == first, spec
        assert episode(copied, None) == then, spec  # later episodes match, too
        copied.close()
    env.close()


def sections(doc: str | None) -> list[str]:
    """Return the headings of the non-empty sections of a docstring."""
    return [str(name) for name in re.findall(r"^## (.+)\n\n?(?!#)\S", doc or "", re.MULTILINE)]


@pytest.mark.parametrize("game", games().values(), ids=games())
def test_a_game_is_registered_and_documented_and_its_import_paths_work(game: Game) -> None:
    spec, env = gymnasium.spec(game.id), gymnasium.make(game.id).unwrapped
    assert spec.entry_point == "evert.envs.as_gymnasium.env:AgentGymEnv"
    assert spec.vector_entry_point == "evert.envs.as_gymnasium.vector:AgentVectorEnv"
    assert spec.kwargs == {"agent": game.agent, "tasks": game.train_tasks}
    assert isinstance(env, AgentGymEnv)
    assert env.tasks
    assert sections(env.__doc__) == HEADINGS
    assert str(env.__doc__).partition("\n")[0].endswith(".")
    assert sections(inspect.getdoc(AgentGymEnv)) == HEADINGS[:-2]
    paths = [game.agent, game.train_tasks, game.test_tasks]
    paths += [*game.players.values(), *game.searching, *game.searching.values()]
    for path in paths:
        assert resolve(path, "thing", GameError) is not None, path


ZEBRA = {"answer": "zebra", "category": "animal", "split": "train"}
BISECTED = ["Guess: 512", "Guess: 256", "Guess: 13"]
SCRIPTS: list[tuple[str, Any, list[str], list[float], dict[str, Any]]] = [
    ("Identity-v0", 7, ["I am 7"], [1], {}),
    ("Identity-v0", 7, ["I am not 7"], [-1], {}),
    ("Identity-v0", 7, [""], [0], {}),
    ("GuessNumber-v0", 13, BISECTED, [0, 0, 1], {"target": 13, "feedback": "Correct"}),
    ("GuessNumber-v0", 13, ["Guess: 5"] * 10, [0] * 10, {"feedback": "Too low"}),
    ("GuessNumber-v0", 13, ["I do not know"] * 10, [-1] * 10, {}),
    ("Hints-v0", "sun", ["A", "sun"], [0, 1], {"hint": "A", "guess": "sun"}),
    ("Hints-v0", "sun", ["A", "the sun"], [0, 0], {}),
    ("Hints-v0", "sun", ["s-u-n"], [0], {"told": 1.0}),
    ("TwentyQuestions-v0", ZEBRA, ["Is it big?", "Is it a zebra?"], [0, 1], {"found": 1.0}),
    ("TwentyQuestions-v0", ZEBRA, ["Is it a cat?"] * 20, [0] * 20, {"found": 0.0}),
    ("TwentyQuestions-v0", ZEBRA, [""] * 20, [0] * 20, {"not_told": 20.0}),
    ("TwentyQuestionsShown-v0", ZEBRA, ["Is it a zebra?"], [1], {"target": "zebra"}),
]


@pytest.mark.parametrize(("id", "task", "replies", "rewards", "noted"), SCRIPTS)
def test_a_game_can_be_won_lost_and_played_incorrectly(
    id: str, task: Any, replies: list[str], rewards: list[float], noted: dict[str, Any]
) -> None:
    env = gymnasium.make(f"evert/{id}")
    env.reset(options={"task": task})
    steps = [env.step(reply) for reply in replies]
    env.close()

    assert [step[1] for step in steps] == rewards
    assert [step[2:4] for step in steps] == [(False, False)] * (len(steps) - 1) + [(True, False)]
    info = steps[-1][4]
    assert info["stop_reason"] == "completed"
    assert noted.items() <= {**info["logs"], **info["metrics"]}.items()
    assert steps[-1][0][-1]["content"] == replies[-1]


def test_best_moves_never_lose_tic_tac_toe_and_two_illegal_moves_lose_it() -> None:
    env = gymnasium.make("evert/TicTacToe-v0", tasks="evert.envs.tic_tac_toe:TEST_TASKS")
    for seed in range(3):
        conversation, _ = env.reset(seed=seed)
        over, info = False, dict[str, Any]()
        while not over:
            board = read_board(conversation[-1]["content"])
            conversation, _, over, _, info = env.step(str(best(board)[0] + 1))
        assert info["metrics"].get("won", 0) + info["metrics"].get("drawn", 0) == 1.0, seed
    conversation, _ = env.reset(seed=3)
    board = read_board(conversation[-1]["content"])
    conversation, _, over, *_ = env.step("pass")
    assert f"'pass' is no move. Answer with one of {free(board)[0] + 1}" in str(conversation[-1])
    assert (over, env.step("pass")[2]) == (False, True)
    env.close()


# -- individual games ------------------------------------------------------------------------------


PAID = {
    1.0: ["I am 7", "Well, I'm 7.", "I am 77, no, I am 7"],
    -1.0: ["I am not 7", "You are not 7"],
    0.0: ["You are 7", "I am 8", "I am 70", "I'm 7.5", "I am 7,000", "I am not 77", ""],
}


def test_identity_rewards_the_correct_name() -> None:
    assert {paid: [a for a in PAID[paid] if identity.score(a, 7) == paid] for paid in PAID} == PAID
    assert not set(identity.TRAIN_TASKS) & set(identity.TEST_TASKS)


GUESSES = [
    BISECTED,
    ["hello", "Guess: x", "guess: 13", "Guess: 13.0", "Guess:\n13", "Guess:  13"],
    [" Guess: 13", "Guess: 1 3", "Guess: -5", "Guess: +13"],
    ["Guess: 99999999999999999999", "", "Guess: 13\nor 14"],
    ["Guess: 1_3"],
    ["Guess: 5"] * 10,
    ["Guess: "] * 9 + ["Guess: 13"],
]


@pytest.mark.parametrize("script", GUESSES)
async def test_guess_number_has_the_same_texts_as_the_cookbooks_game(script: list[str]) -> None:
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
        # The Cookbook calls the policy "player", while chat agents say "assistant".
        tokens: Any = flatten(expected.next_observation.chunks)
        theirs_says = texts.decode(tokens).replace("<|im_start|>player", "<|im_start|>assistant")
        assert texts.decode(info["tokens"]) == theirs_says
    ours.close()


def test_guess_number_uses_the_cookbooks_split() -> None:
    builder = cookbook.GuessNumberDatasetBuilder(
        batch_size=1, renderer_name="", train_group_size=1, model_name=""
    )
    expected = builder._get_train_and_test_numbers()
    split = guess_number.TRAIN_TASKS, guess_number.TEST_TASKS

    assert split == expected
    assert sorted([*split[0], *split[1]]) == list(range(1024))


@pytest.mark.parametrize(
    ("hint", "guess", "reward"), [("A", "sun", 1.0), ("A", "sea", 0.0), ("Sunny", "sun", 0.0)]
)
async def test_seats_earn_for_a_hint_that_does_not_contain_the_word(
    hint: str, guess: str, reward: float
) -> None:
    policy = ScriptedPolicy(lambda prompt: hint if "Hint?" in prompt else guess)
    seats = ("hinter", "guesser")
    group = await play_group(hints.seated_hints_agent, 1, policy, task="sun", seats=seats)

    is_revealed = hint == "Sunny"
    [hinter, guesser] = group.metrics_G[0], group.metrics_G[-1]
    assert hinter["seat/hinter/reward"] == reward
    assert is_revealed or guesser["seat/guesser/reward"] == reward
    assert group.trajectories_G[0].transitions[0].metrics.get("told", 0.0) == is_revealed
    assert is_revealed or ("Hint: A. Word?" in policy.prompts[1] and "sun" not in policy.prompts[1])


def test_demonstrations_of_hints_show_only_the_format() -> None:
    pairs = [*islice(hints.demonstrations(0), 400)]
    letters = {answer["content"] for question, answer in pairs if "Hint?" in question["content"]}
    words = {answer["content"] for question, answer in pairs if "Word?" in question["content"]}
    to_one = {a["content"] for q, a in pairs if q["content"] == hints.hint_question("sun")}

    assert (letters, words) == (set(hints.LETTERS), set(hints.WORDS))
    assert len(to_one) > 4


def test_demonstrations_of_guess_number_stay_within_bounds_and_win_a_third_of_the_time() -> None:
    games_shown = [*islice(guess_number.demonstrations(0), 300)]
    for _rules, *messages in games_shown:
        low, high = 0, 1023
        for turn in range(0, len(messages), 2):
            guess = int(messages[turn]["content"].removeprefix("Guess: "))
            assert low <= guess <= high
            is_low = messages[turn + 1 :] and messages[turn + 1]["content"] == "Too low"
            low, high = (guess + 1, high) if is_low else (low, guess - 1)

    assert 75 < sum(game[-1]["role"] == "assistant" for game in games_shown) < 125


# -- tasks, actions, copies ------------------------------------------------------------------------


def test_seeds_cover_all_tasks_and_the_task_option_does_not_affect_later_draws() -> None:
    env = gymnasium.make("evert/Identity-v0", tasks=[1, 2, 3, 123])
    assert {env.reset(seed=seed)[1]["task"] for seed in range(40)} == {1, 2, 3, 123}
    env.reset(seed=1)
    tasks = [env.reset()[1]["task"] for _ in range(4)]
    env.reset(seed=1)
    observation, info = env.reset(options={"task": 123})
    assert info["task"] == 123
    assert observation == ({"role": "user", "content": "Let's play a game. Say you are 123."},)
    assert [env.reset()[1]["task"] for _ in range(4)] == tasks
    env.close()
    held_out = gymnasium.make("evert/Identity-v0", tasks="evert.envs.identity:TEST_TASKS")
    assert all(held_out.reset(seed=seed)[1]["task"] >= 1000 for seed in range(5))


def test_special_tokens_in_a_text_action_are_encoded_as_plain_text() -> None:
    env = gymnasium.make("evert/GuessNumber-v0")
    for text in ("<|im_end|>", "Guess: 5<|im_end|>Guess: 7", "<|im_start|>user"):
        env.reset(seed=1)
        observation, _, _, _, info = env.step(text)
        controls = {504, 505}  # <|im_start|> and <|im_end|>
        assert [token for token in info["action_tokens"] if token in controls] == [505]
        assert info["action_tokens"][-1] == 505
        assert observation[-2] == {"role": "assistant", "content": text}
        assert info["logs"]["guess"] == text
    env.close()


ODD_TEXTS = ["", "\n", "日本語 🎲", "a" * 5000, "<|im_start|>user\nI am 7", "\x00"]
ODD_TOKENS = [(), (505,), (505, 505), (504, 1, 505, 2), (0,)]


@pytest.mark.parametrize(("level", "actions"), [("messages", ODD_TEXTS), ("tokens", ODD_TOKENS)])
def test_any_text_and_any_tokens_are_legal_actions(level: str, actions: list[Any]) -> None:
    env = gymnasium.make("evert/Identity-v0", level=level)
    env.action_space.seed(1)
    for action in [*actions, *(env.action_space.sample() for _ in range(30))]:
        env.reset()
        assert action in env.action_space, action
        assert env.step(action)[2], action
    for same in [[300, 274, 505], np.array([300, 274, 505])][: 2 * (level == "tokens")]:
        env.reset()
        assert env.step(same)[4]["action_tokens"] == [300, 274, 505]
    env.close()


def test_the_text_space_excludes_texts_that_cannot_be_tokenized() -> None:
    space = AnyText(seed=0)
    assert "日本語" in space
    assert "\ud800" not in space
    assert 7 not in space
    assert max(len(space.sample()) for _ in range(100)) <= 32
    assert len(space.sample(mask=(50, None))) == 50
    assert AnyText(seed=3).sample() == AnyText(seed=3).sample()
    assert pickle.loads(pickle.dumps(space)) == space == AnyText()


@pytest.mark.parametrize(("level", "played"), [*itertools.product(LEVELS, (False, True))])
def test_a_copy_is_a_new_environment_with_the_same_arguments(level: Any, played: Any) -> None:
    env: Any = gymnasium.make("evert/GuessNumber-v0", level=level, tasks=[3, 4], max_turns=2)
    if played:
        env.reset(seed=1)
    for copied in (copy.deepcopy(env.unwrapped), pickle.loads(pickle.dumps(env.unwrapped))):
        assert (copied.level, copied.tasks) == (level, [3, 4])
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"reset\(\) was never called"):
            copied.step("")
        assert copied.reset(seed=2)[0] == env.reset(seed=2)[0]
        copied.close()
    env.close()
