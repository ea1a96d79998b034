"""Alphabet-sort over three turns, after prime-rl's example of that name, with two to four names.

    python benchmarks/experiments.py --only alphabet_sort

Each turn brings names, and asks for all names so far in alphabetical order. The reward is the mean
over the turns of the fourth power of a ratio (``reverse_text.ratio``), so that small errors count.
"""

import random
import re
from collections.abc import Iterator

from reverse_text import ratio

from evert import AgentClient

NAMES = re.findall(
    r"\w+",
    "Adam Alice Amy Anna Ben Beth Bob Brian Carl Carol Chris Clara Dan David Diana Ed Ella Emma "
    "Eric Frank Fred Gina Grace Greg Hank Helen Henry Ian Ivy Jack James Jane John Julia Karen "
    "Kate Kevin Laura Leo Linda Lucy Mark Mary Mike Nancy Nick Nina Oliver Oscar Paul Peter Rachel "
    "Robert Rose Sam Sarah Steve Susan Ted Tim Tom Victor Walter Wendy Zoe",
)
TURNS = ("Sort these names alphabetically: {}", "Add {} and sort all names.")
SPLITS = (slice(0, 2), slice(2, 3), slice(3, 4))
"""The places of each turn's names in a task."""


def tasks(seed: int, count: int) -> list[tuple[str, ...]]:
    """Return tasks: four names in the order in which they come."""
    draw = random.Random(seed)
    return [tuple(draw.sample(NAMES, 4)) for _ in range(count)]


TEST = tasks(0, 40)
TRAIN = [task for task in tasks(1, 2000) if {*task} not in [{*other} for other in TEST]]


def turns(task: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield each turn's question, and the names in the right order."""
    for split in SPLITS:
        question = TURNS[split.start > 0].format(", ".join(task[split]))
        yield question, sorted(task[: split.stop])


async def agent(client: AgentClient, task: tuple[str, ...]) -> float:
    """Ask three times; the reward is the mean over the turns."""
    messages: list[dict[str, str]] = []
    ratios = []
    for question, names in turns(task):
        messages.append({"role": "user", "content": question})
        completion = await client.chat.completions.create(messages=messages)
        reply = completion.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": reply})
        ratios.append(ratio(names, [name.strip() for name in reply.split(",")]))
    client.metric("right", float(min(ratios) == 1))
    return sum(value**4 for value in ratios) / len(ratios)


def demonstrations(seed: int) -> Iterator[list[dict[str, str]]]:
    """Yield conversations for a warm-up, on training tasks."""
    draw = random.Random(seed)
    while True:
        messages = []
        for question, names in turns(draw.choice(TRAIN)):
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": ", ".join(names)})
        yield messages
