"""Checks the images in an episode before they are passed to a renderer.

Renderers open any URL they are given, even files on the trainer's machine. ``Images`` therefore
checks every image that an agent sends. It accepts only ``data:`` URLs that contain a valid image.
Images are decoded in a thread, because decoding an image takes longer than a turn.
"""

import base64
import io
from typing import Any

import openai
from PIL import Image
from tinker_cookbook.renderers.base import Message

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.tokens.loop_budget import LongTextError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # Pillow runs external programs for some other formats
MOST_BYTES = 20_000_000  # per image
MOST_PIXELS = 50_000_000  # per image; a file of a few kilobytes can contain more
MOST_IMAGES = 100  # per message


class Images:
    """The images in one episode. Each distinct image is decoded only once."""

    def __init__(self) -> None:
        self._urls: dict[str, str] = {}
        self._has_any = False

    def check(self, message: Message, max_chars: int | None = None) -> Message:
        """Check the images in a message.

        Unless ``max_chars`` is None, raises ``LongTextError`` if this message or an earlier one
        contains an image.
        """
        content = message["content"]
        if isinstance(content, str) or not any(part["type"] == "image" for part in content):
            if self._has_any and max_chars is not None:  # a template may re-render earlier images
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
                    f"evert does not fetch images from URLs such as {name[:200]!r}. Send the image "
                    "itself as a data: URL, for example "
                    "'data:image/png;base64,' + base64.b64encode(content).decode()."
                )
            url = _data_url(_content(image))
            self._urls[image] = image if url == image else url
        return self._urls[image]


def _content(url: str) -> bytes:
    head, _, payload = url.partition(",")
    if len(payload) * 3 // 4 > MOST_BYTES:
        raise _refusal(f"The image in a data: URL is larger than {MOST_BYTES} bytes.")
    try:
        if not head.lower().endswith(";base64"):
            raise ValueError("it is not declared as base64")
        payload = "".join(payload.split())
        return base64.b64decode(payload + "=" * (-len(payload) % 4), validate=True)
    except ValueError as error:
        raise _refusal(
            f"An image URL that starts with {url!r:.50} cannot be decoded: {error}. Expected "
            "data:image/png;base64,..."
        ) from None


def _data_url(content: bytes) -> str:
    """Return an image as a ``data:`` URL, or raise a 400 if the bytes are not a valid image."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            _check_pixels(image, "in a data: URL")
            if image.format != "MPO" and getattr(image, "is_animated", False):
                raise _refusal("The image in a data: URL is animated. Send a single frame instead.")
            image.load()
            kind = image.get_format_mimetype()
    except openai.BadRequestError:
        raise
    except Exception as error:  # Pillow's decoders may raise anything
        expected = ", ".join(FORMATS)
        raise _refusal(
            f"The image in a data: URL ({len(content)} bytes) cannot be opened; expected a "
            f"complete image in one of the formats {expected}. {type(error).__name__}: "
            f"{error!s:.200}"
        ) from None
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _check_pixels(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise _refusal(
            f"The image {name} has {width} x {height} pixels; the limit is {MOST_PIXELS} pixels. "
            "Send a smaller image."
        )


def _refusal(message: str) -> openai.BadRequestError:
    return bad_request(message, param="messages")
