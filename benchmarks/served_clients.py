"""Test unmodified SDKs, frameworks and coding agents against a served model.

    python benchmarks/served_clients.py [--quick]

The programs for the clients are the strings below. Each environment made by
`frameworks/make_environment.py` runs the programs for the clients that it contains. They call the
server of `evert serve`, which gives scripted replies. Claude Code and Codex come from
`frameworks/make_programs.py`. With ``--quick``, only the SDKs in the current environment are
tested. A check that raises counts as a protocol failure. The benchmark fails if there are protocol
failures, or if an environment is missing.
"""

import argparse
import asyncio
import importlib.metadata
import itertools
import json
import logging
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

FRAMEWORKS = Path(__file__).resolve().parent.parent / ".frameworks"
PROGRAMS = FRAMEWORKS / "programs" / "node_modules" / ".bin"
ENVIRONMENTS = {
    "openai2": ["openai", "anthropic", "langchain"],
    "openai3": ["openai", "anthropic", "google-genai", "openai-agents", "langchain", "pydantic-ai"],
    "project": ["google-genai", "claude", "codex"],
}
"""Environment -> the clients that are tested in it."""


class Script:
    """Samples scripted replies in the order of the calls, and records the calls."""

    def say(self, *replies: str, pause: float = 0, failing: int = 0, after: int = 0) -> None:
        """Start over with new replies.

        ``pause`` is the delay in seconds before each token. The first ``failing`` calls raise an
        error after ``after`` tokens.
        """
        self.replies, self.pause, self.failing, self.after = replies, pause, failing, after
        self.calls, self.cancelled = list[Any](), 0

    async def sample(self, renderer: Any, prompt: Any, params: Any, watch: Any = None) -> Any:
        """Sample a reply for a ``ChatModel``."""
        ids, number, reason = prompt.to_ints(), len(self.calls), "length"
        call = SimpleNamespace(ids=ids, text=renderer.decode(ids), params=params, sampled=[])
        self.calls.append(call)
        reply = renderer.encode(self.replies[min(number, len(self.replies) - 1)])
        try:
            for token in [*reply, *renderer.end_tokens[:1]][: params.max_tokens]:
                await asyncio.sleep(self.pause)
                if number < self.failing and len(call.sampled) == self.after:
                    raise RuntimeError("the sampler failed on purpose")
                call.sampled.append(token)
                if watch is not None:
                    watch([*call.sampled])
                text = renderer.decode(call.sampled)
                stops = (s in text if isinstance(s, str) else s == token for s in params.stop)
                if any(stops):
                    reason = "stop"
                    break
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        logprobs, self.usage = [-0.5] * len(call.sampled), (len(ids), len(call.sampled))
        return SimpleNamespace(tokens=call.sampled, logprobs=logprobs, stop_reason=reason)

    def has(self, *texts: str) -> None:
        """Check that the latest prompt contains all of the texts."""
        assert all(text in self.calls[-1].text for text in texts), self.calls[-1].text

    def is_exact(self) -> None:
        """Check that each prompt starts with the tokens of the previous prompt and reply."""
        for before, after in itertools.pairwise(self.calls):
            history = [*before.ids, *before.sampled]
            assert after.ids[: len(history)] == history, after.text

    def has_cancelled(self, count: int) -> None:
        """Check that ``count`` sampling calls are cancelled within five seconds."""
        end = time.monotonic() + 5
        while self.cancelled < count and time.monotonic() < end:
            time.sleep(0.05)
        assert self.cancelled == count, f"cancelled {self.cancelled} calls, expected {count}"


def refused(kind: type[Exception], call: Callable[[], Any], *words: str) -> Any:
    """Check that a call raises an error of this type that contains the words; return the error."""
    try:
        result: Any = call()
    except kind as error:
        if all(word in str(error) for word in words):
            return error
        result = error
    raise AssertionError(f"expected an error containing {words}, got {result!r:.300}")


def called(*arguments: Any, name: str = "add") -> str:
    """Return the text of a reply with tool calls."""
    calls = [json.dumps({"name": name, "arguments": a}) for a in arguments]
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return f"sum={a + b}"


class Point(BaseModel):
    """A structured answer."""

    x: int
    name: str


INTEGER = {"type": "integer"}
ADD: Any = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]}
TWO, TEXT = [{"a": 1, "b": 1}, {"a": 2, "b": 2}], "é 😀\n\n你好 <b> `x` {2}\n  end\t😀😀"
BOTH, FIVE = f"{TEXT}\n{called(*TWO)}", called({"a": 2, "b": 3})
THOUGHT, MADE = f"<think>\nLet me add.\n</think>\n\n{BOTH}", {"x": 4, "name": "here"}
POINT, STOP, SLOW = json.dumps(MADE), "one STOP two three four five", "word " * 200
USER, LONG = [{"role": "user", "content": "Hi"}], [{"role": "user", "content": "word " * 9000}]

# A program starts with code that is shared by all of its checks. Each check starts with a line
# "## DESCRIPTION <- REPLIES", where REPLIES are the replies of the model, followed by its code.

CODE = r"""
import os, tempfile
BUG = "def add(a, b):\n    return a - b\n"
def run(program, *command, files={}, **variables):
    with tempfile.TemporaryDirectory() as home:
        for name, text in {"calc.py": BUG, **files}.items():
            (Path(home) / name).parent.mkdir(exist_ok=True)
            (Path(home) / name).write_text(text)
        keys = dict(PATH=os.environ["PATH"], HOME=home, ANTHROPIC_API_KEY=key, OPENAI_API_KEY=key)
        made = subprocess.run([PROGRAMS / program, *command], cwd=home, env={**keys, **variables},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
        return made, (Path(home) / "calc.py").read_text() == BUG.replace("-", "+")
"""

TEXTS = {
    "openai": r"""
from openai import *
sdk = OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
F = {"name": "add", "strict": True, "parameters": {**ADD, "additionalProperties": False}}
T, R = [{"type": "function", "function": F}], [{"type": "function", **F}]
chat = partial(sdk.chat.completions.create, model="scripted", messages=USER)
respond = partial(sdk.responses.create, model="scripted", input="Hi")
def text_of(chunks): return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
def arguments(calls): return [json.loads(getattr(c, "function", c).arguments) for c in calls]
## chat: ten turns with two calls each; prompts contain the sampled tokens <- *[BOTH] * 10, "Done."
messages = [*USER]
for _ in range(10):
    m = chat(messages=messages, tools=T).choices[0].message
    messages += [m, *({"role": "tool", "tool_call_id": c.id, "content": "4"} for c in m.tool_calls)]
assert chat(messages=messages, tools=T).choices[0].message.content == "Done."
script.is_exact()
## chat: the stream helper gives the same thought, text, calls and usage as a reply <- THOUGHT
fields = dict(model="thinker", messages=USER, tools=T, stream_options={"include_usage": True})
with sdk.chat.completions.stream(**fields) as stream: joined = stream.get_final_completion()
for made in joined, chat(model="thinker", tools=T):
    m, reason = made.choices[0].message, made.choices[0].finish_reason
    assert (m.content, m.reasoning_content.strip()) == (TEXT, "Let me add.")
    assert (arguments(m.tool_calls), reason) == (TWO, "tool_calls")
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == script.usage
## both: parse when the first reply has no JSON, whole and streamed <- *["no JSON", POINT] * 3
fields = dict(model="scripted", messages=USER, response_format=Point)
with sdk.chat.completions.stream(**fields) as stream: made = stream.get_final_completion()
for m in made, sdk.chat.completions.parse(**fields): assert m.choices[0].message.parsed.x == 4
assert sdk.responses.parse(model="scripted", input="Hi", text_format=Point).output_parsed.x == 4
## chat: required tool missing in the first reply; at most one call; no tools <- "No.", BOTH
made = chat(tools=T, tool_choice="required", parallel_tool_calls=False).choices[0].message
assert (arguments(made.tool_calls), len(script.calls)) == (TWO[:1], 2)
assert chat(tools=T, tool_choice="none").choices[0].message.tool_calls is None
## both: stop strings, token limits, parameters and finish reasons, whole and streamed <- STOP
for fields, reason in ({"stop": ["STOP"]}, "stop"), ({"max_tokens": 3}, "length"):
    made, chunks = chat(**fields, temperature=0.25).choices[0], [*chat(stream=True, **fields)]
    assert made.message.content == text_of(chunks) and "two" not in text_of(chunks)
    assert made.finish_reason == chunks[-1].choices[0].finish_reason == reason
    assert script.calls[-2].params.temperature == 0.25
for made in respond(max_output_tokens=3), [*respond(max_output_tokens=3, stream=True)][-1].response:
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
## chat: log-probabilities of every token, whole and streamed <- "Hello, world"
for made in chat(logprobs=True).choices, [c.choices[0] for c in chat(logprobs=True, stream=True)]:
    tokens = [token for choice in made if choice.logprobs for token in choice.logprobs.content]
    assert "".join(token.token for token in tokens).startswith("Hello, world")
    assert {token.logprob for token in tokens} == {-0.5}
## both: SDK errors for a wrong key, unknown model, long prompt, malformed fields <- "ok"
for ask, stream in itertools.product((chat, respond), (False, True)):
    other, long = partial(ask, stream=stream), {"messages" if ask is chat else "input": LONG}
    refused(AuthenticationError, lambda: other(extra_headers={"Authorization": "Bearer x"}))
    refused(NotFoundError, lambda: other(model="gpt-9"), "gpt-9", "scripted")
    error = refused(BadRequestError, lambda: other(model="thinker", **long))
    assert error.code == "context_length_exceeded"
for field, value in dict(messages="x", tools=[[[]]], stop=5, max_tokens=0, n=2, seed="x").items():
    refused(BadRequestError, lambda: chat(extra_body={field: value}), field)
## both: sampling stops if the client disconnects mid-stream or times out <- SLOW, pause=0.05
for ask in chat, respond:
    with ask(stream=True) as stream: [next(stream) for _ in range(2)]
    refused(APITimeoutError, lambda: ask(timeout=0.7))
script.has_cancelled(4)
## both: failed sampling is a 500, or a stream error <- SLOW, pause=0.01, failing=9, after=50
refused(InternalServerError, chat, "failed")
refused(APIError, lambda: [*chat(stream=True)], "failed")
events = [*respond(stream=True)]
assert events[-1].type == "error" and events[-1].sequence_number == len(events) - 1
## both: models can be listed and retrieved; token counts match the usage <- "ok"
assert [m.id for m in sdk.models.list()] == ["scripted", sdk.models.retrieve("thinker").id]
count = sdk.responses.input_tokens.count(model="scripted", input="Hi", tools=R).input_tokens
assert count == respond(tools=R).usage.input_tokens
## responses: ten turns with thoughts and calls, with the stream helper <- *[THOUGHT] * 10, "ok"
items, fields = [*USER], dict(model="thinker", tools=R)
for _ in range(10):
    with sdk.responses.stream(input=items, **fields) as stream: events = [*stream]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    thought = "".join(e.delta for e in events if "reasoning_text.delta" in e.type)
    made = stream.get_final_response()
    assert (thought.strip(), made.output_text) == ("Let me add.", TEXT)
    assert arguments(made.output[2:]) == TWO and made.usage.output_tokens == script.usage[1]
    items += made.output
    items += [dict(type="function_call_output", call_id=c.call_id, output="4") for c in items[-2:]]
assert respond(input=items, **fields).usage.input_tokens == script.usage[0]
## responses: previous_response_id, used twice; an unknown ID <- "one", "two"
first = respond(input="Remember me.")
for again in [respond(previous_response_id=first.id, input="And?") for _ in range(2)]:
    assert respond(previous_response_id=again.id).output_text == "two"
    script.has("Remember me.", "one", "And?", "two")
refused(BadRequestError, lambda: respond(previous_response_id="resp_no"), "resp_no")
""",
    "anthropic": r"""
from anthropic import *
sdk = Anthropic(base_url=url, api_key=key, max_retries=0)
T, fields = [{"name": "add", "input_schema": ADD}], {"model": "scripted", "max_tokens": 900}
ask = partial(sdk.messages.create, messages=USER, **fields)
## ten turns with two calls each, with the tool runner; exact tokens; whole and streamed <- "ok"
for stream in False, True:
    script.say(*[BOTH] * 10, "Done.")
    run = partial(sdk.beta.messages.tool_runner, messages=USER, tools=[beta_tool(add)], **fields)
    assert run(stream=stream).until_done().content[0].text == "Done."
    assert script.calls[-1].text.count("sum=4") == 10
    script.is_exact()
## the stream helper gives the same thought, text, calls and usage as a reply <- THOUGHT
helper = sdk.messages.stream(model="thinker", max_tokens=900, messages=USER, tools=T)
with helper as stream: joined = stream.get_final_message()
for made in joined, ask(model="thinker", tools=T):
    assert (made.content[0].thinking.strip(), made.content[1].text) == ("Let me add.", TEXT)
    assert ([b.input for b in made.content[2:]], made.stop_reason) == (TWO, "tool_use")
    assert (made.usage.input_tokens, made.usage.output_tokens) == script.usage
## a schema, a system prompt, a required tool, at most one call <- "no", POINT, "No.", BOTH
assert sdk.messages.parse(messages=USER, output_format=Point, **fields).parsed_output.x == 4
choice = {"type": "any", "disable_parallel_tool_use": True}
made = ask(system=[{"type": "text", "text": "KIND"}], tools=T, tool_choice=choice)
assert [block.type for block in made.content] == ["text", "tool_use"]
script.has("KIND")
## stop strings, token limits, parameters and stop reasons <- STOP
made = ask(stop_sequences=["STOP"], extra_body={"temperature": 0.25, "top_k": 5})
assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", "STOP")
assert (script.calls[-1].params.temperature, script.calls[-1].params.top_k) == (0.25, 5)
assert ask(max_tokens=3).stop_reason == "max_tokens"
## SDK errors for a wrong key, unknown model and long prompt <- "ok"
wrong = Anthropic(base_url=url, api_key="x", max_retries=0).messages.create
for stream in False, True:
    long = partial(ask, model="thinker", messages=LONG, stream=stream)
    refused(AuthenticationError, lambda: wrong(messages=USER, stream=stream, **fields))
    refused(NotFoundError, lambda: ask(model="opus-9", stream=stream), "opus-9", "scripted")
    refused(BadRequestError, long, "prompt is too long")
## a client that disconnects mid-stream or times out; a late failure <- SLOW, pause=0.05
with sdk.messages.stream(messages=USER, **fields) as stream: next(iter(stream.text_stream))
refused(APITimeoutError, lambda: ask(timeout=0.7))
script.has_cancelled(2)
script.say(SLOW, pause=0.01, failing=9, after=50)
refused(APIStatusError, lambda: [*ask(stream=True)], "failed")
## models can be listed and retrieved; token counts match the usage <- "ok"
assert [m.id for m in sdk.models.list()] == ["scripted", sdk.models.retrieve("thinker").id]
count = sdk.messages.count_tokens(model="scripted", messages=USER, tools=T).input_tokens
assert count == ask(tools=T).usage.input_tokens
""",
    "google-genai": r"""
from google.genai import Client
from google.genai.errors import APIError, ClientError
def client(key=key, **http): return Client(api_key=key, http_options={"base_url": url, **http})
sdk, hi = client(), dict(model="scripted", contents="Hi")
def ask(sdk=sdk, **fields): return sdk.models.generate_content(**{**hi, **fields})
def stream(sdk=sdk, **fields): return [*sdk.models.generate_content_stream(**{**hi, **fields})]
F = {"name": "add", "description": "Adds.", "parameters_json_schema": ADD}
T = {"tools": [{"function_declarations": [F]}], "thinking_config": {"include_thoughts": True}}
## ten turns of a chat with functions that the SDK calls; exact tokens <- *[BOTH, "So 4."] * 10
chat = sdk.chats.create(model="scripted", config={"tools": [add]})
for _ in range(5):
    assert chat.send_message("And?").text == "So 4."
    assert "".join(p.text or "" for p in chat.send_message_stream("And?")) == f"{TEXT}So 4."
assert script.calls[-1].text.count("sum=4") == 10
script.is_exact()
## a stream gives the same thought, text, calls and usage as a reply <- THOUGHT
for pieces in stream(model="thinker", config=T), [ask(model="thinker", config=T)]:
    parts = [part for piece in pieces for part in piece.candidates[0].content.parts or ()]
    assert "".join(p.text for p in parts if p.thought).strip() == "Let me add."
    assert "".join(p.text or "" for p in parts if not p.thought) == TEXT
    assert [p.function_call.args for p in parts if p.function_call] == TWO
    usage = pieces[-1].usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count) == script.usage
## a schema and a required function, each missing in the first reply <- "no", POINT, "No.", BOTH
assert ask(config=dict(response_mime_type="application/json", response_schema=Point)).parsed.x == 4
made = ask(config={**T, "tool_config": {"function_calling_config": {"mode": "ANY"}}})
assert [call.args for call in made.function_calls] == TWO
## stop strings, token limits, parameters, log-probabilities, finish reasons <- STOP
assert ask(config={"stop_sequences": ["STOP"]}).text.strip() == "one"
assert ask(config={"max_output_tokens": 3}).candidates[0].finish_reason.name == "MAX_TOKENS"
[made] = ask(config=dict(top_p=0.5, seed=7, response_logprobs=True)).candidates
assert (script.calls[-1].params.top_p, script.calls[-1].params.seed) == (0.5, 7)
assert made.logprobs_result.chosen_candidates[0].log_probability == -0.5
## SDK errors for a wrong key, unknown model, long prompt and two candidates <- "ok"
for call in ask, stream:
    assert refused(ClientError, lambda: call(client(key="x"))).code == 401
    assert refused(ClientError, lambda: call(model="pro"), "pro", "scripted").code == 404
    assert refused(ClientError, lambda: call(model="thinker", contents="word " * 9000)).code == 400
    refused(ClientError, lambda: call(config={"candidate_count": 2}), "candidateCount")
## a client that disconnects mid-stream or times out; a late failure <- SLOW, pause=0.05
with client() as leaver: next(leaver.models.generate_content_stream(**hi))
refused(Exception, lambda: ask(client(timeout=700)), "time")
script.has_cancelled(2)
script.say(SLOW, pause=0.01, failing=9, after=50)
refused(APIError, stream, "failed")
## models can be listed and retrieved; token counts match the usage <- "ok"
names = [model.name for model in sdk.models.list()]
assert names == ["models/scripted", sdk.models.get(model="thinker").name]
assert sdk.models.count_tokens(**hi).total_tokens == ask().usage_metadata.prompt_token_count
""",
    "openai-agents": r"""
import openai
from agents import *
set_tracing_disabled(True)
def agents(**options):
    for kind in OpenAIChatCompletionsModel, OpenAIResponsesModel:
        sdk = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
        yield Agent(**{"name": "adder", "model": kind("scripted", sdk), **options})
## tools with two APIs, whole and streamed, in a session <- *[BOTH, "two", FIVE, "five"] * 2
async def run(agent):
    session = SQLiteSession("session")
    whole = await Runner.run(agent, "Remember me.", session=session)
    streamed = Runner.run_streamed(agent, "And?", session=session)
    assert "raw_response_event" in {event.type async for event in streamed.stream_events()}
    return whole.final_output, streamed.final_output
for agent in agents(tools=[function_tool(add)]):
    assert asyncio.run(run(agent)) == ("two", "five")
    script.has("Remember me.", "sum=2", "sum=4", "sum=5")
## a handoff, then an output_type <- *[called({}, name="transfer_to_expert"), "no JSON", POINT] * 2
for expert in agents(name="expert", output_type=Point):
    assert Runner.run_sync(next(agents(handoffs=[expert])), "Hi").final_output.x == 4
""",
    "langchain": r"""
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
there = dict(model="scripted", base_url=url + "/v1", api_key=key, max_retries=0)
## an agent with tools, with two APIs, whole and streamed <- *[BOTH, "Done."] * 4
for by_responses in False, True:
    model = ChatOpenAI(**there, use_responses_api=by_responses, streaming=True)
    graph = create_agent(model, [tool(add)])
    assert graph.invoke({"messages": USER})["messages"][-1].text == "Done."
    pieces = graph.stream({"messages": USER}, stream_mode="messages")
    assert [type(m).__name__ for m, _ in pieces].count("ToolMessage") == 2
    script.has("sum=2", "sum=4")
## structured output with a schema and with a tool <- "no", POINT, "no", called(MADE, name="Point")
for method in "json_schema", "function_calling":
    model = ChatOpenAI(**there).with_structured_output(Point, method=method)
    assert model.invoke("Hi").x == 4
""",
    "pydantic-ai": r"""
import anthropic, openai
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
def models():
    claude = anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0)
    yield AnthropicModel("scripted", provider=AnthropicProvider(anthropic_client=claude))
    for kind in OpenAIChatModel, OpenAIResponsesModel:
        sdk = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
        yield kind("scripted", provider=OpenAIProvider(openai_client=sdk))
## tools with three APIs, whole and streamed <- *[BOTH, "two", FIVE, "five"] * 3
async def run(agent):
    whole = await agent.run("Hi")
    async with agent.run_stream("And?", message_history=whole.all_messages()) as result:
        return whole.output, "".join([p async for p in result.stream_text(delta=True)])
for model in models():
    assert asyncio.run(run(Agent(model, tools=[add]))) == ("two", "five")
    script.has("sum=2", "sum=4", "sum=5")
## structured output with a tool, with three APIs <- *["no", called(MADE, name="final_result")] * 3
for model in models(): assert Agent(model, output_type=Point).run_sync("Hi").output.x == 4
""",
    "claude": CODE
    + r"""
from evert.agents.anthropic_claude import ENVIRONMENT
EDIT = {"file_path": "calc.py", "old_string": "a - b", "new_string": "a + b"}
READ, EDITED = called({"file_path": "calc.py"}, name="Read"), called(EDIT, name="Edit")
def claude(model="scripted", **variables):
    named = {name: value.replace("{model}", model) for name, value in ENVIRONMENT.items()}
    return run("claude", "-p", "--model", model, "--permission-mode", "acceptEdits",
               "--output-format", "stream-json", "--verbose", "--", "Fix it.",
               **{"ANTHROPIC_BASE_URL": url, **named, **variables})
## reads and edits a file; the last line of its JSON stream has the result <- READ, EDITED, "OK"
made, is_fixed = claude()
assert is_fixed and json.loads(made.stdout.splitlines()[-1])["result"] == "OK", made
## fails with the server's message for a wrong key or an unknown model <- "ok"
for bad in {"ANTHROPIC_API_KEY": "x"}, {"model": "opus-9"}:
    made, _ = claude(**bad)
    assert made.returncode != 0 and re.search("key|model", made.stdout), made
""",
    "codex": CODE
    + r"""
from evert.agents.openai_codex import CONFIG
PATCH = "*** Begin Patch\n*** Update File: calc.py\n@@\n-    return a - b\n+    return a + b\n"
COMMANDS = "cat calc.py", f"apply_patch <<'END'\n{PATCH}*** End Patch\nEND"
CALLS = [called({"cmd": command}, name="exec_command") for command in COMMANDS]
## reads and patches a file with its shell tool <- *CALLS, "OK"
config = re.sub("{lean.*\n", "", CONFIG).replace("{base_url}", url + "/v1")
made, is_fixed = run("codex", "exec", "--skip-git-repo-check", "-m", "scripted", "--sandbox",
                     "danger-full-access", "--", "Fix it.", files={".codex/config.toml": config})
assert is_fixed and made.stdout.strip().endswith("OK"), made
""",
}


def play(clients: list[str]) -> None:
    """Run the programs of some clients in this process; print each outcome as a JSON line."""
    from evert.bridge.tokens.bases import model_renderer
    from evert.bridge.tokens.renderer import prompt_renderer
    from evert.trainers.serving.chat import ChatModel
    from evert.trainers.serving.service import PolicyService

    logging.disable()  # some sampling calls fail on purpose
    script, models, thinks = Script(), {}, model_renderer("evert-tiny", "qwen3")
    with PolicyService() as service:
        for name, made, context in (("scripted", None, 200_000), ("thinker", thinks, 4096)):
            renderer = prompt_renderer(made)
            sample: Any = partial(script.sample, renderer)
            models[name] = ChatModel(sample, renderer, context=context, max_tokens=2000)
            service.offer(SimpleNamespace(get_base_model=lambda: "evert-tiny"), name)
        service.chat(models)
        there = {"url": service.url.removesuffix("/v1"), "key": service.key, "script": script}
        for client, check in ((c, check) for c in clients for check in TEXTS[c].split("\n## ")[1:]):
            head, _, code = check.partition("\n")
            what, _, replies = head.partition(" <- ")
            start, fault = TEXTS[client].partition("\n## ")[0], ""
            lines = f"{start}\nscript.say({replies})\n{code}".splitlines()
            try:
                exec(compile("\n".join(lines), what, "exec"), {**globals(), **there})
            except Exception as error:
                steps = traceback.extract_tb(error.__traceback__)
                line = [lines[(s.lineno or 1) - 1] for s in steps if s.filename == what][-1:]
                fault = f"{line}: {type(error).__name__}: {error}"[:600]
            print(json.dumps([f"{client} {version(client)}", what, fault]), flush=True)


def version(client: str) -> str:
    """Return the version of a client in this environment."""
    if (program := PROGRAMS / client).exists():
        run = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        return "".join(re.findall(r"[\d.]", run.stdout))
    packages = {"langchain": "langchain-openai", "pydantic-ai": "pydantic-ai-slim"}
    return importlib.metadata.version(packages.get(client, client))


def main() -> int:
    """Run all checks and print their table; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only the SDKs in this environment")
    parser.add_argument("--play", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        play(options.play)
        return 0
    table, outcomes = Table("client", "check", "outcome"), []
    environments = {"project": ENVIRONMENTS["openai3"][:3]} if options.quick else ENVIRONMENTS
    for environment, clients in environments.items():
        folder = Path(sys.prefix) if environment == "project" else FRAMEWORKS / environment
        command = [str(folder / "bin" / "python"), "-W", "ignore", __file__, "--play", *clients]
        if not folder.exists():
            sys.exit(f"No {folder}; run python frameworks/make_environment.py {environment}")
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        outcomes += [json.loads(line) for line in re.findall(r'^\[".*', run.stdout, re.MULTILINE)]
    for client, what, fault in outcomes:
        table.add_row(client, what, fault or "ok")
    failures = sum(fault != "" for *_, fault in outcomes)
    Console().print(table, f"{len(outcomes)} checks, {failures} protocol failures", sep="\n")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
