"""Traces: an episode as OpenTelemetry's spans, at a real collector.

An episode is a trace of its own, with the names and attributes of the conventions for generative
AI. Spans lie within each other as the work does: for tasks, threads, pools, real SDKs that emit
spans of their own, agents over HTTP and commands. Tools, rewards and ends are spans, too. Without
traces nothing of OpenTelemetry is imported.
"""

import asyncio
import contextlib
import contextvars
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from opentelemetry import propagate, trace
from opentelemetry.util._once import Once
from tests.bridge.collector import Collector, Seen, collecting
from tests.kit import ask, ask_blocking, asks, call, policy_of, tool, user
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, ProcessAgent
from evert.bridge.chat.reply import call_id
from evert.bridge.env import options
from evert.bridge.env.seats import seat_envs
from evert.bridge.episode import tracers
from evert.bridge.errors import AgentError, MissingPackageError

HELLO: Any = [user("Hello?")]
TOOLS: Any = [tool("add"), tool("look")]

CHAT, EPISODE, REWARD = "chat policy", "invoke_agent agent", "reward"
SDK = "anthropic.messages.create"


def calling(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'


def mine(name: str) -> AbstractContextManager[trace.Span]:
    """A span of a framework's, or of the agent's own."""
    return trace.get_tracer("mine").start_as_current_span(name)


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A collector, in a process that has set up no OpenTelemetry."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    monkeypatch.setattr(tracers, "_own", {})
    async with collecting() as found:
        yield found
        for tracing in tracers._own.values():
            assert tracing.own is not None
            await asyncio.to_thread(tracing.own.shutdown)


async def flushed(collector: Collector) -> list[Seen]:
    await asyncio.to_thread(tracers.flush)
    return collector.spans()


async def played(
    collector: Collector, agent: Any, *replies: str, **more: Any
) -> tuple[Trajectory, list[Seen]]:
    agent.__module__, agent.__qualname__ = "builtins", "agent"
    env = ChatAgentEnv(agent, traces=collector.url, **more)
    trajectory = await do_single_rollout(policy_of(*replies), env)
    return trajectory, await flushed(collector)


async def test_an_episode_and_its_calls_are_spans_by_the_conventions(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        return 0.5

    trajectory, [episode, call, reward] = await played(collector, agent, "Hello.")

    [turn] = trajectory.transitions
    assert episode.tree == (EPISODE, CHAT, REWARD)
    assert episode.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "evert",
        "gen_ai.agent.name": "agent",
        "gen_ai.request.model": "policy",
        "evert.end": "ended",
        "evert.calls": 1,
    }
    assert call.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "evert",
        "gen_ai.request.model": "policy",
        "gen_ai.usage.input_tokens": turn.ob.length,
        "gen_ai.usage.output_tokens": len(turn.ac.tokens),
        "gen_ai.response.finish_reasons": ["stop"],
    }
    assert reward.attributes == {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.5,
        "gen_ai.evaluation.score.label": "completed",
        "gen_ai.request.model": "policy",
    }
    assert (call.sent.kind, call.sent.SPAN_KIND_CLIENT) == (3, 3)
    assert {(span.service, span.scope) for span in (episode, call, reward)} == {("evert", "evert")}
    for span in (call, reward):
        assert episode.sent.start_time_unix_nano <= span.sent.start_time_unix_nano
        assert span.sent.start_time_unix_nano <= span.sent.end_time_unix_nano


async def test_each_of_many_episodes_is_a_trace_linked_to_the_trainers_span(
    collector: Collector,
) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        return await asks(client)

    tracers.tracing_to(collector.url)
    with mine("training step"):
        await asyncio.gather(*(played(collector, agent) for _ in range(4)))
    spans = await flushed(collector)

    [step] = [span for span in spans if span.name == "training step"]
    episodes = [span for span in spans if span.name == EPISODE]
    assert len({span.trace for span in [*episodes, step]}) == 5
    assert [span.tree for span in episodes] == [(EPISODE, CHAT, CHAT, REWARD)] * 4
    for span in episodes:
        assert [link.span_id for link in span.sent.links] == [step.sent.span_id]


async def has_tasks(client: AgentClient) -> float:
    async def worker(name: str) -> None:
        with mine(name):
            await ask(client)

    with mine("both"):
        await asyncio.gather(worker("one"), worker("two"))
    # A call without any context is its episode's.
    loop = asyncio.get_running_loop()
    await loop.create_task(call(client), context=contextvars.Context())
    return 1.0


def has_threads(client: BlockingAgentClient) -> float:
    def work() -> None:
        with mine("inside"):
            ask_blocking(client)

    def in_thread() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def in_pool() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()

    for run in (work, in_thread, in_pool):
        with mine("outside"):
            run()
        run()
    return 1.0


async def uses_an_sdk(client: AgentClient) -> float:
    await client.anthropic.messages.create(model="policy", max_tokens=50, messages=HELLO)
    return 1.0


async def calls_the_server(client: AgentClient) -> float:
    address = client.serve()
    fields: Any = {"model": "another name", "max_tokens": 50, "messages": HELLO}
    async with anthropic.AsyncAnthropic(base_url=address.root_url, api_key=address.api_key) as own:
        await own.messages.create(**fields)
        async with own.messages.stream(**fields) as stream:
            await stream.get_final_text()
    return 1.0


async def has_a_client_of_its_own(client: AgentClient) -> float:
    with mine("framework"):
        own = openai.AsyncOpenAI(api_key="mine")
        await own.chat.completions.create(model="policy", messages=HELLO)
    return 1.0


INSIDE = ("inside", CHAT)
TREES: list[tuple[Any, tuple[Any, ...]]] = [
    (has_tasks, (("both", ("one", CHAT), ("two", CHAT)), CHAT)),
    (has_threads, (("outside", INSIDE), INSIDE) * 3),
    (uses_an_sdk, ((SDK, CHAT),)),
    (calls_the_server, ((SDK, CHAT), (SDK, CHAT))),
    (has_a_client_of_its_own, (("framework", CHAT),)),
]


@pytest.mark.parametrize(("agent", "tree"), TREES, ids=[agent.__name__ for agent, _ in TREES])
async def test_spans_lie_within_each_other_as_the_work_does(
    collector: Collector, agent: Any, tree: tuple[Any, ...]
) -> None:
    _, [episode, *spans] = await played(collector, agent)

    assert episode.tree == (EPISODE, *tree, REWARD)
    assert {span.scope for span in spans if span.name == SDK} <= {"com.anthropic.sdk.python"}


async def test_a_request_names_its_span_by_its_header(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        url, key = f"{client.base_url}/chat/completions", client.api_key
        headers = {"authorization": f"Bearer {key}"}
        with mine("program"):
            propagate.inject(headers)
        body = {"model": "policy", "messages": HELLO}
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as http:
            assert (await http.post(url, headers=headers, json=body)).status_code == 200
            headers["traceparent"] = f"00-{'ab' * 16}-{'cd' * 8}-01"
            assert (await http.post(url, headers=headers, json=body)).status_code == 200
        return 1.0

    _, [episode, _, _, stranger, _] = await played(collector, agent)

    assert episode.tree == (EPISODE, ("program", CHAT), CHAT, REWARD)
    assert [link.trace_id for link in stranger.sent.links] == [bytes.fromhex("ab" * 16)]


PROGRAM = """
import os
import anthropic
from opentelemetry import context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
provider = TracerProvider(resource=Resource.create({"service.name": "program"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
context.attach(propagate.extract({"traceparent": os.environ["TRACEPARENT"]}))
with trace.get_tracer("program").start_as_current_span("main"):
    anthropic.Anthropic().messages.create(
        model="policy", max_tokens=9, messages=[{"role": "user", "content": "Hello?"}]
    )
"""


async def test_the_spans_of_a_command_lie_in_its_episode(collector: Collector) -> None:
    program = ProcessAgent(
        [sys.executable, "-c", PROGRAM], env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    )
    await do_single_rollout(policy_of(), ChatAgentEnv(program, traces=collector.url))
    [episode, main, *_] = await flushed(collector)

    assert episode.tree == ("invoke_agent ProcessAgent", ("main", (SDK, CHAT)), REWARD)
    assert (episode.service, main.service) == ("evert", "program")


# -- rewards, and ends ---------------------------------------------------------------------------


async def test_a_tool_takes_from_the_reply_that_calls_it_to_its_result_or_the_end(
    collector: Collector,
) -> None:
    async def agent(client: AgentClient) -> float:
        said = (await call(client, tools=TOOLS)).choices[0].message
        results = [
            {"role": "tool", "tool_call_id": one.id, "content": "3"} for one in said.tool_calls
        ]
        with mine("loop"):
            await call(client, user("Hi"), said, *results, user("And?"), tools=TOOLS)
        return 1.0

    both = f"{calling('add')}\n{calling('look')}"
    _, spans = await played(collector, agent, both, calling("add"))

    [episode, first, add, look, _, second, last, _] = spans
    tools = "execute_tool add", "execute_tool look"
    assert episode.tree == (EPISODE, CHAT, *tools, ("loop", CHAT, "execute_tool add"), REWARD)
    assert add.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": call_id("call-0-0"),
    }
    for one in (add, look):
        assert one.sent.start_time_unix_nano == first.sent.end_time_unix_nano
        assert one.sent.end_time_unix_nano == second.sent.start_time_unix_nano
    assert last.sent.end_time_unix_nano == episode.sent.end_time_unix_nano


async def test_what_is_not_learned_from_and_rewards_on_the_way_are_spans_where_they_are(
    collector: Collector,
) -> None:
    async def agent(client: AgentClient) -> None:
        await ask(client)
        await ask(client.untrained)
        with mine("judge"):
            await ask(client, model="judge")
            client.reward(0.25)

    models = {"judge": lambda messages: "fine"}
    _, [episode, first, second, _, _, given, last] = await played(collector, agent, models=models)

    assert episode.tree == (EPISODE, CHAT, CHAT, ("judge", "chat judge", REWARD), REWARD)
    assert [span.attributes.get("evert.train") for span in (first, second)] == [None, False]
    assert given.attributes["gen_ai.evaluation.score.value"] == 0.25
    assert last.attributes["gen_ai.evaluation.score.label"] == "completed"


async def test_each_seat_has_its_own_reward_in_the_one_trace(collector: Collector) -> None:
    async def agent(client: AgentClient) -> dict[str, float]:
        await ask(client.seat("a"))
        await ask(client.seat("b"))
        return {"a": 1.0, "b": -1.0}

    envs = seat_envs(agent, ["a", "b"], traces=collector.url)
    await asyncio.gather(*(do_single_rollout(policy_of(), env) for env in envs))
    [episode, one, two, *rewards] = await flushed(collector)

    assert [one.name, two.name] == ["chat evert/a", "chat evert/b"]
    assert {span.parent for span in (one, two, *rewards)} == {episode}
    assert {
        span.attributes["gen_ai.request.model"]: span.attributes["gen_ai.evaluation.score.value"]
        for span in rewards
    } == {"evert/a": 1.0, "evert/b": -1.0}


QUOTED = "s3cr3t-of-mine in Hello?"


async def test_no_text_of_a_conversation_and_no_secret_is_in_a_span(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-of-mine")

    async def agent(client: AgentClient) -> float:
        await ask(client, *HELLO, tools=TOOLS)
        for model in (QUOTED, "gpt-4o", "judge"):
            with contextlib.suppress(openai.BadRequestError):
                await ask(client, *HELLO, model=model)
        raise ValueError(QUOTED)

    more: Any = {"models": {"judge": lambda messages: QUOTED}, "policy_names": ("policy", "gpt-*")}
    replies = (calling(QUOTED) + calling("add"), "said", "said")
    with pytest.raises(AgentError):
        await played(collector, agent, *replies, **more)
    [episode, *_] = spans = await flushed(collector)

    names = [span.name for span in spans]
    expected = [EPISODE, CHAT, "execute_tool add", "execute_tool unknown"]
    calls = ["chat unknown", "chat gpt-*", "chat judge"]
    assert sorted(names) == sorted([*expected, *calls])
    sent = "".join(str(span.sent) for span in spans)
    assert "Hello?" not in sent
    assert "s3cr3t" not in sent
    assert 'message: "BadRequestError: model_not_found"' in sent
    assert episode.attributes["error.type"] == episode.sent.status.message == "ValueError"
    assert episode.sent.status.code == episode.sent.status.STATUS_CODE_ERROR


async def test_a_refused_call_and_one_that_is_given_up_fail_theirs(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError):
            await ask(client, {"role": "nobody", "content": ""})
        task = asyncio.create_task(ask(client))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await asks(client)

    _, [episode, *spans] = await played(collector, agent)

    errors = [span.attributes.get("error.type") for span in spans]
    assert errors == ["BadRequestError", "CancelledError", None, None]
    assert episode.attributes["evert.calls"] == 1
    assert episode.sent.status.code == episode.sent.status.STATUS_CODE_UNSET


async def test_an_episode_that_is_given_up_ends_its_span(collector: Collector) -> None:
    freed = threading.Event()

    def cannot_be_ended(client: BlockingAgentClient) -> float:
        try:
            ask_blocking(client)
        finally:
            freed.wait()
        return 1.0

    for agent, timeout in ((asks, 5.0), (cannot_be_ended, 0.01)):
        env = ChatAgentEnv(agent, traces=collector.url, close_timeout=timeout)
        await env.initial_observation()
        await env.close()
    [closed, call, left, _] = await flushed(collector)
    freed.set()

    assert [closed.attributes["evert.end"], left.attributes["evert.end"]] == [
        "closed",
        "left behind",
    ]
    assert "error.type" not in closed.attributes
    assert call.attributes["error.type"] == "CancelledError"


OFF = """
import sys
sys.modules["opentelemetry"] = None  # as where it is not installed
import asyncio
from evert import ChatAgentEnv, ScriptedPolicy
from tinker_cookbook.rl.rollouts import do_single_rollout

async def agent(client):
    await client.chat.completions.create(messages=[{"role": "user", "content": "Hello?"}])
    client.reward(0.5)
    return 1.0

asyncio.run(do_single_rollout(ScriptedPolicy(["said"]), ChatAgentEnv(agent)))
print("evert.bridge.episode.traces" in sys.modules, "evert.bridge.episode.tracers" in sys.modules)
"""


def test_without_traces_nothing_of_opentelemetry_is_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OFF], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.returncode) == ("False False\n", 0), done.stderr


async def test_spans_go_where_opentelemetry_of_the_process_sends_them(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "experiment")
    for _ in range(2):  # the first sets it up, and the second finds it so
        await do_single_rollout(policy_of(), ChatAgentEnv(asks, traces="otel"))

    spans = await flushed(collector)
    assert len(spans) == 6
    assert {span.service for span in spans} == {"experiment"}


def test_places_of_traces_are_checked_and_known_to_who_guards_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong: list[Any] = ["localhost:4318", "on", True, None]
    for traces in wrong:
        with pytest.raises(ValueError, match=r"expected the URL of a collector that takes OTLP"):
            ChatAgentEnv(asks, traces=traces)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://otel.example.org:4318")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    assert options.collector_hosts("") == ()
    assert options.collector_hosts("http://10.0.0.3:4318") == ("10.0.0.3",)
    assert options.collector_hosts("otel") == ("otel.example.org",)
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install opentelemetry-exporter-otlp"):
        ChatAgentEnv(asks, traces="otel")
