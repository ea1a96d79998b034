"""``check_env``: tests each rule with deliberately broken agents or Envs."""

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import tinker
from tests.kit import Logs, Shown, ask, ask_blocking, asks, assert_says, call, talker
from tests.kit.renderers import FAMILIES
from tinker_cookbook.renderers.base import Message, RenderContext, RenderedMessage
from tinker_cookbook.renderers.qwen3 import Qwen3InstructRenderer
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import ActionExtra, StepResult

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.env.check import DEFAULT_REPLIES, check_env
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.episode.agent import Outcome, agent_name
from evert.bridge.errors import (
    AgentError,
    AgentTimeoutError,
    EnvCheckError,
    EvertError,
    InvalidAgentError,
    RewardError,
)
from evert.bridge.tokens.bases import default_renderer
from evert.envs.guess_number import guess_number_agent
from evert.envs.identity import identity_agent

TOKENIZER = default_renderer().tokenizer


def broken(env: Any, **options: Any) -> str:
    with pytest.raises(EnvCheckError) as caught:
        check_env(env, **options)
    return str(caught.value)


async def at_the_same_time(client: AgentClient) -> float:
    first, second = await asyncio.gather(ask(client), ask(client))
    return float(first == second)


def blocks(client: BlockingAgentClient) -> Outcome:
    for _ in range(2):
        ask_blocking(client)
    return Outcome(1.0, {"turns": 2})


async def calls_nobody(client: AgentClient) -> float:
    return 0.0


async def raises_on_nonsense(client: AgentClient) -> float:
    if await ask(client) != "Hello.":
        raise ValueError("I asked politely.")
    return 1.0


async def works_in_a_thread(client: AgentClient) -> float:
    await asyncio.to_thread(ask_blocking, client.blocking)
    return 1.0


GOOD = [
    asks,
    talker(3),
    at_the_same_time,
    blocks,
    calls_nobody,
    raises_on_nonsense,
    works_in_a_thread,
    ChatAgentEnv(identity_agent, 7),
    ChatAgentEnv(guess_number_agent, 5),
    ChatAgentEnv(talker(3), limits=RolloutLimits(max_turns=1)),
]


def test_an_agent_runs_in_the_main_thread_as_in_training() -> None:
    threads = set[threading.Thread]()

    async def agent(client: AgentClient) -> float:
        threads.add(threading.current_thread())
        await ask(client)
        return 1.0

    check_env(agent)
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("good", GOOD)
def test_a_good_agent_passes_and_leaves_no_threads(good: Any, capfd: Shown, caplog: Logs) -> None:
    before = set(threading.enumerate())
    with caplog.at_level(logging.WARNING):
        check_env(good)

    assert capfd.readouterr() == ("", "")
    assert not caplog.records
    assert set(threading.enumerate()) == before
    if isinstance(good, ChatAgentEnv):
        assert (good.turns, good.is_running) == (0, False)


async def test_check_env_works_inside_a_running_loop() -> None:
    for agent in (asks, blocks):
        check_env(agent)
    with pytest.raises(AgentError, match="I am broken"):
        check_env(raises)
    assert "Rule 1" in broken(never_ends, max_turns=5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_good_agent_passes_with_every_renderer_family(name: str, make_renderer: Any) -> None:
    check_env(ChatAgentEnv(talker(3), renderer=make_renderer(name)))


def test_the_replies_are_cycled_in_order() -> None:
    replies: list[list[str]] = []

    async def hears(client: AgentClient) -> float:
        replies.append([])
        for _ in range(3):
            replies[-1].append(await ask(client))
        return 1.0

    check_env(hears, replies=(text for text in ("Yes.", "No.")))
    assert replies[0] == ["Yes.", "No.", "Yes."]
    replies.clear()
    check_env(hears)
    assert replies[0] == list(DEFAULT_REPLIES[:3])


def test_the_error_for_an_agent_that_fails_on_every_reply_lists_the_replies() -> None:
    async def raises_at_most(client: AgentClient) -> float:
        return float(await ask(client))

    with pytest.raises(AgentError, match="could not convert") as caught:
        check_env(raises_at_most)
    [note] = caught.value.__notes__
    assert note.startswith("The replies were ['Hello.', 'Guess: 5', 'yes', ")
    assert "pass replies=[...]" in note
    check_env(raises_at_most, replies=["1"])


async def never_ends(client: AgentClient) -> float:
    while True:
        await ask(client)


def test_rule_1_detects_an_agent_that_never_ends() -> None:
    message = broken(never_ends, max_turns=5)
    assert message.startswith(f"Rule 1: the agent {__name__}.never_ends made 5 model calls")
    assert_says(message, "Limit its loop", "replies=[...]", "max_turns")

    async def waits_for_done(client: AgentClient) -> float:
        while await ask(client) != "done":
            pass
        return 1.0

    assert broken(waits_for_done, max_turns=5).startswith("Rule 1: ")
    check_env(waits_for_done, replies=["go on", "done"], max_turns=5)


class Renewed(ChatAgentEnv):
    def renewed(self) -> ChatAgentEnv:
        return type(self)(self.agent)


class PaysInWords(Renewed):
    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        result = await super().step(action, extra=extra)
        result.reward = "much"  # type: ignore[assignment]
        return result


class Tireless(Renewed):
    """Still accepts steps after the episode has ended."""

    last: StepResult | None = None

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        if self.last is None or not self.last.episode_done:
            self.last = await super().step(action, extra=extra)
        return self.last


class EmptyPrompts(Qwen3InstructRenderer):
    def build_generation_prompt(self, *arguments: Any, **options: Any) -> tinker.ModelInput:
        return tinker.ModelInput.empty()


class ForeignTokens(Qwen3InstructRenderer):
    def build_generation_prompt(self, *arguments: Any, **options: Any) -> tinker.ModelInput:
        prompt = super().build_generation_prompt(*arguments, **options)
        return tinker.ModelInput.from_ints([*prompt.to_ints(), 150_000])


class Forgetful(Qwen3InstructRenderer):
    """Claims the extension property, but changes a user message once another message follows."""

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        if message["role"] == "user" and not ctx.is_last:
            message = {**message, "content": "[old]"}
        return super().render_message(message, ctx)


RULE_3 = "Rule 3: the observation of turn 1 does not match the renderer's prompt for the conversat"
BROKEN_ENVS: dict[str, tuple[Callable[[], ChatAgentEnv], list[str]]] = {
    "reward": (lambda: PaysInWords(asks), ["Rule 1: the reward is 'much'; expected a float."]),
    "empty": (lambda: ChatAgentEnv(asks, renderer=EmptyPrompts(TOKENIZER)),
        ["Rule 2: the observation of turn 0 is empty."]),
    "foreign": (
        lambda: ChatAgentEnv(asks, renderer=ForeignTokens(TOKENIZER)),
        [
            "Rule 2: the observation of turn 0 contains token 150000, but the vocabulary size is "
            f"{len(TOKENIZER)}. The renderer and the tokenizer do not match."
        ],
    ),
    "forgetful": (lambda: ChatAgentEnv(talker(3), renderer=Forgetful(TOKENIZER)), [RULE_3,
        "Forgetful renders a message differently when more messages follow"]),
    "tireless": (lambda: Tireless(asks),
        ["Rule 4: step() was accepted after the end of the episode."]),
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), BROKEN_ENVS.values(), ids=BROKEN_ENVS)
def test_rules_1_to_4_detect_broken_envs_and_renderers(
    make: Callable[[], ChatAgentEnv], said: list[str]
) -> None:
    message = broken(make())

    assert message.startswith(said[0])
    assert said[-1] in message


freed = threading.Event()


async def forgets_a_task(client: AgentClient) -> float:
    task = asyncio.create_task(asyncio.sleep(3600), name="forgotten task")
    await ask(client)
    task.cancel()
    return 1.0


async def forgets_later(client: AgentClient) -> float:
    await ask(client)
    return await forgets_a_task(client)


async def forgets_a_thread(client: AgentClient) -> float:
    thread = threading.Thread(target=freed.wait, name="forgotten thread", daemon=True)
    thread.start()
    for _ in range(2):
        await ask(client)
    freed.set()
    thread.join()
    freed.clear()
    return 1.0


def sits_still(client: BlockingAgentClient) -> float:
    try:
        ask_blocking(client)
    except EvertError:
        freed.wait()
    return 1.0


async def swallows_every_cancellation(client: AgentClient) -> float:
    try:
        await ask(client)
    except (EvertError, asyncio.CancelledError):
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
    return 1.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("agent", "at", "left"),
    [
        (forgets_a_task, 1, "forgotten task"),
        (forgets_later, 2, "forgotten task"),
        (forgets_a_thread, 1, "forgotten thread"),
        (sits_still, 1, ""),
        (swallows_every_cancellation, 1, ""),
    ],
)
def test_rule_5_detects_tasks_and_threads_left_behind(agent: Any, at: int, left: str) -> None:
    freed.clear()
    try:
        message = broken(ChatAgentEnv(agent, close_timeout=0.02))
    finally:
        freed.set()

    assert message.startswith(
        f"Rule 5: when the Env was closed at call {at}, the agent {agent_name(agent)} left "
    )
    assert message.endswith(
        f"{left or agent.__name__} running. Don't suppress CancelledError (async) or "
        "EnvClosedError (threads), and await or join all tasks and threads that the agent starts."
    )


async def pays_for_sense_only(client: AgentClient) -> float | None:
    return 1.0 if await ask(client) else None


async def pays_for_whole_replies_only(client: AgentClient) -> float:
    return math.nan if (await call(client)).choices[0].finish_reason == "length" else 1.0


async def trips_over_tool_calls(client: AgentClient) -> float:
    return math.inf if "<tool_call>" in await ask(client) else 1.0


@pytest.mark.parametrize(
    ("agent", "reply"),
    [
        (pays_for_sense_only, "an empty reply"),
        (pays_for_whole_replies_only, "a truncated reply"),
        (trips_over_tool_calls, "a malformed tool call"),
    ],
)
def test_rule_6_detects_an_agent_without_a_valid_reward_for_unusual_replies(
    agent: Any, reply: str
) -> None:
    with pytest.raises(EnvCheckError) as caught:
        check_env(agent)

    assert isinstance(caught.value.__cause__, RewardError)
    assert str(caught.value).startswith(
        f"Rule 6: if every reply is {reply}, the agent {__name__}.{agent.__name__} ends without a "
        "valid reward: "
    )


async def raises(client: AgentClient) -> float:
    await ask(client)
    raise ValueError("I am broken.")


async def waits_for_ever(client: AgentClient) -> float:
    await asyncio.sleep(3600)
    return 1.0


def test_errors_of_failing_and_invalid_agents_are_raised_unchanged() -> None:
    with pytest.raises(AgentError, match="I am broken") as caught:
        check_env(raises)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(RewardError, match="pays_for_sense_only"):
        check_env(pays_for_sense_only, replies=[""])
    with pytest.raises(AgentTimeoutError, match="waits_for_ever"):
        check_env(ChatAgentEnv(waits_for_ever, agent_timeout=0.01))
    for agent in (identity_agent, ChatAgentEnv, "agent"):
        with pytest.raises(InvalidAgentError):
            check_env(agent)  # type: ignore[arg-type]
