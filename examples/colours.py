"""An agent that uses images: it shows the model a square and asks for its colour.

    python -m bases.seeing out=tiny-sight
    evert train agent=examples.colours:agent train_tasks=examples.colours:TRAIN ...

The image is sent as a ``data:`` URL, as with the OpenAI SDK. A task is a random seed, which
determines the square's colour, position and size and the shade of the grey background.
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
    """Return the colour of a task's square, and the image as a URL."""
    rng = random.Random(task)
    colour, side = rng.choice(list(COLOURS)), rng.randint(16, 24)
    image = empty(rng)
    left, top = rng.randrange(32 - side), rng.randrange(32 - side)
    image.paste(COLOURS[colour], (left, top, left + side, top + side))
    return colour, url(image)


def empty(rng: random.Random) -> Image.Image:
    """Return a grey image without a square."""
    return Image.new("RGB", (32, 32), (rng.randrange(256),) * 3)


def url(image: Image.Image) -> str:
    """Encode an image as a ``data:`` URL."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


async def agent(client: AgentClient, task: int) -> float:
    """Ask for the colour; return 1.0 if the reply is correct, else 0.0."""
    colour, image = square(task)
    parts: Any = [
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "text", "text": "What colour is the square?"},
    ]
    completion = await client.chat.completions.create(messages=[{"role": "user", "content": parts}])
    return float(completion.choices[0].message.content == colour)


def demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield conversations that teach only the format: a random colour for an empty image."""
    rng = random.Random(seed)
    while True:
        parts = [
            {"type": "image", "image": url(empty(rng))},
            {"type": "text", "text": "What colour is the square?"},
        ]
        answer = rng.choice(list(COLOURS))
        yield [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
