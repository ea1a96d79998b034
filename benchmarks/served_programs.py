"""Clients that ``served_load.py`` runs against ``evert serve``, both ordinary and hostile.

    by_openai, by_anthropic, by_gemini   conversations with tools through SDKs (exact)
    Client, hostile                      requests to five APIs, and hostile requests (memory)
    identity                             an agent as a program that uses the OpenAI SDK (score)

``python benchmarks/served_programs.py EPISODES`` plays ``identity`` on every held-out task and
prints the rewards.
"""

import asyncio
import json
import random
import re
import sys
from collections.abc import Awaitable, Iterable
from typing import Any

import anthropic
import openai
from google import genai

from evert.bridge.tokens.bases import base_tokenizer
from evert.envs.identity import TEST_TASKS
from evert.envs.identity import score as score_identity
from evert.trainers.serving.service import PolicyService

AT_ONCE = 16
PARAMETERS = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
FUNCTION = {"name": "look_up", "description": "Finds an order.", "parameters": PARAMETERS}
TOOL: Any = {"type": "function", "function": FUNCTION}
HELLO = "You help a shop. Say hello."


async def at_once(work: Iterable[Awaitable[Any]], count: int = AT_ONCE) -> list[Any]:
    """Await all ``work``, at most ``count`` concurrently; return the results in order."""
    limit = asyncio.Semaphore(count)

    async def limited(piece: Awaitable[Any]) -> Any:
        async with limit:
            return await piece

    return await asyncio.gather(*map(limited, work))


def by_openai(service: PolicyService, turns: int) -> None:
    """Have a conversation through the OpenAI SDK, streaming every second turn."""
    messages: list[Any] = [{"role": "user", "content": HELLO}]
    with openai.OpenAI(base_url=service.url, api_key=service.key) as sdk:
        for turn in range(turns):
            body: Any = {"model": "m", "messages": messages, "tools": [TOOL], "temperature": 1}
            if turn % 2:
                with sdk.chat.completions.stream(**body) as stream:
                    done = stream.until_done()  # get_final_completion() raises if truncated
                    message = done.current_completion_snapshot.choices[0].message
            else:
                message = sdk.chat.completions.create(**body).choices[0].message
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"Order {turn} was sent."}
                for call in message.tool_calls or ()
            ]
            ask = [{"role": "user", "content": f"Where is order {turn}?"}]
            messages += [message.model_dump(exclude_none=True), *(results or ask)]


def by_anthropic(service: PolicyService, turns: int) -> None:
    """Have a conversation through the Anthropic SDK, streaming every second turn."""
    root = service.url.removesuffix("/v1")
    tool = {"name": "look_up", "description": "Finds.", "input_schema": PARAMETERS}
    messages: list[Any] = [{"role": "user", "content": HELLO}]
    with anthropic.Anthropic(base_url=root, api_key=service.key) as sdk:
        for turn in range(turns):
            body: Any = {"model": "m", "messages": messages, "tools": [tool], "max_tokens": 48}
            if turn % 2:
                with sdk.messages.stream(**body) as stream:
                    content = stream.get_final_message().content
            else:
                content = sdk.messages.create(**body).content
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": f"{turn} was sent."}
                for block in content
                if block.type == "tool_use"
            ]
            messages.append({"role": "assistant", "content": content})
            messages.append({"role": "user", "content": results or f"Where is order {turn}?"})


def by_gemini(service: PolicyService, turns: int) -> None:
    """Have a conversation through the Google SDK."""
    root, part = service.url.removesuffix("/v1"), genai.types.Part
    tool = genai.types.Tool(function_declarations=[FUNCTION])  # type: ignore[list-item]
    off = genai.types.AutomaticFunctionCallingConfig(disable=True)
    config = genai.types.GenerateContentConfig(tools=[tool], automatic_function_calling=off)
    text = part.from_text(text=HELLO)
    contents: Any = [genai.types.UserContent([text])]
    with genai.Client(api_key=service.key, http_options={"base_url": root}) as sdk:
        for turn in range(turns):
            answer = sdk.models.generate_content(model="m", contents=contents, config=config)
            results = [
                part.from_function_response(name=call.name or "", response={"sent": turn})
                for call in answer.function_calls or ()
            ]
            ask = [part.from_text(text=f"Where is order {turn}?")]
            assert answer.candidates is not None
            contents += [answer.candidates[0].content, genai.types.UserContent(results or ask)]


# -- memory ----------------------------------------------------------------------------------------

SHARED = "Hello, I have a question."
SECRET = re.compile(r"mark\d{7}")


class Client:
    """A client that uses one API and puts its own mark in its texts."""

    def __init__(self, number: int, draw: random.Random) -> None:
        self.mark, self._draw = f"mark{number:07}", draw
        self.api = ("chat", "responses", "messages", "gemini", "ids")[number % 5]
        self.stream = draw.random() < 0.5 and self.api != "ids"
        self._history: list[Any] = []
        self._previous: str | None = None
        self._turn = 0

    def request(self) -> tuple[str, dict[str, Any]]:
        """Return the path and body of the next request."""
        text = f"I am {self.mark}. " + self._draw.choice(["How are you?", "Please look up."])
        if self._turn == 0 and int(self.mark[4:]) % 2:
            text = SHARED  # half of the clients start with the same text
        self._turn += 1
        stream, model = self.stream, "model"
        if self.api == "ids":
            prompt = [*base_tokenizer().encode(text)]
            return "/v1/completions", {"model": model, "prompt": prompt, "return_token_ids": True}
        if self.api == "gemini":
            kind = "streamGenerateContent?alt=sse" if stream else "generateContent"
            self._history.append({"role": "user", "parts": [{"text": text}]})
            tools = [{"functionDeclarations": [{**FUNCTION, "parameters": None}]}]
            contents = {"contents": self._history, "tools": tools}
            return f"/v1beta/models/{model}:{kind}", contents
        self._history.append({"role": "user", "content": text})
        body: dict[str, Any]
        body = {"model": model, "stream": stream, "messages": self._history}
        if self.api == "chat":
            return "/v1/chat/completions", {**body, "tools": [TOOL]}
        if self.api == "messages":
            tool = {"name": "look_up", "input_schema": PARAMETERS}
            return "/v1/messages", {**body, "max_tokens": 99, "tools": [tool]}
        body = {
            "model": model,
            "stream": stream,
            "input": text,
            "tools": [{"type": "function", **FUNCTION}],
        }
        return "/v1/responses", {**body, "previous_response_id": self._previous}

    def hear(self, answer: str) -> None:
        """Add a response to the conversation, like a program that stores only a reply's text."""
        text = f"I see {self.mark}." if self.mark in answer else "I see ."
        if self.api == "gemini" and not self.stream:
            self._history.append(json.loads(answer)["candidates"][0]["content"])
        elif self.api == "gemini":
            self._history.append({"role": "model", "parts": [{"text": text}]})
        elif self.api == "responses":
            self._previous = (re.findall(r'"id": "(resp_\w+)"', answer) or [None])[0]
        else:
            self._history.append({"role": "assistant", "content": text})


def hostile(draw: random.Random, mark: str, length: int) -> tuple[str, bytes, dict[str, str]]:
    """Return the path, body and headers of a request that no program should send."""
    say, pad = {"role": "user", "content": f"I am {mark}"}, "x" * length
    bodies: list[Any] = [
        {"messages": [{**say, pad: pad}]},
        {"messages": [{**say, "content": f"{mark} {pad} " * 9}]},
        {"messages": [{"role": "tool", "tool_call_id": mark + pad, "content": ""}]},
        {"messages": [say], "temperature": -1},
        {"messages": [say], "n": 2, "tools": [[[]]]},
        {"messages": [say], "max_tokens": 10**30},
        {"messages": [{**say, "content": "\ud83d"}], "max_tokens": 9, "stream": True},
        {"messages": [{"role": mark, "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{**say, "content": [{"type": "image_url", "image_url": {"url": pad}}]}]},
        {"input": mark, "previous_response_id": f"resp_{mark}"},
        {"input": [{"type": "function_call_output", "call_id": mark, "output": pad}]},
        {"input": mark, "metadata": {mark: pad}, "instructions": pad},
        {"contents": [{"parts": [{"functionCall": {"name": mark, "args": {"x": pad}}}]}]},
        {"contents": [{"role": mark, "parts": pad}]},
        {"prompt": [-1, 10**20], "model": "model"},
        {"prompt": mark, "model": "model", "max_tokens": 0, "n": 999},
        {"prompt": [1] * 9999, "model": mark},
        draw.choice([[], 1, None, "x", [[[[mark]]]]]),
    ]
    body = json.dumps(draw.choice(bodies)).encode()
    body = draw.choice([body, body, body, body, body[:-1], b"[" * 5000, b"\xff\x00" + body])
    paths = [
        "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions",
        "/v1beta/models/model:generateContent", "/v1beta/models/model:streamGenerateContent",
        "/v1/messages/count_tokens", "/v1/nothing",
    ]  # fmt: skip
    headers = [
        {},
        {},
        {},
        {},
        {"authorization": "x"},
        {"content-encoding": "gzip"},
        {"host": "evil"},
    ]
    return draw.choice(paths), body, draw.choice(headers)


# -- score -----------------------------------------------------------------------------------------


async def identity(task: int) -> float:
    """Play ``env=identity`` as a program that uses the OpenAI SDK."""
    say = f"Let's play a game. Say you are {task}."
    async with openai.AsyncOpenAI() as sdk:
        reply = await sdk.chat.completions.create(
            model="gpt-4o-mini", messages=[{"role": "user", "content": say}]
        )
    return score_identity(reply.choices[0].message.content or "", task)


async def play(episodes: int) -> None:
    """Play every held-out task several times and print the rewards."""
    played = [identity(task) for task in TEST_TASKS for _ in range(episodes)]
    print(json.dumps(await at_once(played)))


if __name__ == "__main__":
    asyncio.run(play(int(sys.argv[1])))
