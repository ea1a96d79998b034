"""Multiplication with a tool and without a warm-up, based on the example in TRL issue #5366.

    python benchmarks/experiments.py --only multiply

The model can call the tool once, and then has to answer. The reward is 1 if the last number in the
answer is the product, and 0 otherwise, so a tool call alone earns nothing.
"""

import json
import random
import re

SYSTEM = {
    "role": "system",
    "content": "You are a careful calculator. You must call the tool multiply. "
    "After its result, give the answer.",
}
INTEGER = {"type": "integer"}
TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiplies two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": INTEGER, "b": INTEGER},
            "required": ["a", "b"],
        },
    },
}


def pairs(seed, count):
    """Return pairs of numbers to multiply."""
    draw = random.Random(seed)
    return [(draw.randint(11, 99), draw.randint(11, 99)) for _ in range(count)]


TEST = pairs(0, 20)
TRAIN = [pair for pair in pairs(1, 500) if pair not in TEST]


def multiply(arguments):
    """Return the tool's result, given the arguments as JSON."""
    try:
        numbers = json.loads(arguments)
        return str(int(numbers["a"]) * int(numbers["b"]))
    except (KeyError, TypeError, ValueError):
        return "Error: expected two integers, a and b."


async def agent(client, pair):
    """Ask for a product; return 1 if it is the last number in the answer, else 0."""
    a, b = pair
    messages = [SYSTEM, {"role": "user", "content": f"What is {a} times {b}?"}]
    completion = await client.chat.completions.create(messages=messages, tools=[TOOL])
    reply = completion.choices[0].message
    client.metric("called", float(bool(reply.tool_calls)))
    if reply.tool_calls:
        messages.append(reply.model_dump(exclude_none=True))
        for call in reply.tool_calls:
            result = multiply(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        completion = await client.chat.completions.create(messages=messages)
        reply = completion.choices[0].message
    numbers = re.findall(r"\d+", (reply.content or "").replace(",", ""))
    return float(numbers[-1:] == [str(a * b)])
