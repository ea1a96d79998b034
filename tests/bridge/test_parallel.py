"""Calls that an agent makes at the same time, under ``ParallelRollouts``.

1. They are sampled at the same time, whether tasks, threads or SDKs make them, and when they come
   while another one is being sampled.
2. An agent whose calls never meet is played as under the inner strategy alone, token for token.
3. Transitions come out in lineage order; a note is of the reply that its task or thread got last.
4. Limits hold: what the runner would not take is not sampled, or is cut.
5. Whatever a runner is given beside the policy (hooks, retries, a policy for parse errors) keeps
   its meaning.
6. Who fails, who is given up and who ends early leaves no call waiting, and no task.
"""

import asyncio
import itertools
import pickle
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
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
from tinker_cookbook.rl.types import EnvGroupBuilder, StopReason, Trajectory, Transition

from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.env.ahead import Ahead, shortened
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.parallel import ParallelRollouts, do_parallel_rollout
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.errors import AgentError
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.tokens.logprobs import SampledTokens

PATIENCE = 20.0
"""Seconds after which a test holds that somebody waits for ever."""

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven")


class Together(ScriptedPolicy):
    """Answers when a number of calls wait for it at once, in an order by their prompts.

    Args:
        count: How many.
        replies: As ``ScriptedPolicy`` takes them.
        backwards: Whether the call that came last is answered first, and so on.

    Attributes:
        most: Calls that waited at once, at most.
        given_up: Calls that were cancelled.
    """

    def __init__(
        self, count: int, replies: Any = lambda _: "ok", *, backwards: bool = False
    ) -> None:
        super().__init__(replies)
        self._count = count
        self._backwards = backwards
        self._here: list[asyncio.Event] = []
        self.most = self.given_up = 0

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
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
        return await super().__call__(model_input, stop, max_tokens=max_tokens)

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
        """Answer whoever waits, and everybody from now on."""
        self._count = 1
        self._go_on()


async def until(condition: Callable[[], bool]) -> None:
    """Give way until something is so."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 (nobody tells when)
            await asyncio.sleep(0)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


async def ask(client: AgentClient, text: str) -> str:
    completion = await client.chat.completions.create(messages=user(text))
    return completion.choices[0].message.content or ""


async def gathers(client: AgentClient, count: int) -> float:
    await asyncio.gather(*(ask(client, f"Sub-task {number}.") for number in range(count)))
    return 1.0


async def uses_the_sdk(client: AgentClient, count: int) -> float:
    create = client.openai.chat.completions.create
    await asyncio.gather(*(create(model="policy", messages=user(w)) for w in WORDS[:count]))
    return 1.0


def has_threads(client: BlockingAgentClient, count: int) -> float:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda w: client.chat.completions.create(messages=user(w)), WORDS[:count]))
    return 1.0


async def conversation(client: AgentClient, name: str, turns: int) -> list[str]:
    """A sub-agent; what it was told."""
    messages, told = user(f"You are sub-agent {name}."), []
    for _ in range(turns):
        completion = await client.chat.completions.create(messages=messages)
        told.append(completion.choices[0].message.content or "")
        messages += [completion.choices[0].message, {"role": "user", "content": "Go on."}]
    return told


async def play(agent: Any, policy: TokenCompleter, *task: Any, **options: Any) -> Trajectory:
    """An episode's trajectory, as the Cookbook trains on it."""
    group = ChatAgentGroupBuilder(agent, *task, **options)
    playing = do_group_rollout(group, policy, ParallelRollouts())
    return (await asyncio.wait_for(playing, PATIENCE)).trajectories_G[0]


def prompt(transition: Transition) -> str:
    return str(ChatAgentEnv(gathers, 1).renderer.tokenizer.decode(transition.ob.to_ints()))


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not [task for task in left if "evert" in task.get_name()]


# -- 1: at the same time ---------------------------------------------------------------------------


@pytest.mark.parametrize("agent", [gathers, uses_the_sdk, has_threads])
async def test_calls_made_at_the_same_time_are_sampled_at_the_same_time(agent: Any) -> None:
    policy = Together(8)

    trajectory = await play(agent, policy, 8)

    assert policy.most == 8
    assert len(trajectory.transitions) == 8
    assert len(trajectory_to_data(trajectory, 1.0)) == 8


async def test_a_call_that_comes_while_another_is_sampled_does_not_wait_for_it() -> None:
    policy = Together(2)

    async def agent(client: AgentClient) -> float:
        first = asyncio.create_task(ask(client, "First?"))
        await until(lambda: policy.most == 1)
        await ask(client, "Second?")  # the policy answers neither before it has both
        await first
        return 1.0

    assert len((await play(agent, policy)).transitions) == 2


async def test_one_sub_agent_goes_on_while_another_waits_for_its_reply() -> None:
    over = asyncio.Event()

    class SlowIsLast(ScriptedPolicy):
        async def __call__(self, model_input: Any, *inputs: Any, **options: Any) -> Any:
            if "Slow?" in self._renderer.decode(model_input.to_ints()):
                await over.wait()
            return await super().__call__(model_input, *inputs, **options)

    async def agent(client: AgentClient) -> float:
        slow = asyncio.create_task(ask(client, "Slow?"))
        await conversation(client, "quick", 3)
        over.set()
        await slow
        return 1.0

    trajectory = await play(agent, SlowIsLast(lambda _: "ok"))

    assert ["Slow?" in prompt(turn) for turn in trajectory.transitions] == [False] * 3 + [True]
    assert len(trajectory_to_data(trajectory, 1.0)) == 2


async def test_a_groups_episodes_are_sampled_at_once_too() -> None:
    policy = Together(16)
    group = ChatAgentGroupBuilder(gathers, 4, 4)

    played = await asyncio.wait_for(do_group_rollout(group, policy, ParallelRollouts()), PATIENCE)

    assert policy.most == 16
    assert played.get_total_rewards() == [1.0] * 4
    for trajectory in played.trajectories_G:
        assert {turn.logs["lineage"] for turn in trajectory.transitions} == {0, 1, 2, 3}


async def test_seats_have_calls_at_the_same_time_each() -> None:
    async def agent(client: AgentClient) -> dict[str, float]:
        one, other = client.seat("one"), client.seat("other")
        texts = "Do this.", "Do that."
        await asyncio.gather(*(ask(seat, text) for seat in (one, other) for text in texts))
        return {"one": 1.0, "other": 2.0}

    policy = Together(4)
    group = ChatAgentGroupBuilder(agent, group_size=1, seats=("one", "other"))

    played = await asyncio.wait_for(do_group_rollout(group, policy, ParallelRollouts()), PATIENCE)

    assert policy.most == 4
    assert [len(trajectory.transitions) for trajectory in played.trajectories_G] == [2, 2]


# -- 2: agents whose calls never meet --------------------------------------------------------------


async def notes_on_the_way(client: AgentClient) -> float:
    client.log(before="the first call")
    messages = user("Play.")
    for number in range(4):
        # A task of its own for every call, as wait_for makes one.
        call = asyncio.create_task(client.chat.completions.create(messages=messages), name="call")
        messages += [(await call).choices[0].message, {"role": "user", "content": f"No {number}."}]
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
        client.chat.completions.create(messages=user(text))
        client.reward(0.5)
    return 1.0


@pytest.mark.parametrize("agent", [notes_on_the_way, gives_up_a_call, has_a_thread])
async def test_one_by_one_calls_are_played_as_without_it(
    agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slowly(ScriptedPolicy):
        async def __call__(self, *inputs: Any, **options: Any) -> Any:
            await asyncio.sleep(0.005)
            return await super().__call__(*inputs, **options)

    async def told(strategy: RolloutStrategy) -> tuple[Any, ...]:
        policy = Slowly(lambda prompt: f"So many: {len(prompt)}")
        group = await do_group_rollout(ChatAgentGroupBuilder(agent), policy, strategy)
        (trajectory,) = group.trajectories_G
        seen = [
            (turn.ob.to_ints(), turn.ac, turn.reward, turn.episode_done, turn.metrics, _logs(turn))
            for turn in trajectory.transitions
        ]
        return seen, policy.actions, policy.prompts, trajectory.stop_reason

    def never(*_: Any) -> Any:
        raise AssertionError("A call was sampled ahead of the runner.")

    plain = await told(FailFast())
    monkeypatch.setattr("evert.bridge.env.ahead.Ahead.begin", never)

    assert await told(ParallelRollouts()) == plain


def _logs(turn: Transition) -> dict[str, Any]:
    return {key: value for key, value in turn.logs.items() if key != "caller"}


# -- 3: lineages and notes -------------------------------------------------------------------------


async def test_sub_agents_side_by_side_give_one_datum_each() -> None:
    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(conversation(client, name, 3) for name in "ABC"))
        return 1.0

    policy = Together(3, backwards=True)
    trajectory = await play(agent, policy)

    assert policy.most == 3
    data = trajectory_to_data(trajectory, 1.0)
    assert len(data) == 3
    played = sorted(itertools.chain(*policy.actions))
    trained = [
        token
        for datum in data
        for token, mask in zip(
            datum.loss_fn_inputs["target_tokens"].data,
            datum.loss_fn_inputs["mask"].data,
            strict=True,
        )
        if mask
    ]
    assert sorted(trained) == played, "every sampled token is trained on once"


NOTING: dict[str, Callable[[AgentClient, str], Awaitable[str]]] = {
    "its own task": ask,
    "a task for the call": lambda client, text: asyncio.create_task(ask(client, text)),
    "wait_for": lambda client, text: asyncio.wait_for(ask(client, text), PATIENCE),
}


@pytest.mark.parametrize("asking", NOTING.values(), ids=NOTING)
@pytest.mark.parametrize("backwards", [False, True])
async def test_rewards_metrics_and_logs_are_at_their_own_call(asking: Any, backwards: bool) -> None:
    async def sub(client: AgentClient, number: int) -> None:
        await asking(client, f"Number {WORDS[number]}?")
        client.reward(float(number))
        client.metric("number", number)
        client.log(word=WORDS[number])

    async def agent(client: AgentClient) -> float:
        await asyncio.gather(*(sub(client, number) for number in range(6)))
        return 100.0

    trajectory = await play(agent, Together(6, backwards=backwards))

    for turn in trajectory.transitions:
        number = WORDS.index(str(turn.logs["word"]))
        assert f"Number {WORDS[number]}?" in prompt(turn)
        assert turn.metrics["number"] == number
        assert turn.reward == number + 100.0 * turn.episode_done
    assert [turn.episode_done for turn in trajectory.transitions] == [False] * 5 + [True]


async def test_what_a_sub_agent_notes_long_after_its_reply_is_of_that_call() -> None:
    async def scored(client: AgentClient, over: asyncio.Event) -> None:
        await ask(client, "Early?")
        await over.wait()
        client.reward(5.0)

    async def agent(client: AgentClient) -> float:
        over = asyncio.Event()
        waits = asyncio.create_task(scored(client, over))
        await conversation(client, "late", 3)
        over.set()
        await waits
        return 0.0

    trajectory = await play(agent, ScriptedPolicy(lambda _: "ok"))

    earned = [("Early?" in prompt(turn), turn.reward) for turn in trajectory.transitions]
    assert earned == [(True, 5.0), (False, 0.0), (False, 0.0), (False, 0.0)]


async def test_threads_note_at_their_own_calls() -> None:
    def agent(client: BlockingAgentClient) -> float:
        def sub(word: str) -> None:
            client.chat.completions.create(messages=user(word))
            client.log(word=word)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(sub, WORDS[:6]))
        return 1.0

    trajectory = await play(agent, Together(6))

    assert all(str(turn.logs["word"]) in prompt(turn) for turn in trajectory.transitions)


async def test_one_rollout_alone_has_its_notes_in_place_and_its_turns_in_order_of_play() -> None:
    async def sub(client: AgentClient, name: str) -> None:
        for number, _ in enumerate(await conversation(client, name, 2)):
            client.reward(float(number))

    async def agent(client: AgentClient) -> float:
        await asyncio.gather(sub(client, "A"), sub(client, "B"))
        return 0.0

    env = ChatAgentEnv(agent)
    trajectory = await do_parallel_rollout(Together(2), env)

    assert [turn.logs["lineage"] for turn in trajectory.transitions] == env.turn_lineages
    assert sum(turn.reward for turn in trajectory.transitions) == 2.0
    first = next(turn for turn in trajectory.transitions if turn.episode_done)
    assert first is trajectory.transitions[-1]


# -- 4: limits -------------------------------------------------------------------------------------


async def test_no_more_calls_are_sampled_than_there_may_be_turns() -> None:
    policy = Together(3)

    trajectory = await play(gathers, policy, 8, limits=RolloutLimits(max_turns=3))

    assert policy.most == len(policy.actions) == len(trajectory.transitions) == 3
    assert trajectory.stop_reason == StopReason.MAX_TURNS


async def test_no_more_calls_of_an_episode_are_sampled_than_max_calls() -> None:
    policy = Together(2)
    group = ChatAgentGroupBuilder(gathers, 8)

    played = await asyncio.wait_for(
        do_group_rollout(group, policy, ParallelRollouts(max_calls=2)), PATIENCE
    )

    assert policy.most == 2
    assert len(played.trajectories_G[0].transitions) == 8


async def test_one_call_at_a_time_is_one_after_the_other() -> None:
    policy = Together(1)
    group = ChatAgentGroupBuilder(gathers, 4)

    await asyncio.wait_for(do_group_rollout(group, policy, ParallelRollouts(max_calls=1)), PATIENCE)

    assert policy.most == 1


async def test_sampled_tokens_are_counted_over_all_calls() -> None:
    policy = Together(8, lambda _: "one two three four five six")
    limits = RolloutLimits(max_sampled_tokens=20)

    trajectory = await play(gathers, policy, 8, limits=limits)

    each, *_ = map(len, policy.actions)
    taken = [len(turn.ac.tokens) for turn in trajectory.transitions]
    assert sum(taken) <= 20
    assert sum(taken) > 20 - each, "the last one is cut to what is left"
    assert trajectory.stop_reason == StopReason.MAX_SAMPLED_TOKENS


async def test_each_calls_own_cap_holds() -> None:
    async def agent(client: AgentClient) -> float:
        create = client.chat.completions.create
        await asyncio.gather(*(create(messages=user(WORDS[n]), max_tokens=n) for n in range(1, 5)))
        return 1.0

    trajectory = await play(agent, Together(4, lambda _: "a b c d e f g h"))

    assert sorted(len(turn.ac.tokens) for turn in trajectory.transitions) == [1, 2, 3, 4]


def test_what_is_cut_keeps_the_log_probabilities_of_what_is_left() -> None:
    whole = TokensWithLogprobs(tokens=[1, 2, 3], maybe_logprobs=[-0.1, -0.2, -0.3])

    cut = shortened(whole, 2)

    assert isinstance(cut.tokens, SampledTokens)
    assert (cut.tokens, cut.tokens.logprobs) == ([1, 2], [-0.1, -0.2])
    assert (cut.maybe_logprobs, cut.stop_reason) == ([-0.1, -0.2], "length")
    assert shortened(whole, 3) is whole
    assert shortened(TokensWithLogprobs([1, 2], None), 1).maybe_logprobs is None


async def test_a_call_that_takes_too_long_to_sample_is_the_runners_error() -> None:
    with pytest.raises(SamplingTurnTimeoutError):
        await play(
            gathers, Together(9), 4, limits=RolloutLimits(sampling_turn_timeout_seconds=0.01)
        )


async def test_an_episode_out_of_time_keeps_the_turns_it_has() -> None:
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
    assert lineages == [1, 0, 0], "a turn is over when the next observation is there"


async def test_a_long_wait_for_replies_is_not_the_agents() -> None:
    policy = Together(9)
    playing = asyncio.create_task(play(gathers, policy, 2, agent_timeout=0.02))
    await asyncio.sleep(0.1)
    policy.let_go()

    assert len((await playing).transitions) == 2


# -- 5: what else a runner is given ----------------------------------------------------------------


class Reminds(RolloutHooks):
    async def on_turn_begin(self, state: RolloutState) -> list[Message] | None:
        return [Message(role="user", content="Be brief.")]


class WithHooks(RolloutStrategy):
    async def execute(
        self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter
    ) -> RolloutResult:
        envs = await env_group_builder.make_envs()
        assert env_group_builder.logging_tags() == ["tagged"]
        assert env_group_builder.task == 4  # type: ignore[attr-defined]
        played = [await run_rollout(policy, env, hooks=Reminds()) for env in envs]
        return RolloutResult(played, envs, [])


async def test_hooks_may_add_to_a_prompt_that_was_sampled_ahead() -> None:
    policy = ScriptedPolicy(lambda prompt: "brief" if "Be brief." in prompt else "long")
    group = ChatAgentGroupBuilder(gathers, 4, tags=["tagged"])

    played = await do_group_rollout(group, policy, ParallelRollouts(WithHooks()))

    transitions = played.trajectories_G[0].transitions
    assert len(transitions) == 4
    for turn in transitions:
        assert "Be brief." in prompt(turn)
        assert policy._renderer.decode(turn.ac.tokens).startswith("brief")


runs: list[int] = []


async def fails_at_first(client: AgentClient, count: int) -> float:
    runs.append(len(runs))
    number = len(runs)
    await gathers(client, count)
    if number == 1:
        raise ValueError("The first run fails.")
    return 1.0


async def test_failed_episodes_are_played_again_with_calls_at_the_same_time() -> None:
    runs.clear()
    policy = Together(4)
    group = ChatAgentGroupBuilder(fails_at_first, 4)
    strategy = ParallelRollouts(RetryOnFailure(max_retries=1))

    played = await asyncio.wait_for(do_group_rollout(group, policy, strategy), PATIENCE)

    assert (len(runs), policy.most) == (2, 4)
    assert played.get_total_rewards() == [1.0]
    assert len(played.rollout_errors) == 1


async def test_replies_out_of_format_are_counted_for_each_call() -> None:
    async def agent(client: AgentClient) -> float:
        create, wanted = client.chat.completions.create, {"type": "json_object"}
        made = await asyncio.gather(
            *(create(messages=user(f"Call {n}?"), response_format=wanted) for n in range(4))
        )
        return float(all(one.choices[0].message.content == "{}" for one in made))

    said: dict[str, int] = {}

    def badly_twice(prompt: str) -> str:
        call = next(call for n in range(4) if (call := f"Call {n}?") in prompt)
        said[call] = said.get(call, 0) + 1
        return "{}" if said[call] > 2 else "no"

    trajectory = await play(agent, Together(4, badly_twice), format_retries=2)

    assert len(trajectory.transitions) == 12
    assert sum(turn.reward for turn in trajectory.transitions) == 1.0


# -- 6: failures and ends --------------------------------------------------------------------------


async def test_what_fails_to_be_sampled_is_raised_as_ever() -> None:
    class Fails(Together):
        async def __call__(self, *inputs: Any, **options: Any) -> Any:
            await super().__call__(*inputs, **options)
            raise ConnectionError("no engine")

    with pytest.raises(ConnectionError, match="no engine"):
        await play(gathers, Fails(4), 4)


async def test_an_agent_that_fails_beside_its_calls_ends_them() -> None:
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


async def test_calls_that_lost_a_race_are_no_transitions() -> None:
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


async def test_a_call_that_outlives_its_agent_is_told_so() -> None:
    told: list[BaseException] = []

    async def straggles(client: AgentClient, word: str) -> None:
        try:
            await ask(client, word)
        except Exception as error:
            told.append(error)

    async def agent(client: AgentClient) -> float:
        agent.left = [asyncio.create_task(straggles(client, w)) for w in WORDS[:3]]  # type: ignore[attr-defined]
        await asyncio.sleep(0.01)
        return 1.0

    trajectory = await play(agent, Together(9))
    await asyncio.wait(agent.left)  # type: ignore[attr-defined]

    assert len(told) == 3
    assert trajectory.transitions[-1].reward == 1.0


async def test_an_env_that_is_closed_refuses_all_of_its_calls() -> None:
    policy = Together(9)
    told: list[str] = []

    async def agent(client: AgentClient) -> float:
        replies = [ask(client, word) for word in WORDS[:4]]
        for error in await asyncio.gather(*replies, return_exceptions=True):
            told.append(type(error).__name__)
        return 1.0

    env = ChatAgentEnv(agent)
    playing = asyncio.create_task(do_parallel_rollout(policy, env))
    await until(lambda: policy.most == 4)
    await env.close()

    with pytest.raises(Exception, match="closed"):
        await playing
    assert set(told) <= {"EnvClosedError", "CancelledError"}
    assert policy.given_up == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_calls": 0}, "at least 1"), ({"max_calls": True}, "at least 1")],
)
def test_a_number_of_calls_is_a_number(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParallelRollouts(**options)


def test_what_is_inside_is_a_strategy() -> None:
    with pytest.raises(TypeError, match=r"expected one of the Cookbook's rollout strategies"):
        ParallelRollouts(True)  # type: ignore[arg-type]


def test_it_goes_to_other_processes_and_tolerates_what_the_inner_strategy_does() -> None:
    strategy = ParallelRollouts(RetryOnFailure(max_retries=2), max_calls=8)

    assert pickle.loads(pickle.dumps(strategy)) == strategy
    assert strategy.catches_group_errors
    assert not ParallelRollouts().catches_group_errors


async def test_envs_of_others_are_played_as_they_are() -> None:
    from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberEnv

    renderer = ChatAgentEnv(gathers, 1).renderer

    def env() -> GuessNumberEnv:
        return GuessNumberEnv(7, renderer)

    policy = ScriptedPolicy(lambda _: "Guess: 7")
    played = await do_parallel_rollout(policy, env())

    assert played.transitions == (await do_single_rollout(policy, env())).transitions


async def test_a_sample_that_nobody_will_ask_for_is_forgotten() -> None:
    ahead = Ahead(ScriptedPolicy(lambda prompt: "Fine."), 4)
    stop: list[int] = []
    begun = ahead.begin(tinker.ModelInput.from_ints([1]), stop, None, None)
    sample = weakref.ref(await begun.task)
    assert (await ahead(begun.observation, stop)) is sample()
    begun = ahead.begin(tinker.ModelInput.from_ints([2]), stop, None, None)
    sample = weakref.ref(await begun.task)
    del begun
    await asyncio.sleep(0)
    assert sample() is None
