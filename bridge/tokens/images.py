"""Checks an episode's images before a renderer sees them.

A renderer opens any URL that it gets, even a file on the trainer's machine. So ``Images`` checks
all images of an agent, and accepts only ``data:`` URLs with bytes that can be opened as an image.
They are opened in a thread, because opening an image takes longer than a turn.
"""

import base64
import io
from typing import Any

import openai
from PIL import Image
from tinker_cookbook.renderers.base import Message

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.tokens.loop_budget import LongTextError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # for some other formats, Pillow starts programs
MOST_BYTES = 20_000_000  # per image
MOST_PIXELS = 50_000_000  # per image; a file of a few kilobytes may claim many more
MOST_IMAGES = 100  # per message


class Images:
    """The images of one episode; each image is opened only once."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._has_any = False

    def check(self, message: Message, max_chars: int | None = None) -> Message:
        """Check a message's images; raise a ``LongTextError`` unless ``max_chars`` is None."""
        content = message["content"]
        if isinstance(content, str) or not any(part["type"] == "image" for part in content):
            if self._has_any and max_chars is not None:  # a template may render every image again
                raise LongTextError
            return message
        self._has_any = True
        if max_chars is not None:
            raise LongTextError
        if sum(part["type"] == "image" for part in content) > MOST_IMAGES:
            raise _refusal(f"A message contains more than {MOST_IMAGES} images.")
        parts = [
            {**part, "image": self._data(part["image"])} if part["type"] == "image" else part
            for part in content
        ]
        return {**message, "content": parts}  # type: ignore[typeddict-item]

    def _data(self, image: Any) -> Any:
        if isinstance(image, Image.Image):
            _check_pixels(image, "from Pillow")
        if not isinstance(image, str):
            return image
        if image not in self._urls:
            if image[:5].lower() != "data:":
                name = image.partition("?")[0]  # the query may contain a secret
                raise _refusal(
                    f"The image {name[:200]!r} is not fetched; expected its data. Send it as a "
                    "data: URL: 'data:image/png;base64,' + base64.b64encode(content).decode()."
                )
            url = _data_url(_content(image))
            self._urls[image] = image if url == image else url
        return self._urls[image]


def _content(url: str) -> bytes:
    head, _, payload = url.partition(",")
    if len(payload) * 3 // 4 > MOST_BYTES:
        raise _refusal(f"The image in a data: URL has more than {MOST_BYTES} bytes.")
    try:
        if not head.lower().endswith(";base64"):
            raise ValueError("it is not marked as base64")
        payload = "".join(payload.split())
        return base64.b64decode(payload + "=" * (-len(payload) % 4), validate=True)
    except ValueError as error:
        raise _refusal(
            f"An image begins with {url!r:.50} and cannot be read: {error}. Expected "
            "data:image/png;base64,..."
        ) from None


def _data_url(content: bytes) -> str:
    """Return an image's bytes as a ``data:`` URL; raise a 400 if they are not a whole image."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            _check_pixels(image, "in a data: URL")
            if image.format != "MPO" and getattr(image, "is_animated", False):
                raise _refusal("The image in a data: URL is animated; send one of its frames.")
            image.load()
            kind = image.get_format_mimetype()
    except openai.BadRequestError:
        raise
    except Exception as error:  # Pillow's decoders may raise anything
        expected = ", ".join(FORMATS)
        raise _refusal(
            f"The image in a data: URL cannot be opened ({len(content)} bytes); expected a whole "
            f"image, one of {expected}. {type(error).__name__}: {error!s:.200}"
        ) from None
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _check_pixels(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise _refusal(
            f"The image {name} has {width} x {height} pixels; at most {MOST_PIXELS} are opened. "
            "Send a smaller one."
        )


def _refusal(message: str) -> openai.BadRequestError:
    return bad_request(message, param="messages")
