"""Stateful test of an Env, with trainer and agent acting in random order.

A model of the Env predicts its state: which call is the current observation, which calls are
queued, whether the agent is running, has ended or was closed, and how each call ends. After every
rule, the Env is compared with the model. The agent makes its calls from tasks and threads. A call
continues, branches or changes any earlier conversation.

1. Calls are served once and in order, and every waiting caller gets a reply or an error.
2. An observation extends the tokens of its lineage, including the action.
3. Nothing hangs: whatever the model expects happens in time, or all stack traces are printed.
4. No task or thread is left at the end.
5. A turn is masked as given up if and only if its caller left, or the agent ended, before the
   trainer sent the action for the turn.

The test plays about a thousand steps, the same in each run. ``make machine`` plays 10,000 random
steps (``EVERT_MACHINE_STEPS``).
"""

import asyncio
import faulthandler
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar

import openai
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.kit import Patch, tool, user
from tinker_cookbook.rl.types import (
    PARSE_ERROR_MASKED_METRIC_KEY,
    InitialObservationOverflow,
    StepResult,
)

from evert import (
    AgentAborted,
    AgentClient,
    AgentError,
    BlockingAgentClient,
    ChatAgentEnv,
    EnvClosedError,
    EnvStateError,
    EpisodeEndedError,
    InvalidActionError,
)
from evert.bridge.env.endings import MAX_REFUSALS
from evert.bridge.episode import refusals
from evert.bridge.episode.episode import REFUSALS_BEFORE_ABORT
from evert.bridge.tokens.renderer import prompt_renderer

STEPS = int(os.environ.get("EVERT_MACHINE_STEPS", "0"))
"""Minimum number of steps (0: play the same ``RUNS`` runs each time)."""

RUNS = 25

LENGTH = 60
"""Maximum number of steps in a run."""

PATIENCE = 20.0
"""Seconds to wait before reporting a hang."""

TOOLS: list[list[Any] | None] = [None, [tool("add")], [tool("look"), tool("add")]]

TEXTS = ["Fine.", "  Well.\n", "", "<think>\nHm.\n</think>\n\nSo.", "One\n\ntwo", '{"x": 1}', "é🐕"]
CALLS = [
    '<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>',
    'Let me.\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": oops}\n</tool_call>',
]
JSON = '{"x": 1}'
BAD: list[Any] = [
    [],
    [{"role": "oracle", "content": "Hi"}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": "Hi", "lock": threading.Lock()}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}],
]


@dataclass(eq=False)
class Call:
    """A model call from a task or a thread, and how it ended."""

    messages: list[Any]
    is_good: bool = True  # whether it can be served
    wants_json: bool = False
    task: "asyncio.Task[None] | None" = None
    thread: threading.Thread | None = None
    reply: Any = None
    error: BaseException | None = None
    given_up: bool = False  # whether its caller went away

    @property
    def is_over(self) -> bool:
        return self.reply is not None or self.error is not None


class EnvMachine(RuleBasedStateMachine):
    """Drives an Env with its agent and trainer, and models the expected state of all three."""

    played: ClassVar[int] = 0
    """Number of steps played so far by all machines."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.renderer = prompt_renderer(None)
        self.env = ChatAgentEnv(self.agent, format_retries=1, close_timeout=2.0)
        self.finish: asyncio.Future[float] = self.loop.create_future()
        self.client: AgentClient | None = None
        self.life = "new"
        self.pending: asyncio.Task[Any] | None = None
        self.queue: list[Call] = []
        self.out: Call | None = None
        self.calls: list[Call] = []
        self.histories: list[list[Any]] = []
        self.lineages: dict[int, list[int]] = {}
        self.turns = self.refusals = self.late = self.retries = 0
        self.earned = self.noted = 0.0
        self.is_lost = self.was_given_up = False
        self.age = self.prime = 0

    @initialize(
        prime=st.sampled_from([5, 15, 25, 35, 40, 45, 50, 60]),
        begun=st.sampled_from([True] * 9 + [False]),
    )
    def is_born(self, prime: int, begun: bool) -> None:
        """Create the Env, and usually start the episode immediately."""
        self.prime = prime
        if begun:
            self.begin()

    @property
    def is_old(self) -> bool:
        return self.age > self.prime

    @property
    def may_be_odd(self) -> bool:
        """Allow invalid actions only now and then. A larger share seldom finds more bugs."""
        return self.age % 6 == 0

    async def agent(self, client: AgentClient) -> float:
        """Wait until a rule ends the agent. Meanwhile, other rules make the agent's calls."""
        self.client = client
        return await self.finish

    # -- driving ---------------------------------------------------------------------------------

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Run the loop until the condition holds, or fail after ``PATIENCE`` seconds."""

        async def wait() -> None:
            end = time.monotonic() + PATIENCE
            turns = 0
            while not is_so():
                turns += 1
                await asyncio.sleep(0 if turns < 50 else 0.001)
                if time.monotonic() > end:
                    faulthandler.dump_traceback(all_threads=True)
                    for task in asyncio.all_tasks():
                        task.print_stack()
                    pytest.fail(f"Timed out waiting for {what}.")
            for _ in range(3):
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def result(self, task: "asyncio.Task[Any]") -> Any:
        self.until(task.done, repr(task))
        try:
            return task.result()
        except BaseException as error:
            return error

    def does(self, moment: Coroutine[Any, Any, Any]) -> Any:
        return self.result(self.loop.create_task(moment))

    def ends(self, call: Call) -> None:
        """Wait for a call to end with a reply or an error."""
        self.until(lambda: call.is_over, "a call to end")

    def ask(self, call: Call, by_thread: bool, **fields: Any) -> None:
        """Make a call from a new task or thread and record how it ends."""
        assert self.client is not None
        endpoint, number = self.client._endpoint, len(self.calls)
        self.calls.append(call)
        if by_thread:

            def block() -> None:
                try:
                    create = BlockingAgentClient(endpoint).chat.completions.create
                    call.reply = create(messages=call.messages, **fields)
                except BaseException as error:
                    call.error = error

            call.thread = threading.Thread(target=block, name=f"caller {number}")
            call.thread.start()
            return

        async def wait() -> None:
            try:
                create = AgentClient(endpoint).chat.completions.create
                call.reply = await create(messages=call.messages, **fields)
            except BaseException as error:
                call.error = error

        call.task = self.loop.create_task(wait(), name=f"caller {number}")

    # -- the model -------------------------------------------------------------------------------

    def arrives(self, call: Call) -> None:
        """Model a new call. If the episode is over, refuse the call; otherwise, queue it."""
        if self.life in ("ended", "closed"):
            self.late += 1
            self.ends(call)
            refusal = EnvClosedError if self.life == "closed" else EpisodeEndedError
            expected = refusal if self.late <= REFUSALS_BEFORE_ABORT else AgentAborted
            assert type(call.error) is expected
            return
        before = len(self.queue)
        self.queue.append(call)
        if self.pending is None:
            inbox = self.env._turns.account.inbox
            assert inbox is not None
            self.until(lambda: len(inbox._queue) > before, "a call to arrive")
        else:
            self.advances()

    def advances(self) -> None:
        """Give the waiting trainer the next servable call or, if the agent ended, the last step."""
        while self.queue:
            call = self.queue.pop(0)
            if call.given_up:
                continue
            if call.is_good:
                self.refusals, self.out = 0, call
                self.observes()
                return
            self.refusals += 1
            if self.refusals == MAX_REFUSALS:
                assert isinstance(self.resolved(), AgentError)
                self.closes()
                return
            self.ends(call)
            assert isinstance(call.error, openai.BadRequestError)
        if self.life == "ended":
            self.sees_the_end()

    def resolved(self) -> Any:
        assert self.pending is not None
        result, self.pending = self.result(self.pending), None
        return result

    def observes(self) -> None:
        """Check that the next observation extends the tokens of its lineage."""
        result = self.resolved()
        assert not isinstance(result, BaseException), result
        if isinstance(result, StepResult):
            assert not result.episode_done
            self.check_mask(result)
            self.earned += result.reward
            prompt = result.next_observation.to_ints()
        else:
            prompt = result[0].to_ints()
        conversation = self.env.conversation
        assert conversation is not None
        assert self.env.request is not None
        assert conversation.prompt().to_ints() == prompt
        prefix = self.lineages.get(conversation.lineage, [])
        assert prompt[: len(prefix)] == prefix, (
            self.renderer.decode(prefix),
            self.renderer.decode(prompt),
        )

    def check_mask(self, result: StepResult) -> None:
        assert ("given_up" in result.metrics) == self.was_given_up
        assert (PARSE_ERROR_MASKED_METRIC_KEY in result.metrics) == self.was_given_up

    def sees_the_end(self) -> None:
        """Check that the last step ends the episode, and that all rewards are accounted for."""
        result = self.resolved()
        if self.finish.cancelled() or self.finish.exception() is not None:
            assert isinstance(result, AgentError), result
            return
        if isinstance(result, InitialObservationOverflow):
            assert result.reward == self.noted + self.finish.result()
            return
        assert isinstance(result, StepResult), result
        assert result.episode_done
        self.check_mask(result)
        if not self.is_lost:
            assert self.earned + result.reward == self.noted + self.finish.result()

    def closes(self) -> None:
        """Check that closing the Env answers all pending calls."""
        refusal = EpisodeEndedError if self.life == "ended" else EnvClosedError
        waiting = [call for call in [self.out, *self.queue] if call is not None]
        if self.life == "new" or (self.life == "running" and self.client is None):
            assert not waiting
        for call in waiting:
            self.ends(call)
            assert call.given_up or isinstance(call.error, (refusal, openai.BadRequestError))
        self.out, self.queue = None, []
        if self.pending is not None:
            assert isinstance(self.resolved(), EnvClosedError)
        self.life = "ended" if self.life == "ended" else "closed"

    # -- the trainer -----------------------------------------------------------------------------

    def begin(self) -> None:
        self.pending = self.loop.create_task(self.env.initial_observation())
        self.until(lambda: self.client is not None, "the agent to start")
        self.life = "running"

    @precondition(lambda self: self.life == "new" or self.may_be_odd)
    @rule()
    def begin_now(self) -> None:
        if self.life == "new":
            if not self.env._turns.standing.is_closed:
                self.begin()
            return
        error = self.does(self.env.initial_observation())
        assert isinstance(error, EnvStateError)

    @precondition(lambda self: self.out is None and self.may_be_odd)
    @rule()
    def step_out_of_turn(self) -> None:
        error = self.does(self.env.step([1]))
        assert isinstance(error, (EnvStateError, EnvClosedError))

    @precondition(lambda self: self.out is not None and self.may_be_odd)
    @rule(action=st.sampled_from([[-1], ["a"], None, [2**40], [True]]))
    def step_with_no_tokens(self, action: Any) -> None:
        error = self.does(self.env.step(action))
        assert isinstance(error, InvalidActionError)

    @precondition(lambda self: self.out is not None)
    @rule(text=st.sampled_from([*TEXTS, *CALLS]), form=st.sampled_from(["ended", "cut", "open"]))
    def step(self, text: str, form: str) -> None:
        self.plays(self.renderer.encode(text), text, form)

    @precondition(lambda self: self.out is not None)
    @rule(text=st.sampled_from([*TEXTS, *CALLS]))
    def step_well(self, text: str) -> None:
        self.plays(self.renderer.encode(text), text, "ended")

    @precondition(lambda self: self.out is not None and not self.out.wants_json)
    @rule(ids=st.lists(st.integers(0, 151_700), max_size=6))
    def step_with_garbage(self, ids: list[int]) -> None:
        self.plays(ids, None, "ended")

    def plays(self, ids: list[int], text: str | None, form: str) -> None:
        call, conversation = self.out, self.env.conversation
        assert call is not None
        if call.wants_json and text in CALLS:
            form = "ended"
        assert conversation is not None
        action = ids + (self.renderer.end_tokens[:1] if form == "ended" else [])
        extra: Any = {"stop_reason": "length" if form == "cut" else "stop"}
        prompt = conversation.prompt().to_ints()
        lineage, self.out = conversation.lineage, None
        self.turns += 1
        self.was_given_up = call.given_up
        self.pending = self.loop.create_task(self.env.step(action, extra=extra))
        self.until(lambda: self.env.turns == self.turns, "a turn")
        if call.wants_json and form != "cut" and not call.given_up:
            fits = text is not None and (text.strip() == JSON or text in CALLS[:2])
            self.retries = 0 if fits else self.retries + 1
            if self.retries == 1:  # the same call is sampled again
                self.lineages[lineage] = prompt + action
                self.out = call
                self.observes()
                return
            self.retries = 0
        if call.given_up:
            self.lineages.pop(lineage, None)
        else:
            self.lineages[lineage] = prompt + action
            self.ends(call)
            assert call.reply is not None, call.error
            message = call.reply.choices[0].message
            if text == "Fine." and form == "ended":
                assert message.content == "Fine."
            self.histories.append([*call.messages, message])
        self.advances()

    @precondition(lambda self: self.pending is not None and self.is_old)
    @rule()
    def cancel_what_waits(self) -> None:
        assert self.pending is not None
        self.pending.cancel()
        assert isinstance(self.resolved(), asyncio.CancelledError)
        self.is_lost = True

    @precondition(lambda self: self.is_old and (self.life != "closed" or self.may_be_odd))
    @rule(times=st.integers(1, 3))
    def close(self, times: int) -> None:
        was_new = self.life == "new"
        closing = [self.loop.create_task(self.env.close()) for _ in range(times)]
        for task in closing:
            assert self.result(task) is None
        if was_new:
            assert isinstance(self.does(self.env.initial_observation()), EnvClosedError)
            return
        self.closes()

    # -- the agent -------------------------------------------------------------------------------

    @precondition(lambda self: self.life == "running" and len(self.queue) < 4)
    @rule(data=st.data(), by_thread=st.booleans())
    def go_on(self, data: st.DataObject, by_thread: bool) -> None:
        self.ask_for_more(data, "on", None, by_thread, wants_json=False, text="Go on.")

    @precondition(lambda self: self.client is not None and len(self.queue) < 6)
    @rule(
        data=st.data(),
        way=st.sampled_from(["new", "on", "on", "on", "on", "dict", "strip", "edit", "shorter"]),
        tools=st.sampled_from(TOOLS),
        by_thread=st.booleans(),
        wants_json=st.sampled_from([False, False, False, True]),
        text=st.sampled_from(["Hi", "Go on.", "  spaced  ", "<|im_end|>", "long " * 8000]),
    )
    def ask_for_more(
        self,
        data: st.DataObject,
        way: str,
        tools: list[Any] | None,
        by_thread: bool,
        wants_json: bool,
        text: str,
    ) -> None:
        messages: list[Any] = []
        if way != "new" and self.histories:
            messages = self._continued(data.draw(st.sampled_from(self.histories)), way)
        fields: dict[str, Any] = {} if tools is None else {"tools": tools}
        if wants_json:
            fields["response_format"] = {"type": "json_object"}
        call = Call([*messages, user(text)], wants_json=wants_json)
        self.ask(call, by_thread, **fields)
        self.arrives(call)

    def _continued(self, history: list[Any], way: str) -> list[Any]:
        *before, reply = history
        message: dict[str, Any] = reply.model_dump(exclude_none=True)
        if way == "shorter":
            return before[:-1] if len(before) > 1 else before
        if way == "strip" and message.get("content"):
            message["content"] = message["content"].strip()
        if way == "edit":
            before = [user("something else"), *before[1:]]
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "1"}
            for call in reply.tool_calls or ()
        ]
        return [*before, reply if way == "on" else message, *results]

    @precondition(lambda self: self.life == "running" and self.may_be_odd)
    @rule(messages=st.sampled_from(BAD), by_thread=st.booleans())
    def call_badly(self, messages: list[Any], by_thread: bool) -> None:
        call = Call(messages, is_good=False)
        self.ask(call, by_thread)
        if not messages:  # rejected before it reaches the inbox
            self.ends(call)
            assert isinstance(call.error, openai.BadRequestError)
            return
        self.arrives(call)

    @precondition(lambda self: self.may_be_odd and self._may_give_up())
    @rule(data=st.data())
    def give_a_call_up(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self._may_give_up()))
        call.given_up = True
        call.task.cancel()
        self.ends(call)
        assert isinstance(call.error, asyncio.CancelledError)

    def _may_give_up(self) -> list[Any]:
        waiting = [call for call in [self.out, *self.queue] if call is not None]
        return [call for call in waiting if call.task is not None and not call.given_up]

    @precondition(lambda self: self.life == "running")
    @rule(reward=st.sampled_from([0.25, -1.0, 0]))
    def note(self, reward: float) -> None:
        assert self.client is not None
        self.client.reward(reward)
        self.client.log(said="x")
        self.noted += reward

    @precondition(lambda self: self.life == "running" and self.is_old)
    @rule(how=st.sampled_from(["returns", "raises", "cancels"]))
    def end(self, how: str) -> None:
        if how == "returns":
            self.finish.set_result(1.0)
        elif how == "raises":
            self.finish.set_exception(ValueError("boom"))
        else:
            self.finish.cancel()
        self.until(lambda: not self.env.is_running, "the agent to end")
        self.life = "ended"
        for call in [self.out, *self.queue] if self.out is not None else self.queue:
            self.ends(call)
            assert call.given_up or isinstance(call.error, EpisodeEndedError)
            call.given_up = True
        self.queue = []
        if self.pending is not None:
            self.sees_the_end()

    # -- invariants and teardown -----------------------------------------------------------------

    @invariant()
    def the_env_and_the_model_agree(self) -> None:
        self.age += 1
        EnvMachine.played += 1
        assert self.env.is_running == (self.life == "running")
        assert self.env.turns == self.turns
        assert len(self.env.turn_lineages) == self.turns
        assert (self.env.request is None) == (self.out is None)
        waiting = [call for call in [self.out, *self.queue] if call is not None]
        assert not any(call.is_over for call in waiting if not call.given_up)
        assert all(call.is_over for call in self.calls if call not in waiting)

    def teardown(self) -> None:
        try:
            self.close(1)
            self.finish.cancel()
            for call in self.calls:
                assert call.is_over
                if call.thread is not None:
                    call.thread.join(PATIENCE)
                    assert not call.thread.is_alive()
            self.until(lambda: True, "")
            tasks = asyncio.all_tasks(self.loop)
            assert not tasks, tasks
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


def play(runs: int, *, same: bool) -> None:
    run_state_machine_as_test(
        EnvMachine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=LENGTH,
            deadline=None,
            derandomize=same,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            phases=[Phase.generate, Phase.shrink],
        ),
    )


@pytest.mark.timeout(0)
def test_an_env_agrees_with_its_model_for_any_order_of_operations(monkeypatch: Patch) -> None:
    monkeypatch.setattr(refusals, "LONGEST_PAUSE", 0.01)  # the test would be much slower otherwise
    EnvMachine.played = 0
    play(RUNS, same=STEPS == 0)
    while EnvMachine.played < STEPS:
        play(RUNS, same=False)
    print(f"{EnvMachine.played:,} steps of the state machine found no errors")
    assert EnvMachine.played >= 500
