"""Wrapping a Cookbook environment as an agent gives the same rollouts, token for token."""

import asyncio
import pickle
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import textarena
import tinker
from tests.kit import play, rewards, start
from tests.kit.renderers import FAMILIES, renderer_named
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.recipes.forecasting.data import ForecastExample
from tinker_cookbook.recipes.forecasting.env import ForecastEnv, ForecastGroupBuilder
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticEnv
from tinker_cookbook.recipes.math_rl.math_env import MathEnv
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberEnv
from tinker_cookbook.recipes.multiplayer_rl.text_arena.env import TwoPlayerCoordinator, TwoPlayerEnv
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions.env import TwentyQuestionsEnv
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_presets import RolloutConfig
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Env, Metrics, StepResult, Trajectory, Transition
from tinker_cookbook.tool_use import build_agent_tool_env, simple_tool_result, tool

from evert.agents.cookbook import CookbookAgent
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.episode.agent import Outcome
from evert.bridge.errors import AgentError, InvalidAgentError
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.records.record import read_records
from evert.bridge.records.recorder import Recorder
from evert.bridge.records.replay import replay
from evert.bridge.tokens.bases import default_renderer


class Answerer(MessageCompleter):
    """A model that answers "yes" to any text containing an "i"."""

    async def __call__(self, messages: list[Message]) -> Message:
        return Message(role="assistant", content="yes" if "i" in messages[-1]["content"] else "no")


class Opponent(MessageCompleter):
    """A model that takes the squares in order."""

    def __init__(self) -> None:
        self._fields = iter(range(9))

    async def __call__(self, messages: list[Message]) -> Message:
        return Message(role="assistant", content=f"[{next(self._fields)}]")


def tic_tac_toe(renderer: Any) -> Env:
    game = textarena.make(env_id="TicTacToe-v0")
    game.reset(num_players=2)
    return TwoPlayerEnv(0, TwoPlayerCoordinator(game), False, renderer, Opponent())


@tool
async def times_two(number: int) -> Any:
    """Double a number."""
    return simple_tool_result(str(2 * number))


async def says_84(messages: list[Message]) -> tuple[float, dict[str, float]]:
    return float("84" in str(messages[-1]["content"])), {"messages": float(len(messages))}


def calculator(renderer: Any, **options: Any) -> Env:
    prefix = renderer.create_conversation_prefix_with_tools([times_two.to_spec()], "Be brief.")
    start = [*prefix, Message(role="user", content="What is 42 doubled?")]
    return build_agent_tool_env(renderer, [times_two], start, says_84, **options)


def calculating(**options: Any) -> Callable[[Any], Env]:
    return lambda renderer: calculator(renderer, **options)


def guess_number(renderer: Any, answer: int = 42) -> Env:
    return GuessNumberEnv(answer, renderer)


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "times_two", "arguments": {arguments}}}\n</tool_call>'


MARKET = ForecastExample(
    "1", "RAIN", "Rain", "It rains.", "", "", datetime(2026, 1, 1), datetime(2026, 1, 2), "Sky", 1
)
CALL = call('{"number": 42}')
ASKED_AGAIN = calculating(parse_error_policy=ParseErrorPolicy(max_consecutive=1))
SHORT = RolloutConfig(limits=RolloutLimits(max_sampled_tokens=60))
TWENTY_QUESTIONS = "a game with another model in it"
SCENES: dict[str, tuple[Callable[[Any], Env], list[str]]] = {
    "a game, with a role of its own": (guess_number, ["Guess: 50", "what?", "Guess: 42"]),
    TWENTY_QUESTIONS: (lambda renderer: TwentyQuestionsEnv(Answerer(), "pear", renderer),
        ["Is it red?", "Hm", "Guess: pear"]),
    "a board, with stops of its own": (tic_tac_toe, ["[4]", "[2]", "[6]"]),
    "a problem": (lambda renderer: ArithmeticEnv(2, 3, renderer,
        ArithmeticEnv.standard_fewshot_prefix()), ["It is 5"]),
    "one message": (lambda renderer: EnvFromMessageEnv(renderer, ForecastEnv(MARKET)), ["0.8"]),
    "tools": (calculator, [CALL, "It is 84."]),
    "a broken tool call": (calculator, [call("{")]),
    "a broken tool call, asked again": (ASKED_AGAIN, [call("{"), CALL, "84"]),
    "a limit of its own": (calculating(rollout_config=SHORT), [CALL, CALL, CALL, CALL]),
    "tool calls of its own limit": (calculating(max_tool_calls=1), [CALL, CALL, "84"]),
    "a first prompt that is too long": (calculating(max_trajectory_tokens=10), []),
}  # fmt: skip

NEW_SEQUENCES = [
    "a game, with a role of its own",
    "a board, with stops of its own",
    "a broken tool call, asked again",
]
"""Scenes in which the environment rewrites or drops a sampled reply in the history."""


def rollout(env: Env, say: Sequence[str], renderer: Any = None, **limits: int) -> Trajectory:
    policy = ScriptedPolicy(say, renderer)
    run_limits = RolloutLimits(**limits) if limits else None
    return asyncio.run(run_rollout(policy, env, limits=run_limits))


def facts(transition: Transition, reference: Transition) -> tuple[Any, ...]:
    """Return the values to compare. Logs and metrics are limited to the keys of ``reference``."""
    metrics = {key: transition.metrics.get(key) for key in reference.metrics if "stop/" not in key}
    logs = {key: transition.logs.get(key) for key in reference.logs}
    prompt = transition.ob.to_ints()
    return prompt, transition.ac.tokens, transition.reward, transition.episode_done, metrics, logs


def check_equal(ours: Trajectory, theirs: Trajectory) -> None:
    pairs = [*zip(ours.transitions, theirs.transitions, strict=True)]
    assert [facts(our, own) for our, own in pairs] == [facts(own, own) for _, own in pairs]


@pytest.mark.parametrize("scene", SCENES)
def test_the_agent_plays_like_the_environment(scene: str) -> None:
    make, say = SCENES[scene]
    theirs = rollout(make(default_renderer()), say)
    ours = rollout(ChatAgentEnv(CookbookAgent(make)), say)

    check_equal(ours, theirs)
    last = ours.transitions[-1].metrics
    assert last.get("lineages", 0) <= 1 or scene in NEW_SEQUENCES
    assert [key for key in last if key.startswith("env_stop/")] == (
        [f"env_stop/{theirs.stop_reason}"] if theirs.stop_reason else []
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_agent_plays_like_the_environment_with_every_renderer(name: str) -> None:
    family = renderer_named(name)
    make, say = SCENES[TWENTY_QUESTIONS]
    theirs, ours = (
        rollout(env, say, family)
        for env in (make(family), ChatAgentEnv(CookbookAgent(make), renderer=family))
    )

    assert rewards(ours) == rewards(theirs)
    for our, reference in zip(ours.transitions, theirs.transitions, strict=True):
        # some renderers insert an empty think block into the history; the sampled text is unchanged
        texts = [family.tokenizer.decode(turn.ob.to_ints()) for turn in (our, reference)]
        assert len({"".join(re.sub("</?think>", "", str(text)).split()) for text in texts}) == 1


def test_the_environment_sees_a_truncated_reply_as_truncated() -> None:
    theirs = rollout(calculator(default_renderer()), [CALL], max_turn_tokens=4)
    ours = rollout(ChatAgentEnv(CookbookAgent(calculator)), [CALL], max_turn_tokens=4)

    check_equal(ours, theirs)
    assert rewards(theirs) == [-0.1]
    assert (theirs.stop_reason, ours.stop_reason) == ("max_tokens", "truncated")


async def test_a_group_builders_reward_metrics_and_cleanup_are_used() -> None:
    class Bonus(ForecastGroupBuilder):
        async def compute_group_rewards(
            self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
        ) -> list[tuple[float, Metrics]]:
            [(_, metrics)] = await super().compute_group_rewards(trajectory_group, env_group)
            return [(len(trajectory_group[0].transitions[0].ac.tokens), metrics)]

        async def cleanup(self) -> None:
            cleaned.append(self)

    cleaned: list[Bonus] = []
    agent = CookbookAgent(lambda renderer, market: Bonus(market, renderer, group_size=1))
    [turn] = (await play(agent, "0.8", task=MARKET)).transitions
    assert turn.reward == pytest.approx(len(turn.ac.tokens) + 1 - 0.2**2)
    assert turn.metrics["accuracy"] == 1.0
    env = await start(agent, MARKET)
    await env.close()
    assert len(cleaned) == 2


async def test_a_cookbook_agent_can_be_recorded_replayed_and_pickled(tmp_path: Path) -> None:
    agent = CookbookAgent(guess_number)
    recorder = Recorder(tmp_path / "rollouts.jsonl")
    group = ChatAgentGroupBuilder(agent, 42, group_size=2, record=recorder)
    policy = ScriptedPolicy(lambda prompt: "Guess: 42" if "Too high" in prompt else "Guess: 50")
    await do_group_rollout(group, policy)

    for record in read_records(tmp_path / "rollouts.jsonl"):
        assert rewards(await replay(record, agent)) == [0.0, 1.0]
    received = pickle.loads(pickle.dumps(ChatAgentGroupBuilder(agent, 42)))
    assert (await do_group_rollout(received, policy)).get_total_rewards() == [1.0]


async def test_a_cookbook_agent_works_with_a_model_that_returns_no_tokens() -> None:
    class Yes(ArithmeticEnv):
        def check_answer(self, sample_str: str) -> bool:
            return sample_str == "yes"

    async def asks_a_frozen_model(client: Any) -> Outcome:
        """Let a frozen model play an inner environment, so that evert does not see the tokens."""
        client.model = "player"
        return await CookbookAgent(lambda renderer: Yes(1, 1, renderer))(client)

    assert rewards(await play(asks_a_frozen_model, models={"player": Answerer()})) == [1.0]


class Held(MessageEnv):
    """An environment that counts how many instances are open."""

    opened = 0

    async def initial_observation(self) -> list[Message]:
        Held.opened += 1
        return [Message(role="user", content="?")]

    async def step(self, message: Message) -> MessageStepResult:
        if message["content"] == "fail":
            raise ValueError("as told")
        return MessageStepResult(1.0, True, [])

    async def close(self) -> None:
        Held.opened -= 1


@pytest.mark.parametrize(
    "make", [lambda renderer: Held(), lambda renderer: EnvFromMessageEnv(renderer, Held())]
)
@pytest.mark.parametrize("end", ["ends", "fail", "close"])
async def test_an_environment_is_closed_however_its_episode_ends(make: Any, end: str) -> None:
    env, before = ChatAgentEnv(CookbookAgent(make)), asyncio.all_tasks()
    await env.initial_observation()
    assert Held.opened == 1
    if end == "fail":
        with pytest.raises(AgentError, match="as told"):
            await env.step(default_renderer().tokenizer.encode("fail<|im_end|>"))
    elif end == "ends":
        await env.step(default_renderer().tokenizer.encode("yes<|im_end|>"))
    await env.close()

    assert Held.opened == 0
    assert asyncio.all_tasks() == before


class OwnTokens(Env):
    """An Env that builds its prompt without a renderer or uses custom stop tokens."""

    def __init__(self, renderer: Any = None) -> None:
        self._renderer = renderer

    async def initial_observation(self) -> Any:
        if self._renderer is None:
            return tinker.ModelInput.from_ints([1, 2, 3]), []
        messages = [Message(role="user", content="?")]
        return self._renderer.build_generation_prompt(messages), [7]

    async def step(self, action: list[int], *, extra: Any = None) -> StepResult:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda renderer: OwnTokens(), "that was not created with the renderer it was given"),
        (lambda renderer: GuessNumberEnv(1, default_renderer()), "that was not created with"),
        (OwnTokens, r"stops at the tokens \[7\], but a chat client only supports"),
        (lambda renderer: 3, "returned 3; expected a Cookbook Env, MessageEnv or EnvGroupBuilder"),
        (
            lambda renderer: ProblemGroupBuilder(lambda: ArithmeticEnv(1, 2, renderer), 4),
            "makes a group of 4 Envs; expected a single",
        ),
    ],
)
async def test_an_env_that_needs_more_than_messages_is_rejected(make: Any, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        await play(CookbookAgent(make), "yes")


async def test_a_client_that_does_not_belong_to_an_env_is_rejected() -> None:
    with pytest.raises(InvalidAgentError, match="needs the client of an evert Env"):
        await CookbookAgent(guess_number)(object(), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("grader", "hostile"), [("sympy", "(99999999!)"), ("math_verify", "9^{9^{9^{9}}}")]
)
async def test_math_rl_answers_are_graded_without_hanging(grader: Any, hostile: str) -> None:
    def make(renderer: Renderer) -> MathEnv:
        return MathEnv("How many?", "\\frac{3}{4}", renderer, grader=grader)

    right, wrong, without_box = 1.0, 0.0, -0.1
    for reply, earned in (
        ("\\boxed{\\frac{3}{4}}", right),
        ("\\boxed{0.75}", right),
        ("\\boxed{2}", wrong),
        ("3/4", without_box),
    ):
        trajectory = await play(CookbookAgent(make), reply)
        assert rewards(trajectory) == [pytest.approx(earned)], reply
        assert trajectory.transitions[0].metrics.get("scorer_stopped", 0) == 0
    trajectory = await play(CookbookAgent(make), f"\\boxed{{{hostile}}}")
    assert rewards(trajectory) == [0]
    assert trajectory.transitions[0].metrics["scorer_stopped"] == 1
