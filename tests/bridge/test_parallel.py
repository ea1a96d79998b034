"""Concurrent calls of an agent with ``ParallelRollouts``."""

import asyncio
import itertools
import pickle
import re
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tinker
from tests.kit import ask, ask_blocking, assistant, policy_of, rewards, user
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberEnv
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollout_runner import (
    RolloutHooks,
    RolloutState,
    SamplingTurnTimeoutError,
    run_rollout,
)
from tinker_cookbook.rl.rollout_strategy import (
    FailFast,
    RetryOnFailure,
    RolloutResult,
    RolloutStrategy,
)
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import StopReason, Trajectory, TrajectoryGroup, Transition

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.parallel import ParallelRollouts, do_parallel_rollout
from evert.bridge.env.policy_queue import PolicyQueue, shortened
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.errors import AgentError
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.logprobs import SampledTokens

PATIENCE = 20.0
"""Timeout per test, in seconds."""

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven")


class Together(ScriptedPolicy):
    """A policy that replies once ``count`` calls are pending, in order or in reverse order.

    ``most`` is the highest number of calls pending at once, and ``given_up`` the number of
    cancelled calls.
    """

    def __init__(
        self, count: int, replies: Any = lambda _: "ok", *, backwards: bool = False
    ) -> None:
        super().__init__(replies)
        self._count = count
        self._backwards = backwards
        self._here: list[asyncio.Event] = []
        self.most = self.given_up = 0

    async def __call__(self, *inputs: Any, **options: Any) -> TokensWithLogprobs:
        turn = asyncio.Event()
        self._here.append(turn)
        self.most = max(self.most, len(self._here))
        if len(self._here) >= self._count:
            self._go_on()
        try:
            await turn.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return await super().__call__(*inputs, **options)

    def _go_on(self) -> None:
        here, self._here = self._here, []
        if not self._backwards:
            for turn in here:
                turn.set()
        elif here:
            here.pop().set()
            self._here = here
            asyncio.get_running_loop().call_later(0.01, self._go_on)

    def let_go(self) -> None:
        """Answer all pending calls, and every later call immediately."""
        self._count = 1
        self._go_on()


async def until(condition: Callable[[], bool]) -> None:
    """Yield to the loop until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0)


async def gathers(client: AgentClient, count: int = 4) -> float:
    await asyncio.gather(*(ask(client, word) for word in WORDS[:count]))
    return 1.0


def has_threads(client: BlockingAgentClient, count: int) -> float:
    def sub(word: str) -> None:
        ask_blocking(client, word)
        client.log(word=word)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(sub, WORDS[:count]))
    return 1.0


async def conversation(client: AgentClient, name: str, turns: int) -> None:
    """Play a sub-agent that earns 0 for its first turn, 1 for the second, and so on."""
    messages = [user(f"You are sub-agent {name}.")]
    for turn in range(turns):
        messages += [assistant(await ask(client, *messages)), user("Go on.")]
        client.reward(float(turn))


async def play_group(
    policy: TokenCompleter, agent: Any, *task: Any, strategy: Any = None, **options: Any
) -> TrajectoryGroup:
    group = ChatAgentGroupBuilder(agent, *task, **options)
    rollout = do_group_rollout(group, policy, strategy or ParallelRollouts())
    return await asyncio.wait_for(rollout, PATIENCE)


async def play(agent: Any, policy: TokenCompleter, *task: Any, **options: Any) -> Trajectory:
    """Play an episode and return the trajectory that the Cookbook trains on."""
    return (await play_group(policy, agent, *task, **options)).trajectories_G[0]


def prompt(transition: Transition) -> str:
    return str(default_renderer().tokenizer.decode(transition.ob.to_ints()))


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not [task for task in left if "evert" in task.get_name()]


# -- concurrency -----------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [gathers, has_threads])
async def test_concurrent_calls_are_sampled_concurrently(agent: Any) -> None:
    policy = Together(16)
    group = await play_group(policy, agent, 8, 2)  # 8 calls in each of 2 episodes

    assert policy.most == 16
    for trajectory in group.trajectories_G:
        turns = trajectory.transitions
        assert {turn.logs["lineage"] for turn in turns} == {*range(8)}
        assert len(trajectory_to_data(trajectory, 1.0)) == 8
        assert all(str(turn.logs.get("word", "")) in prompt(turn) for turn in turns)


async def test_one_sub_agent_continues_while_another_waits() -> None:
    over = asyncio.Event()

    class SlowIsLast(ScriptedPolicy):
        async def __call__(self, model_input: Any, *inputs: Any, **options: Any) -> Any:
            if "Slow?" in self._renderer.decode(model_input.to_ints()):
                await over.wait()
            return await super().__call__(model_input, *inputs, **options)

    async def scored(client: AgentClient) -> None:
        await ask(client, "Early?")
        await over.wait()
        client.reward(5.0)

    async def agent(client: AgentClient) -> float:
        waiting = asyncio.gather(ask(client, "Slow?"), scored(client))
        await conversation(client, "quick", 3)
        over.set()
        await waiting
        return 0.0

    trajectory = await play(agent, SlowIsLast(lambda _: "ok"))

    seen = [(prompt(turn).count("?"), turn.reward) for turn in trajectory.transitions]
    assert "Early?" in prompt(trajectory.transitions[0])
    assert seen == [(1, 5.0), (0, 0.0), (0, 1.0), (0, 2.0), (1, 0.0)]
    assert len(trajectory_to_data(trajectory, 1.0)) == 3


# -- agents whose calls never overlap --------------------------------------------------------------


async def notes_on_the_way(client: AgentClient) -> float:
    client.log(before="the first call")
    messages = [user("Play.")]
    for number in range(4):
        # Create a task for each call, as asyncio.wait_for did before Python 3.12.
        said = await asyncio.create_task(ask(client, *messages), name="call")
        messages += [assistant(said), user(f"No {number}.")]
        client.reward(number / 10)
        client.metric("number", number)
    await conversation(client, "other", 2)
    return 1.0


async def gives_up_a_call(client: AgentClient) -> float:
    call = asyncio.create_task(ask(client, "First?"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    await ask(client, "Second?")
    return 1.0


def has_a_thread(client: BlockingAgentClient) -> float:
    for text in WORDS[:3]:
        ask_blocking(client, text)
        client.reward(0.5)
    return 1.0


@pytest.mark.parametrize("agent", [notes_on_the_way, gives_up_a_call, has_a_thread])
async def test_sequential_calls_are_played_as_if_without_parallel_rollouts(
    agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slowly(ScriptedPolicy):
        async def __call__(self, *inputs: Any, **options: Any) -> Any:
            await asyncio.sleep(0.005)
            return await super().__call__(*inputs, **options)

    def of(turn: Transition) -> tuple[Any, ...]:
        logs = {key: value for key, value in turn.logs.items() if key != "caller"}
        return turn.ob.to_ints(), turn.ac, turn.reward, turn.episode_done, turn.metrics, logs

    async def told(strategy: RolloutStrategy) -> tuple[Any, ...]:
        policy = Slowly(lambda prompt: f"So many: {len(prompt)}")
        [played] = (await play_group(policy, agent, strategy=strategy)).trajectories_G
        return [*map(of, played.transitions)], policy.actions, policy.prompts, played.stop_reason

    def never(*_: Any) -> Any:
        raise AssertionError("A call was submitted to the queue.")

    plain = await told(FailFast())
    monkeypatch.setattr("evert.bridge.env.policy_queue.PolicyQueue.submit", never)

    assert await told(ParallelRollouts()) == plain


# -- lineages, rewards, metrics and logs -----------------------------------------------------------


NOTING: dict[str, Callable[[AgentClient, str], Awaitable[str]]] = {
    "its own task": ask,
    "a task for the call": lambda client, text: asyncio.create_task(ask(client, text)),
    "wait_for": lambda client, text: asyncio.wait_for(ask(client, text), PATIENCE),
}


@pytest.mark.parametrize("asking", NOTING.values(), ids=NOTING)
@pytest.mark.parametrize("backwards", [False, True])
async def test_rewards_metrics_and_logs_are_attributed_to_their_call(
    asking: Any, backwards: bool
) -> None:
    async def sub(client: AgentClient, number: int) -> None:
        await asking(client, f"Number {WORDS[number]}?")
        client.reward(float(number))
        client.metric("number", number)
        client.log(word=WORDS[number])

    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(sub(client, number) for number in range(6)))
        return 100.0

    turns = (await play(agent, Together(6, backwards=backwards))).transitions

    for turn in turns:
        number = WORDS.index(str(turn.logs["word"]))
        assert f"Number {WORDS[number]}?" in prompt(turn)
        assert turn.metrics["number"] == number
        assert turn.reward == number + 100.0 * turn.episode_done
    assert [turn.episode_done for turn in turns] == [False] * 5 + [True]


async def by_sdk(client: AgentClient, text: str) -> None:
    await client.openai.chat.completions.create(
        model=client.model, messages=[{"role": "user", "content": text}]
    )


@pytest.mark.parametrize("asking", [ask, by_sdk])
async def test_rewards_and_logs_of_overlapping_calls_are_attributed_to_the_right_call(
    asking: Any,
) -> None:
    async def sub(client: AgentClient, number: int) -> None:
        await asking(client, f"Number {WORDS[number]}?")
        client.reward(float(number))
        client.log(word=WORDS[number])

    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(sub(client, number) for number in range(6)))
        return 0.0

    env = ChatAgentEnv(agent)
    turns = (await do_single_rollout(ScriptedPolicy(lambda _: "ok"), env)).transitions

    assert [f"Number {turn.logs['word']}?" in prompt(turn) for turn in turns] == [True] * 6
    assert [turn.reward for turn in turns] == [
        WORDS.index(str(turn.logs["word"])) for turn in turns
    ]


async def test_parallel_sub_agents_give_one_datum_each() -> None:
    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(conversation(client, name, 3) for name in "ABC"))
        return 0.0

    policy = Together(3, backwards=True)
    data = trajectory_to_data(await play(agent, policy), 1.0)

    assert (policy.most, len(data)) == (3, 3)
    trained: list[Any] = []
    for datum in data:
        tokens, mask = (datum.loss_fn_inputs[name].data for name in ("target_tokens", "mask"))
        trained += [token for token, kept in zip(tokens, mask, strict=True) if kept]
    assert sorted(trained) == sorted(itertools.chain(*policy.actions)), "each token once"

    env = ChatAgentEnv(agent)
    trajectory = await do_parallel_rollout(Together(3), env)
    turns = trajectory.transitions
    assert [turn.logs["lineage"] for turn in turns] == env.turn_lineages
    assert sum(rewards(trajectory)) == 9.0
    assert [turn.episode_done for turn in turns] == [False] * 8 + [True]


async def test_of_two_calls_that_continue_one_reply_the_second_branches() -> None:
    async def agent(client: AgentClient) -> float:
        opening = [user("Hi"), assistant(await ask(client, "Hi"))]
        await asyncio.gather(*(ask(client, *opening, user(word)) for word in WORDS[:2]))
        return 0.0

    policy = Together(1)
    trajectory = await play(agent, policy)
    first, *others = trajectory.transitions
    shared = first.ob.to_ints() + first.ac.tokens

    assert all(turn.ob.to_ints()[: len(shared)] == shared for turn in others)
    words = [[word for word in WORDS[:2] if word in prompt(turn)] for turn in others]
    assert sorted(words) == [["one"], ["zero"]]
    assert len(trajectory_to_data(trajectory, 1.0)) == 2


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "options", "turns"),
    [
        (3, {"limits": RolloutLimits(max_turns=3)}, 3),
        *((most, {"strategy": ParallelRollouts(max_calls=most)}, 8) for most in (1, 2)),
    ],
    ids=["turns", "one call", "two calls"],
)
async def test_limits_apply_to_concurrent_calls(most: int, options: Any, turns: int) -> None:
    policy = Together(most)
    trajectory = await play(gathers, policy, 8, **options)

    assert policy.most == most
    assert len(policy.actions) == len(trajectory.transitions) == turns
    assert trajectory.stop_reason == ("max_turns" if turns == 3 else "completed")


async def test_sampled_tokens_are_limited_across_all_calls_and_per_call() -> None:
    policy = Together(8, lambda _: "one two three four five six")
    trajectory = await play(gathers, policy, 8, limits=RolloutLimits(max_sampled_tokens=20))

    taken = sum(len(turn.ac.tokens) for turn in trajectory.transitions)
    assert 20 - len(policy.actions[0]) < taken <= 20, (
        "the last reply is cut to the remaining budget"
    )
    assert trajectory.stop_reason == StopReason.MAX_SAMPLED_TOKENS

    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(ask(client, WORDS[n], max_tokens=n) for n in range(1, 5)))
        return 1.0

    trajectory = await play(agent, Together(4, lambda _: "a b c d e f g h"))
    assert sorted(len(turn.ac.tokens) for turn in trajectory.transitions) == [1, 2, 3, 4]


def test_a_truncated_action_keeps_the_log_probabilities_of_its_tokens() -> None:
    whole = TokensWithLogprobs(tokens=[1, 2, 3], maybe_logprobs=[-0.1, -0.2, -0.3])

    cut = shortened(whole, 2)

    assert isinstance(cut.tokens, SampledTokens)
    assert (cut.tokens, cut.tokens.logprobs) == ([1, 2], [-0.1, -0.2])
    assert (cut.maybe_logprobs, cut.stop_reason) == ([-0.1, -0.2], "length")
    assert shortened(whole, 3) is whole
    assert shortened(TokensWithLogprobs([1, 2], None), 1).maybe_logprobs is None


async def test_a_sampling_failure_or_timeout_raises_the_runners_error() -> None:
    class Fails(Together):
        async def __call__(self, *inputs: Any, **options: Any) -> Any:
            await super().__call__(*inputs, **options)
            raise ConnectionError("no engine")

    with pytest.raises(ConnectionError, match="no engine"):
        await play(gathers, Fails(4), 4)
    limits = RolloutLimits(sampling_turn_timeout_seconds=0.01)
    with pytest.raises(SamplingTurnTimeoutError):
        await play(gathers, Together(9), limits=limits)


async def test_an_episode_that_runs_out_of_time_keeps_its_turns() -> None:
    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(conversation(client, name, 2) for name in "AB"))
        await gathers(client, 2)
        raise AssertionError("not reached")

    class Stalls(Together):
        async def __call__(self, *inputs: Any, **options: Any) -> Any:
            if len(self.actions) >= 4:
                await asyncio.Event().wait()
            return await super().__call__(*inputs, **options)

    limits = RolloutLimits(rollout_timeout_seconds=0.5)
    trajectory = await play(agent, Stalls(2), limits=limits)

    assert trajectory.stop_reason == StopReason.ROLLOUT_TIMEOUT
    lineages = [turn.logs["lineage"] for turn in trajectory.transitions]
    assert lineages == [1, 0, 0], "a turn is complete once the next observation is available"


async def test_waiting_for_replies_does_not_count_towards_the_agents_timeout() -> None:
    policy = Together(9)
    playing = asyncio.create_task(play(gathers, policy, 2, agent_timeout=0.02))
    await asyncio.sleep(0.1)
    policy.let_go()

    assert len((await playing).transitions) == 2


# -- other arguments passed to a runner ------------------------------------------------------------


class Reminds(RolloutHooks):
    async def on_turn_begin(self, state: RolloutState) -> list[Message] | None:
        return [Message(role="user", content="Be brief.")]


class WithHooks(RolloutStrategy):
    async def execute(self, env_group_builder: Any, policy: TokenCompleter) -> RolloutResult:
        envs = await env_group_builder.make_envs()
        assert env_group_builder.logging_tags() == ["tagged"]
        assert env_group_builder.task == 4
        played = [await run_rollout(policy, env, hooks=Reminds()) for env in envs]
        return RolloutResult(played, envs, [])


async def test_hooks_can_add_to_a_prompt_that_was_sampled_ahead() -> None:
    policy = policy_of(lambda prompt: "brief" if "Be brief." in prompt else "long")
    strategy = ParallelRollouts(WithHooks())

    turns = (await play(gathers, policy, 4, tags=["tagged"], strategy=strategy)).transitions

    said = [policy._renderer.decode(turn.ac.tokens).startswith("brief") for turn in turns]
    assert said == ["Be brief." in prompt(turn) for turn in turns] == [True] * 4


async def test_failed_episodes_are_retried_with_concurrent_calls() -> None:
    runs: list[int] = []

    async def fails_at_first(client: AgentClient) -> float:
        runs.append(len(runs))
        await gathers(client, 4)
        if len(runs) == 1:
            raise ValueError("The first run fails.")
        return 1.0

    policy = Together(4)
    strategy = ParallelRollouts(RetryOnFailure(max_retries=1))
    group = await play_group(policy, fails_at_first, strategy=strategy)

    assert (len(runs), policy.most, len(group.rollout_errors)) == (2, 4, 1)
    assert group.get_total_rewards() == [1.0]


async def test_replies_in_the_wrong_format_are_counted_per_call() -> None:
    async def agent(client: AgentClient) -> float:
        wanted = {"type": "json_object"}
        calls = [ask(client, f"Call {n}?", response_format=wanted) for n in range(4)]
        return float(await asyncio.gather(*calls) == ["{}"] * 4)

    said = Counter[str]()

    def badly_twice(prompt: str) -> str:
        [call] = {*re.findall(r"Call \d", prompt)}
        said[call] += 1
        return "{}" if said[call] > 2 else "no"

    trajectory = await play(agent, Together(4, badly_twice), format_retries=2)

    assert len(trajectory.transitions) == 12
    assert sum(rewards(trajectory)) == 1.0


# -- failures and early ends -----------------------------------------------------------------------


async def test_an_agent_that_fails_cancels_its_pending_calls() -> None:
    policy = Together(9)

    async def agent(client: AgentClient) -> float:
        async with asyncio.TaskGroup() as tasks:
            for word in WORDS[:4]:
                tasks.create_task(ask(client, word))
            await until(lambda: policy.most == 4)
            raise ValueError("tired")

    with pytest.raises(AgentError, match="raised ValueError after 0 model calls"):
        await play(agent, policy)
    await asyncio.sleep(0)
    assert policy.given_up == 4


async def test_cancelled_calls_that_lost_a_race_are_not_transitions() -> None:
    async def agent(client: AgentClient) -> float:
        asked = [asyncio.create_task(ask(client, word)) for word in WORDS[:3]]
        done, late = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        await ask(client, "Afterwards?")
        return float(len(done))

    policy = Together(3, backwards=True)
    playing = asyncio.create_task(play(agent, policy))
    await asyncio.sleep(0.1)
    policy.let_go()
    trajectory = await playing

    assert [("Afterwards?" in prompt(t)) for t in trajectory.transitions] == [False, True]
    assert "two" in prompt(trajectory.transitions[0])


async def test_closing_an_env_ends_all_of_its_calls() -> None:
    policy = Together(9)
    told: set[str] = set()

    async def agent(client: AgentClient) -> float:
        calls = [ask(client, word) for word in WORDS[:4]]
        told.update(type(e).__name__ for e in await asyncio.gather(*calls, return_exceptions=True))
        return 1.0

    env = ChatAgentEnv(agent)
    playing = asyncio.create_task(do_parallel_rollout(policy, env))
    await until(lambda: policy.most == 4)
    await env.close()

    with pytest.raises(Exception, match="closed"):
        await playing
    assert told <= {"EnvClosedError", "CancelledError"}
    assert policy.given_up == 4


def test_the_strategy_checks_its_arguments_and_behaves_like_its_inner_strategy() -> None:
    for most in (0, True):
        with pytest.raises(ValueError, match="at least 1"):
            ParallelRollouts(max_calls=most)
    with pytest.raises(TypeError, match=r"expected one of the Cookbook's rollout strategies"):
        ParallelRollouts(True)  # type: ignore[arg-type]
    strategy = ParallelRollouts(RetryOnFailure(max_retries=2), max_calls=8)
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    assert strategy.catches_group_errors
    assert not ParallelRollouts().catches_group_errors


async def test_other_envs_are_played_unchanged() -> None:
    ours, theirs = (GuessNumberEnv(7, default_renderer()) for _ in range(2))
    policy = policy_of(lambda _: "Guess: 7")
    played = await do_parallel_rollout(policy, ours)

    assert played.transitions == (await do_single_rollout(policy, theirs)).transitions


async def test_an_unused_sample_is_garbage_collected() -> None:
    queue = PolicyQueue(policy_of(), 4)
    for is_asked_for in (True, False):
        sample = queue.submit(tinker.ModelInput.from_ints([1]), [], None, None)
        tokens = weakref.ref(await sample.task)
        if is_asked_for:
            assert (await queue(sample.observation, [])) is tokens()
        del sample
        await asyncio.sleep(0)
    assert tokens() is None
