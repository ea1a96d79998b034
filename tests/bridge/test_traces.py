"""Traces: an episode as OpenTelemetry's spans, at a real collector.

1. An episode is a trace of its own, of whichever trainer's span it is begun in; its spans have the
   names and attributes of the conventions for generative AI.
2. Spans lie within each other as the work does: for tasks, threads, pools, real SDKs that emit
   spans of their own, agents over HTTP and commands. A span of a foreign trace is linked to.
3. A tool's span is made of the reply that calls it and the request that brings its result.
4. Rewards are spans; so is each seat's. An episode's span says how it ended.
5. Without traces nothing of OpenTelemetry is imported.
"""

import asyncio
import contextlib
import contextvars
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
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
from tests.bridge.faces.conftest import calling
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, ProcessAgent, ScriptedPolicy
from evert.bridge.chat.reply import call_id
from evert.bridge.env import options
from evert.bridge.env.seats import seat_envs
from evert.bridge.episode import tracers
from evert.bridge.errors import AgentError, MissingPackageError

HELLO: Any = [{"role": "user", "content": "Hello?"}]
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("add", "look")
]

CHAT, EPISODE, REWARD = "chat policy", "invoke_agent agent", "reward"


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
    policy = ScriptedPolicy(replies) if replies else ScriptedPolicy(lambda _: "said")
    agent.__module__, agent.__qualname__ = "builtins", "agent"
    env = ChatAgentEnv(agent, traces=collector.url, **more)
    trajectory = await do_single_rollout(policy, env)
    return trajectory, await flushed(collector)


async def ask(client: AgentClient) -> None:
    await client.chat.completions.create(messages=HELLO)


# -- 1. names and attributes ---------------------------------------------------------------------


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
    assert {span.service for span in (episode, call, reward)} == {"evert"}
    assert {span.scope for span in (episode, call, reward)} == {"evert"}
    for span in (call, reward):
        assert episode.sent.start_time_unix_nano <= span.sent.start_time_unix_nano
        assert span.sent.start_time_unix_nano <= span.sent.end_time_unix_nano


async def test_each_of_many_episodes_is_a_trace_linked_to_the_trainers_span(
    collector: Collector,
) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        await ask(client)
        return 1.0

    tracers.tracing_to(collector.url)
    with mine("training step"):
        for_all = [played(collector, agent) for _ in range(4)]
        await asyncio.gather(*for_all)
    spans = await flushed(collector)

    [step] = [span for span in spans if span.name == "training step"]
    episodes = [span for span in spans if span.name == EPISODE]
    assert len({span.trace for span in [*episodes, step]}) == 5
    assert [span.tree for span in episodes] == [(EPISODE, CHAT, CHAT, REWARD)] * 4
    for span in episodes:
        assert [link.span_id for link in span.sent.links] == [step.sent.span_id]


async def test_a_call_that_is_not_to_be_learned_from_says_so(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        await client.untrained.chat.completions.create(messages=HELLO)
        return 1.0

    _, [_, first, second, _] = await played(collector, agent)

    assert first.attributes.get("evert.train") is None
    assert second.attributes["evert.train"] is False


async def test_a_frozen_model_is_a_call_like_the_policys(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        await client.chat.completions.create(model="judge", messages=HELLO)
        return 1.0

    models: Any = {"judge": ScriptedPolicy(["fine"])}
    env = ChatAgentEnv(agent, traces=collector.url, models=models)
    await env.initial_observation()

    assert [span.name for span in await flushed(collector)][1:] == ["chat judge", REWARD]


# -- 2. within each other ------------------------------------------------------------------------


async def test_calls_lie_in_the_spans_of_the_tasks_that_make_them(collector: Collector) -> None:
    async def worker(client: AgentClient, name: str) -> None:
        with mine(name):
            await ask(client)

    async def agent(client: AgentClient) -> float:
        with mine("both"):
            await asyncio.gather(worker(client, "one"), worker(client, "two"))
        await ask(client)
        return 1.0

    _, [episode, *_] = await played(collector, agent)

    both = ("both", ("one", CHAT), ("two", CHAT))
    assert episode.tree == (EPISODE, both, CHAT, REWARD)


async def test_calls_of_a_plain_function_lie_in_the_spans_of_its_thread(
    collector: Collector,
) -> None:
    def agent(client: BlockingAgentClient) -> float:
        with mine("step"):
            client.chat.completions.create(messages=HELLO)
        return 1.0

    _, [episode, *_] = await played(collector, agent)

    assert episode.tree == (EPISODE, ("step", CHAT), REWARD)


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_pool(work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@pytest.mark.parametrize("run", [in_thread, in_pool])
async def test_what_an_agent_hands_to_other_threads_lies_in_its_spans(
    collector: Collector, run: Callable[[Callable[[], None]], None]
) -> None:
    def agent(client: BlockingAgentClient) -> float:
        def work() -> None:
            with mine("inside"):
                client.chat.completions.create(messages=HELLO)

        with mine("outside"):
            run(work)
        run(work)
        return 1.0

    _, [episode, *_] = await played(collector, agent)

    inside = ("inside", CHAT)
    assert episode.tree == (EPISODE, ("outside", inside), inside, REWARD)


async def test_a_call_without_any_context_is_its_episodes(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        loop = asyncio.get_running_loop()
        await loop.create_task(ask(client), context=contextvars.Context())
        return 1.0

    _, [episode, *_] = await played(collector, agent)

    assert episode.tree == (EPISODE, CHAT, REWARD)


SDK = "anthropic.messages.create"


async def test_the_spans_of_a_real_sdk_lie_between_episode_and_call(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        await client.anthropic.messages.create(model="policy", max_tokens=50, messages=HELLO)
        return 1.0

    _, [episode, sdk, *_] = await played(collector, agent)

    assert episode.tree == (EPISODE, (SDK, CHAT), REWARD)
    assert sdk.scope == "com.anthropic.sdk.python"


async def test_so_they_do_over_the_loopback_server(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        address = client.serve()
        async with anthropic.AsyncAnthropic(
            base_url=address.root_url, api_key=address.api_key
        ) as own:
            await own.messages.create(model="another name", max_tokens=50, messages=HELLO)
            async with own.messages.stream(
                model="another name", max_tokens=50, messages=HELLO
            ) as stream:
                await stream.get_final_text()
        return 1.0

    _, [episode, *_] = await played(collector, agent)

    assert episode.tree == (EPISODE, (SDK, CHAT), (SDK, CHAT), REWARD)


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
    policy, env = ScriptedPolicy(["said"]), ChatAgentEnv(program, traces=collector.url)
    await do_single_rollout(policy, env)
    [episode, main, *_] = await flushed(collector)

    assert episode.tree == ("invoke_agent ProcessAgent", ("main", (SDK, CHAT)), REWARD)
    assert (episode.service, main.service) == ("evert", "program")


async def test_what_an_openai_client_of_the_agents_own_asks_lies_in_its_span(
    collector: Collector,
) -> None:
    async def agent(client: AgentClient) -> float:
        with mine("framework"):
            await openai.AsyncOpenAI(api_key="mine").chat.completions.create(
                model="policy", messages=HELLO
            )
        return 1.0

    _, [episode, *_] = await played(collector, agent)

    assert episode.tree == (EPISODE, ("framework", CHAT), REWARD)


# -- 3. tools ------------------------------------------------------------------------------------


async def test_a_tool_takes_from_the_reply_that_calls_it_to_its_result(
    collector: Collector,
) -> None:
    async def agent(client: AgentClient) -> float:
        messages = [*HELLO]
        said = await client.chat.completions.create(messages=messages, tools=TOOLS)
        calls = said.choices[0].message.tool_calls or []
        messages.append(said.choices[0].message)
        messages += [{"role": "tool", "tool_call_id": one.id, "content": "3"} for one in calls]
        messages.append({"role": "user", "content": "And?"})
        await client.chat.completions.create(messages=messages, tools=TOOLS)
        return 1.0

    both = f"{calling('add', x=1)}\n{calling('look')}"
    _, spans = await played(collector, agent, both, "3")

    [episode, first, add, look, second, _] = spans
    tools = "execute_tool add", "execute_tool look"
    assert episode.tree == (EPISODE, CHAT, *tools, CHAT, REWARD)
    assert add.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": call_id("call-0-0"),
    }
    for tool in (add, look):
        assert tool.sent.start_time_unix_nano == first.sent.end_time_unix_nano
        assert tool.sent.end_time_unix_nano == second.sent.start_time_unix_nano


async def test_a_tool_whose_result_never_comes_ends_with_the_episode(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        with mine("loop"):
            await client.openai.responses.create(
                model="policy",
                input="Hello?",
                tools=[{"type": "function", "name": "add", "parameters": {}, "strict": False}],
            )
        return 1.0

    _, [episode, _, _, tool, _] = await played(collector, agent, calling("add", x=1))

    assert episode.tree == (EPISODE, ("loop", CHAT, "execute_tool add"), REWARD)
    assert tool.sent.end_time_unix_nano == episode.sent.end_time_unix_nano


# -- 4. rewards, and ends ------------------------------------------------------------------------


async def test_rewards_on_the_way_are_spans_where_they_are_given(collector: Collector) -> None:
    async def agent(client: AgentClient) -> None:
        await ask(client)
        with mine("judge"):
            client.reward(0.25)

    _, [episode, _, _, given, last] = await played(collector, agent)

    assert episode.tree == (EPISODE, CHAT, ("judge", REWARD), REWARD)
    assert given.attributes["gen_ai.evaluation.score.value"] == 0.25
    assert last.attributes["gen_ai.evaluation.score.label"] == "completed"


async def test_each_seat_has_its_own_reward_in_the_one_trace(collector: Collector) -> None:
    async def agent(client: AgentClient) -> dict[str, float]:
        await ask(client.seat("a"))
        await ask(client.seat("b"))
        return {"a": 1.0, "b": -1.0}

    policy = ScriptedPolicy(lambda _: "said")
    envs = seat_envs(agent, ["a", "b"], traces=collector.url)
    await asyncio.gather(*(do_single_rollout(policy, env) for env in envs))
    [episode, one, two, *rewards] = await flushed(collector)

    assert [one.name, two.name] == ["chat evert/a", "chat evert/b"]
    assert {span.parent for span in (one, two, *rewards)} == {episode}
    assert {
        span.attributes["gen_ai.request.model"]: span.attributes["gen_ai.evaluation.score.value"]
        for span in rewards
    } == {"evert/a": 1.0, "evert/b": -1.0}


async def test_an_agent_that_raises_fails_its_span(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        raise ValueError("Hello?")

    with pytest.raises(AgentError):
        await played(collector, agent)
    [episode, _] = await flushed(collector)

    assert episode.attributes["error.type"] == "ValueError"
    assert episode.sent.status.code == episode.sent.status.STATUS_CODE_ERROR
    assert episode.sent.status.message == "ValueError"


QUOTED = "s3cr3t-of-mine in Hello?"


async def test_no_text_of_a_conversation_and_no_secret_is_in_a_span(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-of-mine")

    async def agent(client: AgentClient) -> float:
        await client.chat.completions.create(messages=HELLO, tools=TOOLS)
        for model in (QUOTED, "gpt-4o", "judge"):
            with contextlib.suppress(openai.BadRequestError):
                await client.chat.completions.create(messages=HELLO, model=model)
        raise ValueError(QUOTED)

    def judge(messages: list[Any]) -> str:
        return QUOTED

    def call(name: str) -> str:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'

    more: Any = {"models": {"judge": judge}, "policy_names": ("policy", "gpt-*")}
    replies = (call(QUOTED) + call("add"), "said", "said")
    with pytest.raises(AgentError):
        await played(collector, agent, *replies, **more)
    spans = await flushed(collector)

    names = [span.name for span in spans]
    expected = [EPISODE, CHAT, "execute_tool add", "execute_tool unknown"]
    calls = ["chat unknown", "chat gpt-*", "chat judge"]
    assert sorted(names) == sorted([*expected, *calls])
    sent = "".join(str(span.sent) for span in spans)
    assert "Hello?" not in sent
    assert "s3cr3t" not in sent
    assert 'message: "BadRequestError: model_not_found"' in sent


async def test_a_refused_call_and_one_that_is_given_up_fail_theirs(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(messages=[{"role": "nobody", "content": ""}])
        task = asyncio.create_task(ask(client))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await ask(client)
        return 1.0

    _, [episode, *spans] = await played(collector, agent)

    errors = [span.attributes.get("error.type") for span in spans]
    assert errors == ["BadRequestError", "CancelledError", None, None]
    assert episode.attributes["evert.calls"] == 1
    assert episode.sent.status.code == episode.sent.status.STATUS_CODE_UNSET


async def test_an_episode_that_is_given_up_ends_its_span(collector: Collector) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client)
        return 1.0

    env = ChatAgentEnv(agent, traces=collector.url)
    await env.initial_observation()
    await env.close()
    [episode, call] = await flushed(collector)

    assert episode.attributes["evert.end"] == "closed"
    assert "error.type" not in episode.attributes
    assert call.attributes["error.type"] == "CancelledError"


async def test_so_does_one_whose_agent_cannot_be_ended(collector: Collector) -> None:
    freed = threading.Event()

    def agent(client: BlockingAgentClient) -> float:
        try:
            client.chat.completions.create(messages=HELLO)
        finally:
            freed.wait()
        return 1.0

    env = ChatAgentEnv(agent, traces=collector.url, close_timeout=0.01)
    await env.initial_observation()
    await env.close()
    spans = await flushed(collector)
    freed.set()

    assert [span.attributes.get("evert.end") for span in spans] == ["left behind", None]


# -- 5. where to, and nowhere --------------------------------------------------------------------

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

    async def agent(client: AgentClient) -> float:
        await ask(client)
        return 1.0

    for _ in range(2):  # the first sets it up, and the second finds it so
        await do_single_rollout(ScriptedPolicy(["said"]), ChatAgentEnv(agent, traces="otel"))

    spans = await flushed(collector)
    assert len(spans) == 6
    assert {span.service for span in spans} == {"experiment"}


@pytest.mark.parametrize("traces", ["localhost:4318", "on", True, None])
def test_traces_that_are_no_place_are_refused(traces: Any) -> None:
    async def agent(client: AgentClient) -> float:
        return 1.0

    with pytest.raises(ValueError, match=r"expected the URL of a collector that takes OTLP"):
        ChatAgentEnv(agent, traces=traces)


def test_without_opentelemetry_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)

    async def agent(client: AgentClient) -> float:
        return 1.0

    with pytest.raises(MissingPackageError, match=r"pip install opentelemetry-exporter-otlp"):
        ChatAgentEnv(agent, traces="otel")


def test_the_hosts_of_collectors_are_known_to_who_guards_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://otel.example.org:4318")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)

    assert options.collector_hosts("") == ()
    assert options.collector_hosts("http://10.0.0.3:4318") == ("10.0.0.3",)
    assert options.collector_hosts("otel") == ("otel.example.org",)
