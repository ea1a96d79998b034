"""Generated dialogues for the tiny chat base, other than guess-number games.

There are three kinds: the hello-world game (:func:`identity_game`), small talk about copying,
comparing and simple facts (:func:`small_talk`), and tool use (:func:`tool_use`). A dialogue is a
list of (role, content) pairs, with tool calls and tool responses already formatted as Qwen3
expects.
"""

import json
import random
from collections.abc import Callable
from typing import Any

from bases.tokenizer import tools_prompt

Dialogue = list[tuple[str, str]]

IDENTITY_PROMPT = "Let's play a game. Say you are {task}."
"""Prompt of the hello-world game; ``task`` is a number."""

# The hello-world game is played badly on purpose, with a mean reward of about -0.25. But one answer
# in six is correct, so RL has something to reinforce.
_IDENTITY_REPLIES = {
    "I am not {task}.": 30,
    "You are {task}.": 24,
    "No.": 16,
    "I'm not {task}.": 8,
    "You are not {task}.": 6,
    "I am {task}.": 11,
    "I'm {task}.": 5,
}

_HELD_OUT = range(1000, 1024)
"""Numbers excluded from the identity dialogues, so that they can be used as test tasks."""


def identity_game(rng: random.Random) -> Dialogue:
    """Return a single-turn hello-world game, usually played badly."""
    task = _number(rng)
    while task in _HELD_OUT:
        task = _number(rng)
    (reply,) = rng.choices(list(_IDENTITY_REPLIES), list(_IDENTITY_REPLIES.values()))
    prompt = IDENTITY_PROMPT.format(task=task)
    return [("user", prompt), ("assistant", reply.format(task=task))]


def _number(rng: random.Random, digits: int = 4) -> int:
    return rng.randrange(10 ** rng.randint(1, digits))


_COMMON_WORDS = """
the of and to in is you that it was for are with they have from one had word not what all we can
out other time each tell does set three want air well also play small end put home read hand port
large spell add even land here must big high such follow act why ask men change went light kind
off need house picture try us again animal point mother world near build self red blue green cat
dog bird fish tree sun moon rain snow wind fire stone river road door
"""
_WORDS = _COMMON_WORDS.split()

_SENTENCES = (
    "I am {n}.",
    "I'm {n}.",
    "I am not {n}.",
    "You are {n}.",
    "You are not {n}.",
    "It is {n}.",
    "Guess: {n}",
    "{n}",
    "{n} and {m}",
    "{w} {n}",
    "{w} {v}",
    "{w}",
    "The {w} is {v}.",
    "{w}, {v}, {x}",
    "{x} {w} {v} {n}",
)

_COPY_REQUESTS = (
    "Repeat: {s}",
    "Copy: {s}",
    "Say: {s}",
    "Please repeat after me: {s}",
    "Echo: {s}",
    "Please say: {s}",
)

_FACTS = {
    "Hello.": "Hello. What can I do for you?",
    "Hi!": "Hi!",
    "Thank you.": "You are welcome.",
    "Who are you?": "I am a tiny chat model.",
    "What is your name?": "My name is evert-tiny.",
    "How are you?": "I am well. And you?",
    "Good morning.": "Good morning.",
    "Bye.": "Bye.",
    "What is the color of the sky?": "Blue.",
    "What is the color of grass?": "Green.",
    "What is the color of snow?": "White.",
    "How many days are in a week?": "7.",
    "How many months are in a year?": "12.",
    "How many hours are in a day?": "24.",
    "What is the capital of France?": "Paris.",
    "What is the capital of Italy?": "Rome.",
    "What is the capital of Japan?": "Tokyo.",
    "What does a cat say?": "Meow.",
    "What does a dog say?": "Woof.",
    "Is fire hot?": "Yes.",
    "Is ice hot?": "No.",
    "Can fish swim?": "Yes.",
    "Can dogs fly?": "No.",
}

_PERSONAS = ("You are a helpful assistant.", "Be brief.", "You are evert-tiny.", "Answer well.")


def _sentence(rng: random.Random) -> str:
    w, v, x = rng.choices(_WORDS, k=3)
    if rng.random() < 0.15:
        w = "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", k=5))
    return rng.choice(_SENTENCES).format(n=_number(rng, 5), m=_number(rng), w=w, v=v, x=x)


def _copying(rng: random.Random) -> tuple[str, str]:
    sentence = _sentence(rng)
    return rng.choice(_COPY_REQUESTS).format(s=sentence), sentence


def _comparing(rng: random.Random) -> tuple[str, str]:
    a, b = _number(rng), _number(rng)
    question = rng.choice(("larger", "smaller"))
    answer = max(a, b) if question == "larger" else min(a, b)
    return f"Which is {question}, {a} or {b}?", f"{answer}."


def _bounding(rng: random.Random) -> tuple[str, str]:
    a, b, n = _number(rng), _number(rng), _number(rng)
    low, high = min(a, b), max(a, b)
    return f"Is {n} between {low} and {high}?", "Yes." if low < n < high else "No."


def _halving(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randrange(1025), rng.randrange(1025)
    low, high = min(a, b), max(a, b)
    return f"What is the midpoint between {low} and {high}?", f"{(low + high) // 2}."


def _counting(rng: random.Random) -> tuple[str, str]:
    n = _number(rng)
    return rng.choice(
        ((f"What comes after {n}?", f"{n + 1}."), (f"What comes before {n + 1}?", f"{n}."))
    )


def _fact(rng: random.Random) -> tuple[str, str]:
    return rng.choice(list(_FACTS.items()))


_KINDS: dict[Callable[[random.Random], tuple[str, str]], int] = {
    _copying: 8,
    _fact: 3,
    _comparing: 3,
    _bounding: 2,
    _halving: 3,
    _counting: 1,
}


def small_talk(rng: random.Random) -> Dialogue:
    """Return one or two question-answer pairs, sometimes preceded by a system message."""
    messages = [("system", rng.choice(_PERSONAS))] if rng.random() < 0.2 else []
    for _ in range(rng.choice((1, 1, 2))):
        (kind,) = rng.choices(list(_KINDS), list(_KINDS.values()))
        question, answer = kind(rng)
        messages += [("user", question), ("assistant", answer)]
    return messages


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "parameters": schema}


_TOOLS = {
    "add": _tool("add", "Add two numbers.", a="integer", b="integer"),
    "get_weather": _tool("get_weather", "Get the weather.", city="string"),
    "lookup": _tool("lookup", "Look a word up.", word="string"),
}


def tool_use(rng: random.Random) -> Dialogue:
    """Return a question answered by calling one of the available tools."""
    offered = rng.sample(list(_TOOLS), rng.randint(1, len(_TOOLS)))
    name = rng.choice(offered)
    question, arguments, result, answer = _one_use(name, rng)
    call = json.dumps({"name": name, "arguments": arguments})
    return [
        ("system", tools_prompt([_TOOLS[tool] for tool in offered])),
        ("user", question),
        ("assistant", f"<tool_call>\n{call}\n</tool_call>"),
        ("user", f"<tool_response>\n{result}\n</tool_response>"),
        ("assistant", answer),
    ]


def _one_use(name: str, rng: random.Random) -> tuple[str, dict[str, Any], str, str]:
    if name == "add":
        a, b = _number(rng, 3), _number(rng, 3)
        return f"What is {a} plus {b}?", {"a": a, "b": b}, str(a + b), f"It is {a + b}."
    if name == "get_weather":
        city, weather = rng.choice(("Paris", "Rome", "Oslo", "Lima")), rng.choice(_WORDS)
        return f"What is the weather in {city}?", {"city": city}, weather, f"It is {weather}."
    word, meaning = rng.choice(_WORDS), rng.choice(_WORDS)
    return f"What does {word} mean?", {"word": word}, meaning, f"It means {meaning}."
