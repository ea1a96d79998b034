"""An agent that looks: it is shown a square and says its colour.

    python -m evert.bases.making.seeing out=tiny-sight
    evert train agent=examples.colours:agent train_tasks=examples.colours:TRAIN ...

The image is data in the message, as OpenAI's SDK has it. A task is a number: it decides the colour,
the place and the size of the square, and the grey behind it.
"""

import base64
import io
import random
from collections.abc import Iterator
from typing import Any

from PIL import Image

from evert import AgentClient

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 210, 40),
}
TRAIN = range(4096)
TEST = range(10_000, 10_064)


def square(task: int) -> tuple[str, str]:
    """The colour of a task's square, and the image as a ``data:`` URL."""
    rng = random.Random(task)
    colour = rng.choice(list(COLOURS))
    side = rng.randint(12, 20)
    image = Image.new("RGB", (32, 32), (rng.randint(0, 255),) * 3)
    image.paste(
        COLOURS[colour],
        (
            left := rng.randint(0, 32 - side),
            top := rng.randint(0, 32 - side),
            left + side,
            top + side,
        ),
    )
    file = io.BytesIO()
    image.save(file, "PNG")
    return colour, f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def question(url: str, **part: Any) -> list[Any]:
    """What the policy is asked."""
    return [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": "What colour is the square?"},
            ],
        }
    ]


async def agent(client: AgentClient, task: int) -> float:
    """One look, one word."""
    colour, url = square(task)
    completion = await client.chat.completions.create(messages=question(url))
    return float(completion.choices[0].message.content == colour)


def demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """The form of an answer, and not which is right: any colour, for any square."""
    rng = random.Random(seed)
    while True:
        _, url = square(rng.randrange(1_000_000, 2_000_000))
        content = [
            {"type": "image", "image": url},
            {"type": "text", "text": "What colour is the square?"},
        ]
        yield [
            {"role": "user", "content": content},
            {"role": "assistant", "content": rng.choice(list(COLOURS))},
        ]
