"""How failures are recognised, counted and reported, and how the groups of a run are played."""

import asyncio
import copy
import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from tests import kit
from tests.kit import Logs, Patch
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout
from tinker_cookbook.rl.types import Trajectory
from tinker_cookbook.utils.ml_log import dump_config

from evert.agents.process import ProcessAgent
from evert.bridge.env.endings import CUT_REPLY
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.scripted import ScriptedPolicy
from evert.bridge.errors import AgentError, EnvStateError, InvalidAgentError
from evert.bridge.groups.group import BatchPosition, ChatAgentGroupBuilder
from evert.trainers.episodes.failures import (
    KINDS,
    MOST_ALIKE,
    MOST_LINES,
    NOT_SCORED,
    SCORED,
    Failure,
    Failures,
    failure_in,
    failure_of,
    merge,
    read_batches,
    shortened,
)
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import FAILED, SKIPPED
from evert.trainers.system.files import BATCHES, read_jsonl
from evert.trainers.training.failing_batches import BatchSummary, EpisodesFailedError, Tally
from evert.trainers.training.strategies import Counted, GroupFailedError, LeaveOut, strategy_of

POLICY = ScriptedPolicy(lambda prompt: "Yes.")
LIMITS = RolloutLimits(max_trajectory_tokens=100)


async def raises(client: Any) -> float:
    await kit.ask(client)
    raise LookupError("no such table")


async def exits(client: Any) -> float:
    raise SystemExit(2)


async def no_call(client: Any) -> float:
    return 0.0


def forgets_to_declare(client: Any) -> Any:
    async def call() -> list[float]:
        return [0.0]

    reply: Any = call()
    try:
        return reply[0]
    finally:
        reply.close()


def awaits_in_vain(client: Any) -> float:
    async def call() -> float:
        await client.chat.completions.create(messages=[kit.user("Hi")])
        return 0.0

    return asyncio.run(call())


async def own_judge_is_down(client: Any) -> None:
    request: Any = httpx.Request("POST", "http://judge.example")
    raise openai.APIConnectionError(request=request)


async def no_key(client: Any) -> None:
    openai.OpenAI()


async def no_gemini_key(client: Any) -> None:
    genai.Client()


async def no_anthropic_key(client: Any) -> None:
    messages: list[Any] = [kit.user("Hi")]
    anthropic.Anthropic().messages.create(model="policy", max_tokens=8, messages=messages)


async def hangs(client: Any) -> float:
    await kit.ask(client)
    await asyncio.sleep(3600)
    return 0.0


async def rambles(client: Any) -> float:
    await kit.ask(client)
    await kit.ask(client, "word " * 1000)
    return 1.0


async def other_model(client: Any) -> str:
    return await kit.ask(client, model="gpt-5.2")


async def reads_a_number(client: Any) -> float:
    return float(await kit.ask(client))


async def forgets_to_wait(client: Any) -> float:
    completion = client.chat.completions.create(messages=[kit.user("Hello")])
    try:
        return float(completion.choices[0].message.content)
    finally:
        completion.close()


async def reads_a_cut_reply(client: Any) -> float:
    return float(json.loads(await kit.ask(client, max_tokens=1))["reward"])


async def loses_its_server(client: Any) -> None:
    """Raise inside nested task groups, like an MCP client whose server dies."""

    async def server() -> None:
        raise ConnectionError("the server died")

    async with asyncio.TaskGroup(), asyncio.TaskGroup() as tasks:
        tasks.create_task(server())
        await asyncio.sleep(3600)


async def trajectory_of(agent: Callable[..., Any], **options: Any) -> Trajectory:
    seconds = 0.2 if agent is hangs else 60.0
    return await do_single_rollout(POLICY, ChatAgentEnv(agent, agent_timeout=seconds, **options))


async def failures_of(agent: Any, **options: Any) -> list[Failure]:
    """Return the failure of a scored episode and, if the agent raises, of an unscored episode."""
    failures = [failure_in(await trajectory_of(agent, on_agent_error=-1.0, **options))]
    try:
        await trajectory_of(agent, **options)
    except Exception as error:
        failures.append(failure_of(error))
    assert None not in failures
    return [failure for failure in failures if failure is not None]


ERROR, CORRECT = "agent_error", "Fix the agent at the line shown in the traceback."
UNREAD = f"JSONDecodeError: Expecting value: line 1 column 1 (char 0). {CUT_REPLY}"


@pytest.mark.parametrize(
    ("agent", "kind", "error", "remedy"),
    [
        (hangs, "agent_timeout", "neither called the model nor ended", "waiting for"),
        (no_call, "no_llm_call", "No model call arrived.", "call the model through its client"),
        (rambles, "context_overflow", "prompt is too long", "send shorter prompts"),
        (other_model, "wrong_model_name", "ed 'gpt-5.2'; the policy is called ", "policy_names="),
        (exits, ERROR, "SystemExit: 2", f"{CORRECT} {{what_else}}"),
        (raises, ERROR, "LookupError: no such table", f"{CORRECT} {{what_else}}"),
        (loses_its_server, ERROR, "ConnectionError: the server died", f"{CORRECT} {{what_else}}"),
        (reads_a_number, ERROR, "ValueError: ", "can't parse the model's reply. {what_else}"),
        (reads_a_cut_reply, ERROR, UNREAD, "needs the whole reply, raise max_tokens."),
        (forgets_to_wait, ERROR, "AttributeError: 'coroutine'", "Add await before this call"),
        (forgets_to_declare, ERROR, "TypeError: 'coroutine'", "use a synchronous client"),
        (awaits_in_vain, ERROR, "TypeError: ", "Declare the agent as `async def`"),
        (own_judge_is_down, ERROR, "APIConnectionError: ", "A service that the agent calls"),
        (no_key, ERROR, "OpenAIError: ", "so set any value: OPENAI_API_KEY=unused,"),
        (no_anthropic_key, ERROR, "TypeError: ", "ANTHROPIC_API_KEY=unused"),
        (no_gemini_key, ERROR, "ValueError: ", "GEMINI_API_KEY=unused"),
        (ProcessAgent(["no-such-program"]), ERROR, "CommandError: ", "agent's command manually."),
    ],
)
async def test_scored_and_left_out_failures_have_a_kind_and_a_remedy(
    agent: Any, kind: str, error: str, remedy: str, monkeypatch: Patch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    models: Any = {"models": {"judge": POLICY}} if agent is other_model else {}
    limits = LIMITS if agent is rambles else None
    scored, *left_out = await failures_of(agent, limits=limits, **models)
    assert len(left_out) == (kind in (ERROR, "agent_timeout", "wrong_model_name"))
    for failure, what_else in zip([scored, *left_out], (SCORED, NOT_SCORED), strict=False):
        assert failure.kind == kind
        assert failure.error.startswith(error) or kind != ERROR
        assert error in failure.error
        assert remedy.format(what_else=what_else) in failure.remedy
        assert agent not in (exits, raises) or f"in {agent.__name__}" in failure.traceback


async def test_other_errors_and_successful_episodes_are_not_failures() -> None:
    for error in (EnvStateError("?"), ValueError("?"), InvalidAgentError("?")):
        assert failure_of(error) is None
    assert failure_in(await trajectory_of(kit.asks)) is None
    with pytest.raises(Exception, match="reward") as raised:
        await trajectory_of(lambda client: None)
    assert (failure_of(raised.value) or TABLE).kind == "no_reward"


async def test_a_failure_contains_no_secret_and_can_be_saved() -> None:
    def agent(client: Any) -> float:
        raise ValueError("at https://me:s3cret-word@h \ud800")

    for failure in await failures_of(agent):
        for text in (failure.error, failure.traceback):
            assert "https://me:[PASSWORD]@h \ufffd" in text


TABLE = Failure("agent_error", "LookupError: no table 1", "Traceback: ...")
OTHER_TABLE = Failure("agent_error", "LookupError: no table 2")
VALUE = Failure("agent_error", "ValueError: no")
SLOW = Failure("agent_timeout", "too slow")


def test_equal_failures_are_counted_together() -> None:
    failures = Failures.of(8, [(VALUE, 1), (TABLE, 1), (OTHER_TABLE, 1), (SLOW, 1)])
    assert failures.kinds == {"agent_error": 3, "agent_timeout": 1}
    assert (failures.commonest, failures.count, failures.share) == (TABLE, 4, 0.5)
    assert failures.describe() == (
        "4 of 8 episodes failed (3 agent errors, 1 timeout)\n"
        "most common, 2 times: LookupError: no table 1\n"
        "  Traceback: ...\n"
        f"Fix the agent at the line shown in the traceback. {NOT_SCORED}"
    )
    scored = Failure("agent_error", "ValueError: no", is_scored=True)
    for others, text in (
        ([(scored, 2)], "2 of 2 episodes failed and were scored (2 agent errors)"),
        ([(scored, 1), (SLOW, 1)], "2 of 2 episodes failed (1 agent error, 1 timeout)"),
    ):
        assert Failures.of(2, others).summary() == text
    nothing = Failures.of(4, [])
    assert (nothing.share, nothing.commonest) == (0.0, None)
    assert nothing.describe() == "0 of 4 episodes failed"
    assert Failures.of(0, []).share == 0.0

    first, second = Failures.of(4, [(SLOW, 1), (VALUE, 2)]), Failures.of(4, [(SLOW, 3)])
    whole = merge([first, second])
    assert (whole.episodes, whole.kinds) == (8, {"agent_timeout": 4, "agent_error": 2})
    assert whole.found[0] == (SLOW, 4)
    assert Failures.read(json.loads(json.dumps(asdict(whole)))) == whole
    many = Failures.of(99, [(Failure("agent_error", f"Error{n}: x"), 1) for n in range(20)])
    assert (len(many.found), many.count) == (MOST_ALIKE, 20)
    assert merge([many, many]).count == 40


def test_each_kind_has_a_singular_and_a_plural_and_long_messages_are_shortened() -> None:
    for kind, (word, *_) in KINDS.items():
        single, double = (Failures.of(n, [(Failure(kind, "x"), n)]) for n in (1, 2))
        assert f"(1 {word})" in single.summary()
        assert f"(2 {word})" not in double.summary()  # uses the plural
        assert double.describe().endswith("."), kind
    assert shortened("one line") == "one line"
    assert len(shortened("line\n" * 50).splitlines()) == MOST_LINES + 1


def builder(agent: Any, group_size: int = 3) -> ChatAgentGroupBuilder:
    made = ChatAgentGroupBuilder(agent, group_size=group_size)
    made.batch = BatchPosition(index=0, groups=1)
    return made


def failing_once() -> Callable[..., Any]:
    order = iter(range(100))

    async def agent(client: Any) -> float:
        number = next(order)
        await kit.ask(client)
        if number == 0:
            raise LookupError("no such table")
        return float(number)

    return agent


async def test_only_failed_episodes_are_left_out_of_a_group() -> None:
    group = await do_group_rollout(builder(failing_once()), POLICY, LeaveOut())
    assert sorted(group.get_total_rewards()) == [1.0, 2.0]
    (error,) = group.rollout_errors
    assert error.error_type == "AgentError.LookupError"
    assert not LeaveOut().catches_group_errors
    with pytest.raises(GroupFailedError, match="All 3 episodes of a group failed: .*no such table"):
        await do_group_rollout(builder(raises), POLICY, LeaveOut())

    class Broken(ScriptedPolicy):
        async def __call__(self, *arguments: Any, **options: Any) -> Any:
            raise RuntimeError("no sampler")

    with pytest.raises(RuntimeError, match="no sampler"):
        await do_group_rollout(builder(kit.asks), Broken([]), LeaveOut())


class Counting(ScriptedPolicy):
    """A policy that records the largest number of concurrent calls."""

    now = most = 0

    async def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        return await super().__call__(*arguments, **options)


@pytest.mark.parametrize("strategy", [None, FailFast(), RetryOnFailure(max_retries=1)])
async def test_a_run_samples_concurrent_calls_of_an_agent_together(strategy: Any) -> None:
    async def gathers(client: Any) -> float:
        await asyncio.gather(*(kit.ask(client, f"{number}?") for number in range(8)))
        return 1.0

    config: Any = SimpleNamespace(
        rollout_error_tolerance=strategy, effective_rollout_strategy=lambda: strategy
    )
    policy = Counting(lambda prompt: "Yes.")
    await do_group_rollout(builder(gathers, 1), policy, strategy_of(config))
    assert policy.most == 8


@pytest.mark.parametrize(("batch", "most"), [(None, 2), (BatchPosition(0, 5), 5)])
async def test_only_groups_of_held_out_tasks_are_limited_in_number(
    batch: BatchPosition | None, most: int, tmp_path: Path
) -> None:
    """All groups of a training batch are played together, because the Cookbook needs them all."""
    groups, policy = [builder(kit.asks, 1) for _ in range(5)], Counting(lambda prompt: "Yes.")
    for group in groups:
        group.batch = batch
    strategy = Counted(LeaveOut(), Report(tmp_path).tally, asyncio.Semaphore(2))
    await asyncio.gather(*(do_group_rollout(group, policy, strategy) for group in groups))
    assert policy.most == most


class Report:
    """A tally, with the messages and records that it produces."""

    def __init__(self, path: Path, start: int = 0, steps: int = 9, failed_steps: int = 3) -> None:
        self.texts: list[str] = []
        path.mkdir(exist_ok=True)
        folder = RunFolder(path)
        self.tally = Tally(folder, self.texts.append, start, steps, failed_steps)
        self.path = path

    def batch(self, failures: Sequence[Failure], trajectories: Sequence[Trajectory] = ()) -> None:
        self.tally.count(BatchPosition(index=0, groups=1), BatchSummary.of(trajectories, failures))

    @property
    def records(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path / BATCHES)


async def test_unparsed_tool_calls_are_reported_only_at_the_first_step(tmp_path: Path) -> None:
    good = await trajectory_of(kit.asks)
    counts = {"tools/offered": 2, "tools/calls": 0, "tools/markup_in_text": 1}
    for number, (changed, warned) in enumerate([({}, 1), ({"tools/calls": 1}, 0)]):
        report = Report(tmp_path / str(number))
        good.transitions[-1].metrics.update(counts | changed)
        report.batch([], [good, good])
        report.batch([], [good])
        assert len(report.texts) == warned
        assert all("2 replies in 2 episodes contain tool-call" in text for text in report.texts)


async def test_a_batch_is_recorded_when_its_last_group_has_been_played(tmp_path: Path) -> None:
    report, good = Report(tmp_path, start=5), await trajectory_of(kit.asks)
    report.tally.count(BatchPosition(index=7, groups=2), BatchSummary.of([good, good], [TABLE]))
    assert not (tmp_path / BATCHES).exists()
    report.tally.count(BatchPosition(index=7, groups=2), BatchSummary.of([good], []))
    (record,) = report.records
    assert (record["step"], record["episodes"], record["kinds"]) == (5, 4, {"agent_error": 1})
    row = {FAILED: 0.25, SKIPPED: 0.0, f"{FAILED}/agent_error": 0.25}
    assert record["metrics"] == report.tally.row(5) == row
    assert report.tally.row(6) == {}
    assert report.texts == []
    assert read_batches(tmp_path)[0].kinds == {"agent_error": 1}


async def test_a_context_overflow_that_is_trained_on_is_reported_and_does_not_stop_the_run(
    tmp_path: Path,
) -> None:
    report, grown = Report(tmp_path), await trajectory_of(rambles, limits=LIMITS)
    for _ in range(5):
        report.batch([], [grown])
    assert len(report.texts) == 1
    assert report.texts[0].startswith("step 1: 1 of 1 episodes failed (1 context overflow)")
    assert report.records[0]["metrics"] == {
        FAILED: 0.0, SKIPPED: 0.0, f"{FAILED}/context_overflow": 1.0,
    }  # fmt: skip
    assert report.tally.error is None


def test_each_cause_of_failure_is_explained_once(tmp_path: Path) -> None:
    report = Report(tmp_path, failed_steps=0)
    report.tally.report("held-out tasks", Failures.of(1, [(TABLE, 1)]))
    for failure in (TABLE, OTHER_TABLE, SLOW, SLOW, TABLE):
        report.batch([failure])
    first, second, third = report.texts
    assert first.startswith("held-out tasks:")
    assert second == "step 1 is skipped: 1 of 1 episodes failed (1 agent error) as before"
    assert third.startswith("step 3 is skipped:")
    assert third.endswith("Find out what the agent is waiting for, or raise agent_timeout.")


async def test_a_batch_of_masked_replies_is_skipped_even_without_failures(tmp_path: Path) -> None:
    report, played = Report(tmp_path), await trajectory_of(kit.asks)
    played.transitions[-1].metrics["parse_error_masked"] = 1.0
    report.batch([], [played])
    assert report.texts == ["step 1 is skipped: there is nothing to learn from its replies"]
    assert report.tally.has_skipped
    assert read_batches(tmp_path)[1] == 1


async def test_several_steps_in_a_row_with_nearly_only_failures_stop_the_run(
    tmp_path: Path,
) -> None:
    good = [await trajectory_of(kit.asks)]
    scored = [await trajectory_of(raises, on_agent_error=0.0)]
    bad: Any = ([TABLE], [])
    spared: Any = ([], good)
    table: list[tuple[dict[str, Any], list[Any], str]] = [
        ({}, [bad, bad, spared, bad, bad], ""),
        ({}, [bad, bad, spared, bad, bad, bad], "In 3 consecutive steps, nearly all episodes"),
        ({"failed_steps": 1}, [([TABLE] * 19, good)], "In one step, nearly all episodes failed"),
        ({"failed_steps": 1}, [([TABLE] * 18, good * 2)], ""),
        ({"start": 8}, [bad], "the worst reward: on_agent_error=-1.0."),  # the last step of the run
        ({"failed_steps": 1}, [([], scored)], "from rewards that are all equal. Use a model that"),
    ]
    for number, (options, batches, text) in enumerate(table):
        report = Report(tmp_path / str(number), **options)
        for failures, trajectories in batches:
            report.batch(failures, trajectories)
        assert isinstance(report.tally.error, EpisodesFailedError) is bool(text)
        assert text in str(report.tally.error)
    assert "on_agent_error" not in str(report.tally.error)


async def test_only_groups_of_training_batches_are_counted(tmp_path: Path) -> None:
    report = Report(tmp_path)
    await do_group_rollout(builder(failing_once()), POLICY, Counted(LeaveOut(), report.tally))
    no_batch = ChatAgentGroupBuilder(kit.asks)
    await do_group_rollout(no_batch, POLICY, Counted(LeaveOut(), report.tally))
    retrying = Counted(RetryOnFailure(max_retries=1), report.tally)
    await do_group_rollout(builder(failing_once()), POLICY, retrying)
    left_out, retried = report.records
    assert (left_out["episodes"], left_out["kinds"]) == (3, {"agent_error": 1})
    assert "in agent" in left_out["found"][0][0]["traceback"]
    assert (retried["episodes"], retried["kinds"]) == (4, {"agent_error": 1})
    assert retried["found"][0][0]["error"].startswith("AgentError.LookupError: The agent ")
    assert retrying.catches_group_errors
    assert dump_config(retrying) == {"inner": {"max_retries": 1, "per_rollout_timeout": 0}}
    assert copy.deepcopy(retrying) is retrying  # the Cookbook copies it to log its config


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        (RetryOnFailure(max_retries=0), AgentError),
        (MinViableGroup(max_retries=0), AllTrajectoriesFailedError),
        (LeaveOut(), GroupFailedError),
        (FailFast(), AgentError),
    ],
)
async def test_an_abandoned_group_counts_as_failed_unless_it_stops_the_run(
    inner: Any, error: type[Exception], tmp_path: Path
) -> None:
    report, ends = Report(tmp_path), isinstance(inner, FailFast)
    with pytest.raises(error):
        await do_group_rollout(builder(raises, 1), POLICY, Counted(inner, report.tally))
    assert [row["metrics"][FAILED] for row in report.records] == [1.0] * (not ends)
    assert isinstance(report.tally.error, AgentError) is ends


async def test_a_training_task_that_never_ends_is_cancelled_with_the_run(tmp_path: Path) -> None:
    report, cleaned_up = Report(tmp_path, failed_steps=1), []

    async def waits_for_ever(failures: Sequence[Failure]) -> None:
        try:
            if failures:
                report.batch(failures)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(True)

    watching = asyncio.create_task(report.tally.watch(waits_for_ever([])))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert cleaned_up == [True]
    with pytest.raises(EpisodesFailedError):
        await report.tally.watch(waits_for_ever([TABLE]))
    assert cleaned_up == [True, True]


async def test_the_error_that_stopped_the_run_is_raised(tmp_path: Path, caplog: Logs) -> None:
    report = Report(tmp_path, failed_steps=1)

    async def raises_another() -> None:
        report.batch([TABLE])
        report.tally.end(ValueError("later"))
        raise LookupError("something else")

    async def broken() -> None:
        raise LookupError("something else")

    with pytest.raises(EpisodesFailedError):
        await report.tally.watch(raises_another())
    gc.collect()
    assert "raises_another" not in caplog.text  # asyncio logs errors that are never retrieved
    with pytest.raises(LookupError, match="something else"):
        await Report(tmp_path / "other").tally.watch(broken())
