"""Runs examples as evert agents with a scripted model. Started by ``play_examples.py``.

Reads a list of jobs from stdin, each with the path of a file, the folder that it can import from,
and where to write the result. Each file runs in a separate, forked process. The scripted model
bases its reply on the prompt: it calls the first tool once; if JSON is requested, it replies with a
value that matches the schema; otherwise it replies with a sentence. Connections to other machines
are refused.
"""

import ast
import asyncio
import builtins
import inspect
import itertools
import json
import multiprocessing
import os
import re
import runpy
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy
from evert.bridge.clients.dialects.api import ApiResponse
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.tokens.renderer import prompt_renderer

RENDERER = prompt_renderer(None)  # created once, before forking
FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ("agents", "anthropic", "google.genai", "instructor", "langchain.agents")
"""Packages that most examples import. They are preloaded so that each example starts faster."""

LIMIT = 60
"""Maximum number of seconds per example."""

SENTENCE = "It is sunny in Paris."
TYPED = ["Paris", "yes", "no"]
"""What the user types before closing stdin."""

ACCOUNTS = {
    **dict.fromkeys(("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY"), "unused"),
    **dict.fromkeys(("AZURE_OPENAI_API_KEY", "EXAMPLE_API_KEY", "EXAMPLE_MODEL_NAME"), "unused"),
    **dict.fromkeys(("AZURE_OPENAI_ENDPOINT", "EXAMPLE_BASE_URL"), "https://example.com/v1"),
    "OPENAI_API_VERSION": "2026-01-01",
}
"""Account settings that examples read from environment variables. Any value will do."""

SWITCHES = {"EXAMPLES_INTERACTIVE_MODE": "auto", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
"""Runs openai-agents' examples non-interactively, and disables its tracing."""

STRINGS = {"date": "2026-01-31", "date-time": "2026-01-31T12:00:00Z", "email": "ada@example.com"}
STRINGS |= {"time": "12:00:00", "uri": "https://example.com", "duration": "PT1H"}


# -- the scripted model --------------------------------------------------------------------------


def reply(prompt: str) -> str:
    """Return the scripted model's reply to a prompt from the default renderer."""
    offered = re.search(r"^<tools>\n(.*?)\n</tools>$", prompt, re.DOTALL | re.MULTILINE)
    tools = [json.loads(line)["function"] for line in offered[1].splitlines()] if offered else []
    conversation = prompt[offered.end() :] if offered else prompt
    last = conversation.rpartition("<|im_start|>user\n")[2]
    forced = re.match(r"(?:.*\. )?Call (?:the tool|one of these tools now:) ([\w.-]+)", last)
    if tools and (forced or "<tool_response>" not in conversation):
        named = [tool for tool in tools if forced and tool["name"] == forced[1].rstrip(".")]
        tool = (named or tools)[0]
        arguments = value_of(tool.get("parameters") or {})
        call = json.dumps({"name": tool["name"], "arguments": arguments})
        return f"<tool_call>\n{call}\n</tool_call>"
    schemas = [value for value in objects(conversation) if {"properties", "$ref"} & {*value}]
    return json.dumps(value_of(schemas[-1])) if schemas else SENTENCE


def objects(text: str) -> list[dict[str, Any]]:
    """Return all top-level JSON objects in a text."""
    decoder, found, place = json.JSONDecoder(), [], 0
    while (place := text.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(text, place)
            found.append(value)
        except ValueError:
            place += 1
    return found


def value_of(schema: Any, root: Any = None) -> Any:
    """Return a value that matches a JSON schema, as far as its keywords are supported here."""
    if not isinstance(schema, dict):
        return SENTENCE
    root = root or schema
    if "$ref" in schema:
        target = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target.get(step, {})
        return value_of(target, root)
    for name in ("const", "default"):
        if schema.get(name) is not None:
            return schema[name]
    for name in ("enum", "examples"):
        if schema.get(name):
            return schema[name][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return value_of(schema[name][0], root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = str(kind[0] if isinstance(kind, list) else kind).lower()
    if kind == "object":
        fields = schema.get("properties", {})
        names = [name for name in fields if name in (schema.get("required") or fields)]
        return {name: value_of(fields[name], root) for name in names}
    if kind == "array":
        return [value_of(schema.get("items"), root)] * max(1, schema.get("minItems", 1))
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return min(max(1, least), schema.get("maximum", least + 1))
    plain: dict[str, Any] = {"boolean": True, "null": None}
    return plain.get(kind, STRINGS.get(schema.get("format", ""), SENTENCE))


# -- the example ---------------------------------------------------------------------------------


def run(path: Path) -> None:
    """Run a file as Python would, or as a notebook would if it has a top-level ``await``."""
    source = path.read_text()
    code = compile(source, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, {"__name__": "__main__", "__file__": str(path)}))
    elif re.search(r"^\s*from \.", source, re.MULTILINE):  # part of a package
        module = ".".join(path.relative_to(sys.path[0]).with_suffix("").parts)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name="__main__")


async def play(path: Path) -> dict[str, Any]:
    """Play an example; return how it ended and what it did."""
    refused, elsewhere, problems = watch_refusals(), refuse_hosts(), []

    def agent(path: Path) -> float:
        try:
            run(path)
        except (EOFError, SystemExit) as end:  # no more input, or the program has exited
            if isinstance(end, SystemExit) and end.code:
                problems.append(repr(end))
        except BaseException as error:
            problems.append(f"{type(error).__name__}: {error}")
            traceback.print_exc()
        return 0.0

    policy = ScriptedPolicy(reply)
    env = ChatAgentEnv(agent, path, policy_names="*", agent_timeout=None)
    trajectory = await do_single_rollout(policy, env)
    turns = [turn for turn in trajectory.transitions if turn.ac.tokens]
    metrics = trajectory.transitions[-1].metrics if turns else {}
    return {
        "problem": problems[0] if problems else None,
        "calls": len(policy.actions),
        "tools": int(metrics.get("tools/calls", 0)),
        "data": len(trajectory_to_data(trajectory, 1.0)) if turns else 0,
        "drift": {key[6:]: value for key, value in metrics.items() if key.startswith("drift/")},
        "exact": sorted(turn.ac.tokens for turn in turns) == sorted(policy.actions),
        "refused": refused,
        "elsewhere": sorted(elsewhere),
    }


def watch_refusals() -> list[str]:
    """Return a list that collects the error messages of requests rejected by evert."""
    refused: list[str] = []
    read = Endpoint.read

    def reading(endpoint: Endpoint, sent: Any) -> Any:
        call = read(endpoint, sent)
        if isinstance(call, ApiResponse) and call.status >= 400:
            refused.append(json.loads(call.content)["error"]["message"])
        return call

    setattr(Endpoint, "read", reading)  # noqa: B010
    return refused


def refuse_hosts() -> set[str]:
    """Refuse connections to other machines; return a set that collects their hosts."""
    hosts: set[str] = set()

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            host = arguments[0]
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            host = arguments[1][0]
        else:
            return
        host = host.decode() if isinstance(host, bytes) else host
        if host not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0"):
            hosts.add(host)
            raise ConnectionRefusedError(f"no connection to {host}")

    sys.addaudithook(refuse)
    return hosts


def in_its_process(path: str, folder: str, result: str) -> None:
    """Play an example in a process forked for it, and write the result."""
    os.setsid()
    os.chdir(Path(path).parent)
    with open(f"{result}.log", "wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.argv = [path]
    sys.path[0] = folder  # as if Python had been started in this folder
    typed = itertools.chain(TYPED)

    def typing(prompt: object = "") -> str:
        if (line := next(typed, None)) is None:
            raise EOFError
        return line

    builtins.input = typing
    played = asyncio.run(play(Path(path)))
    Path(result).write_text(json.dumps(played))
    sys.stdout.flush()
    os._exit(0)  # the example's threads may block forever


def play_in_time(job: dict[str, str]) -> dict[str, Any]:
    """Play an example in a separate process; return the job with the result."""
    started = time.monotonic()
    process = FORKS.Process(target=in_its_process, args=(job["path"], job["folder"], job["result"]))
    process.start()
    group: Any = process.pid  # it is the leader of its process group
    process.join(LIMIT)
    if process.is_alive():
        os.killpg(group, signal.SIGKILL)
        problem = f"it did not finish within {LIMIT} s"
    else:
        problem = f"its process exited with {process.exitcode}"
    process.join()
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)  # leftover processes
    result = Path(job["result"])
    played = json.loads(result.read_text()) if result.exists() else {"problem": problem}
    return {**job, **played, "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    """Play the examples listed on stdin, two in parallel; print a line for each."""
    os.environ |= ACCOUNTS | SWITCHES
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # required for preloading
    FORKS.set_forkserver_preload(["play_example", *PRELOADED])
    with ThreadPoolExecutor(2) as pool:
        for played in pool.map(play_in_time, json.load(sys.stdin)):
            print(json.dumps(played), flush=True)


if __name__ == "__main__":
    main()
