"""Alphabet-sort over three turns, based on prime-rl's example, with two to four names.

    python benchmarks/experiments.py --only alphabet_sort

Each turn adds names and asks for all names so far in alphabetical order. The reward is the mean of
``reverse_text.ratio`` ** 4 over all turns; the fourth power makes small errors matter more.
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
"""The slice of a task's names that each turn adds."""


def tasks(seed: int, count: int) -> list[tuple[str, ...]]:
    """Return tasks, each of which is a tuple of four names in the order they are added."""
    draw = random.Random(seed)
    return [tuple(draw.sample(NAMES, 4)) for _ in range(count)]


TEST = tasks(0, 40)
TRAIN = [task for task in tasks(1, 2000) if {*task} not in [{*other} for other in TEST]]


def turns(task: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yield each turn's question and the correctly sorted names."""
    for split in SPLITS:
        question = TURNS[split.start > 0].format(", ".join(task[split]))
        yield question, sorted(task[: split.stop])


async def agent(client: AgentClient, task: tuple[str, ...]) -> float:
    """Ask three times and return the mean reward over all turns."""
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
    """Yield warm-up conversations for random training tasks."""
    draw = random.Random(seed)
    while True:
        messages = []
        for question, names in turns(draw.choice(TRAIN)):
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": ", ".join(names)})
        yield messages
