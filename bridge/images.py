"""The images of an episode: data by the time that a renderer sees them.

A renderer opens whatever address it is given, a file of the trainer's machine too. So every image
of an agent's comes past ``Images``, which lets two kinds of address through: ``data:`` URLs, and
those of hosts that ``image_hosts`` names, which are fetched once an episode, off the renderer's
thread and within limits. Either becomes a ``data:`` URL whose bytes were opened as an image before.
A conversation is still known by what the agent sent.

    fetch     on the event loop, before a prompt is made of a request
    shown     in a thread, while it is made: to open an image takes longer than a turn
"""

import asyncio
import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import openai
from PIL import Image
from tinker_cookbook.renderers.base import Message
from yarl import URL

from evert.bridge.long_text import LongTextError
from evert.bridge.offloop import off_loop
from evert.bridge.requests import bad_request

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""What is opened; other formats of Pillow's start programs."""

MOST_BYTES = 20_000_000
"""Of an image."""

MOST_PIXELS = 50_000_000
"""Of an image; a file of some kilobytes may claim many more."""

MOST_IMAGES = 100
"""Of a message, and of those that a request has fetched."""

MOST_FETCHED_BYTES = 200_000_000
"""Of all images that an episode has fetched, which are kept until its end."""

FETCH_SECONDS = 20.0
"""For all images that a request has fetched."""

CONNECTIONS = 8
"""For one request at a time."""

REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 3

Origin = tuple[str, str, int | None]
"""Scheme, host and port of an address."""


class Images:
    """The images of one episode.

    Args:
        hosts: Where images may be fetched: "example.org" (by https), or with scheme and port:
            "http://10.0.0.3:8000".

    Raises:
        ValueError: One of them is no host.
    """

    def __init__(self, hosts: str | Sequence[str] = ()) -> None:
        self._origins = read_hosts(hosts)
        self._shown: dict[str, str] = {}
        self._fetched_bytes = 0
        self._has_any = False
        self._fetching: set[asyncio.Task[None]] = set()

    # -- on the event loop -----------------------------------------------------------------------

    async def fetch(self, messages: Sequence[Any]) -> None:
        """Fetch the images of a request that are to be fetched and were not before.

        Raises:
            openai.BadRequestError: One cannot be, or is no image.
        """
        if not self._origins:
            return
        new = {url for url in _addresses(messages) if url not in self._shown and self._allows(url)}
        if not new:
            return
        if len(new) > MOST_IMAGES:
            raise _refused(f"{len(new)} images are to be fetched; at most {MOST_IMAGES} can be.")
        task = asyncio.ensure_future(self._fetch_all(new))
        self._fetching.add(task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._fetching.discard(task)
        if not task.cancelled():
            task.result()

    def close(self) -> None:
        """Stop fetching: the episode is given up."""
        for task in self._fetching:
            task.cancel()

    async def all_shown(self, messages: Sequence[Message]) -> list[Message]:
        """As ``shown``, of several messages; in a thread if there are images."""
        try:
            return [self.shown(message, 0) for message in messages]
        except LongTextError:
            return await off_loop(lambda: [self.shown(message) for message in messages])

    def _allows(self, url: str) -> bool:
        return _origin(_read(url)) in self._origins

    async def _fetch_all(self, urls: set[str]) -> None:
        from evert.bridge.faces.takeover import left_alone

        options: dict[str, Any] = {
            "cookie_jar": aiohttp.DummyCookieJar(),
            "auto_decompress": False,
            "headers": {"Accept": "image/*", "Accept-Encoding": "identity"},
        }
        try:
            with left_alone():
                connector = aiohttp.TCPConnector(limit=CONNECTIONS)
                async with (
                    asyncio.timeout(FETCH_SECONDS),
                    aiohttp.ClientSession(connector=connector, **options) as session,
                    asyncio.TaskGroup() as group,
                ):
                    for url in urls:
                        group.create_task(self._fetch(session, url))
        except TimeoutError:
            names = ", ".join(_name(url) for url in urls - self._shown.keys())
            message = f"Not fetched within {FETCH_SECONDS:g} s: {names:.500}. Send data: URLs."
            raise _refused(message) from None
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _fetch(self, session: aiohttp.ClientSession, url: str) -> None:
        try:
            content = await self._answered(session, url)
        except openai.BadRequestError:
            raise
        except Exception as error:  # whatever a host answers, or a guard of the network says
            reason = str(error) or type(error).__name__
            raise _refused(f"The image {_name(url)} cannot be fetched: {reason:.300}") from error
        self._shown[url] = await off_loop(_opened, content, _name(url))

    async def _answered(self, session: aiohttp.ClientSession, url: str) -> bytes:
        here = _read(url)
        for _ in range(MOST_REDIRECTS + 1):
            if here is None or _origin(here) not in self._origins:
                raise self._not_allowed(str(here))
            async with session.get(here, allow_redirects=False) as response:
                if response.status in REDIRECTS:
                    here = here.join(URL(response.headers.get("Location", "")))
                    continue
                if response.status != 200:
                    raise _refused(f"For the image {_name(url)} came HTTP {response.status}.")
                return await self._read_body(response, url)
        raise _refused(f"The image {_name(url)} was redirected more than {MOST_REDIRECTS} times.")

    async def _read_body(self, response: aiohttp.ClientResponse, url: str) -> bytes:
        content = bytearray()
        async for piece in response.content.iter_any():
            content += piece
            self._fetched_bytes += len(piece)
            _check_size(len(content), _name(url))
            if self._fetched_bytes > MOST_FETCHED_BYTES:
                raise _refused(
                    f"The images of this episode have more than {MOST_FETCHED_BYTES} bytes."
                )
        return bytes(content)

    # -- in a thread -----------------------------------------------------------------------------

    def shown(self, message: Message, most: int | None = None) -> Message:
        """``message`` with its images as data that was opened.

        Args:
            message: As read from a request.
            most: None where there is time, in a thread.

        Raises:
            LongTextError: There is none, and the episode has images.
            openai.BadRequestError: An image is none, or was not to be fetched.
        """
        content = message["content"]
        if isinstance(content, str) or not any(part["type"] == "image" for part in content):
            if self._has_any and most is not None:  # a template may render them all again
                raise LongTextError
            return message
        self._has_any = True
        if most is not None:
            raise LongTextError
        parts = [
            {**part, "image": self._data(part["image"])} if part["type"] == "image" else part
            for part in content
        ]
        if sum(part["type"] == "image" for part in parts) > MOST_IMAGES:
            raise _refused(f"A message holds more than {MOST_IMAGES} images.")
        return {**message, "content": parts}  # type: ignore[typeddict-item]

    def _data(self, image: Any) -> Any:
        if isinstance(image, Image.Image):
            _check_pixels(image, "of Pillow's")
        if not isinstance(image, str):
            return image
        if image not in self._shown:
            if image[:5].lower() != "data:":
                raise self._not_allowed(image)
            made = _opened(_content(image), "in a data: URL")
            self._shown[image] = image if made == image else made
        return self._shown[image]

    def _not_allowed(self, url: str) -> openai.BadRequestError:
        allowed = ", ".join(map(_written, self._origins)) or "none"
        advice = "Send it as data:image/png;base64,..."
        if (origin := _origin(_read(url))) is not None:
            advice += f", or allow its host: ChatAgentEnv(..., image_hosts=[{_written(origin)!r}])"
        return _refused(
            f"The image {_name(url)} is not fetched. Images are data: URLs, or come from the hosts "
            f"that image_hosts allows ({allowed}). {advice}."
        )


# -- addresses -----------------------------------------------------------------------------------


def read_hosts(hosts: str | Sequence[str]) -> frozenset[Origin]:
    """The hosts of the option ``image_hosts``.

    Raises:
        ValueError: One of them is none.
    """
    named = (hosts,) if isinstance(hosts, str) else tuple(hosts)
    return frozenset(map(_read_host, named))


def host_names(hosts: str | Sequence[str]) -> tuple[str, ...]:
    """The same by name alone, for a guard of the network."""
    return tuple(sorted({host for _, host, _ in read_hosts(hosts)}))


def _read_host(host: str) -> Origin:
    url = _read(host if "://" in str(host) else f"https://{host}")
    origin = _origin(url)
    bare = url is not None and str(url.origin() if origin else "") == str(url).removesuffix("/")
    if not isinstance(host, str) or origin is None or not bare or not _is_name(origin[1]):
        raise ValueError(
            f"image_hosts holds {host!r:.200}; expected hosts such as 'example.org' (by https), or "
            "with scheme and port: 'http://10.0.0.3:8000'."
        )
    return origin


def _is_name(host: str) -> bool:
    return all(letter.isalnum() or letter in ".-_:" for letter in host)


def _read(url: Any) -> URL | None:
    try:
        return URL(url)
    except (TypeError, ValueError):
        return None


def _origin(url: URL | None) -> Origin | None:
    if url is None or url.scheme not in ("http", "https") or not url.host:
        return None
    return url.scheme, url.host.lower().rstrip("."), url.port


def _written(origin: Origin) -> str:
    scheme, host, port = origin
    host = f"[{host}]" if ":" in host else host
    return host if (scheme, port) == ("https", 443) else f"{scheme}://{host}:{port}"


def _name(url: str) -> str:
    """An address in a message: what follows a ``?`` may be a secret."""
    return f"{url.partition('?')[0][:200]!r}"


def _addresses(messages: Sequence[Any]) -> Iterator[str]:
    """What the images of a request are given as; one that is read otherwise is refused later."""
    for message in messages:
        fields = message if isinstance(message, Mapping) else getattr(message, "__dict__", {})
        content = fields.get("content")
        for part in content if isinstance(content, (list, tuple)) else ():
            image = part.get("image_url", part.get("image")) if isinstance(part, Mapping) else None
            url = image.get("url") if isinstance(image, Mapping) else image
            if isinstance(url, str):
                yield str.__str__(url)


# -- bytes ---------------------------------------------------------------------------------------


def _content(url: str) -> bytes:
    """What a ``data:`` URL holds."""
    head, _, payload = url.partition(",")
    _check_size(len(payload) * 3 // 4, "in a data: URL")
    try:
        if not head.lower().endswith(";base64"):
            raise ValueError("it is not marked as base64")
        payload = "".join(payload.split())
        return base64.b64decode(payload + "=" * (-len(payload) % 4), validate=True)
    except ValueError as error:
        raise _refused(
            f"An image begins with {url!r:.50} and cannot be read: {error}. Expected "
            "data:image/png;base64,..."
        ) from None


def _opened(content: bytes, name: str) -> str:
    """An image's bytes as a ``data:`` URL, if all of it can be opened."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            _check_pixels(image, name)
            if image.format != "MPO" and getattr(image, "is_animated", False):
                raise _refused(f"The image {name} is animated; send one of its frames.")
            image.load()
            kind = image.get_format_mimetype()
    except openai.BadRequestError:
        raise
    except Exception as error:  # Pillow's decoders raise what they like
        expected = ", ".join(FORMATS)
        raise _refused(
            f"The image {name} cannot be opened ({len(content)} bytes); expected a whole image, "
            f"one of {expected}. {type(error).__name__}: {error!s:.200}"
        ) from None
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _check_size(size: int, name: str) -> None:
    if size > MOST_BYTES:
        raise _refused(f"The image {name} has more than {MOST_BYTES} bytes.")


def _check_pixels(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise _refused(
            f"The image {name} has {width} x {height} pixels; at most {MOST_PIXELS} are opened. "
            "Send a smaller one."
        )


def _refused(message: str) -> openai.BadRequestError:
    return bad_request(message, param="messages")
