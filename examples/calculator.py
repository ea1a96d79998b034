"""A calculator agent that calls its model with the OpenAI SDK and doesn't import evert.

    make real

A small model cannot multiply, but it can learn to call the tool. SmolLM2 was never trained to call
tools, so a short warm-up demonstrates calls with other questions: sums of one-digit numbers.
"""

import asyncio
import json
import operator
import random
import re

from openai import AsyncOpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Computes an expression of two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
CALLS = 3
"""Maximum number of model calls per episode."""


def calculate(expression):
    """Evaluate an expression; for example, "12 * 34" returns "408"."""
    read = re.fullmatch(r"\s*(\d+)\s*([-+*])\s*(\d+)\s*", str(expression))
    if read is None:
        return "Error: expected two numbers with +, - or * between, like 12 * 34."
    return str(SIGNS[read[2]](int(read[1]), int(read[3])))


async def solve(question, *before):
    """Ask a question after the messages in ``before``; return the answer and the tool results."""
    client, results = AsyncOpenAI(), []
    messages = [*before, {"role": "user", "content": question}]
    for _ in range(CALLS):
        completion = await client.chat.completions.create(
            model="gpt-4o-mini", messages=messages, tools=TOOLS
        )
        reply = completion.choices[0].message
        if not reply.tool_calls:
            return reply.content or "", results
        messages.append(reply.model_dump(exclude_none=True))
        for call in reply.tool_calls:
            given = json.loads(call.function.arguments)
            results.append(calculate(given.get("expression")))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": results[-1]})
    return "", results


def questions(seed, count, signs="+-*"):
    """Yield questions and their answers."""
    draw = random.Random(seed)
    for _ in range(count):
        expression = f"{draw.randint(11, 99)} {draw.choice(signs)} {draw.randint(11, 99)}"
        yield {"question": f"What is {expression}?", "answer": calculate(expression)}


def demonstrations(seed):
    """Yield warm-up conversations that call the tool to add one-digit numbers."""
    draw = random.Random(seed)
    while True:
        expression = f"{draw.randint(1, 9)} + {draw.randint(1, 9)}"
        called = {"name": "calculate", "arguments": json.dumps({"expression": expression})}
        call = {"id": "call_0", "type": "function", "function": called}
        result = calculate(expression)
        messages = [
            {"role": "user", "content": f"What is {expression}?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": result},
            {"role": "assistant", "content": f"It is {result}."},
        ]
        yield {"messages": messages, "tools": TOOLS}


TEST = [*questions(0, 24)]
TRAIN = [task for task in questions(1, 2000) if task not in TEST]


def score(answer, results, right):
    """Return 1 for a correct answer, 0.5 for a correct tool result, 0.1 for any tool call."""
    if re.findall(r"-?\d+", answer.replace(",", ""))[-1:] == [right]:
        return 1.0
    return 0.5 if right in results else 0.1 * bool(results)


async def agent(client, task):
    """Answer a question and return the score as the reward."""
    answer, results = await solve(task["question"])
    reward = score(answer, results, task["answer"])
    client.metric("called", float(bool(results)))
    client.metric("right", float(reward == 1.0))
    return reward


def judge(record):
    """Score a recorded conversation, computing the correct answer from its question."""
    question, *messages = record.messages()
    results = [message["content"] for message in messages if message["role"] == "tool"]
    right = calculate(question["content"].removeprefix("What is ").removesuffix("?"))
    return score(record.text, results, right)


async def main(count=240):
    """Answer questions with the model at OPENAI_BASE_URL, 16 in parallel; return the mean score."""
    tasks, scores = TRAIN[-count:], []
    for first in range(0, count, 16):
        batch = tasks[first : first + 16]
        for task, answered in zip(
            batch, await asyncio.gather(*(solve(task["question"]) for task in batch)), strict=True
        ):
            scores.append(score(*answered, task["answer"]))
    return sum(scores) / count


if __name__ == "__main__":
    print(asyncio.run(main()))
