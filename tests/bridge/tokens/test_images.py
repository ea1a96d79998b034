"""Images in an agent's messages must be sent as data. URLs and paths are never opened."""

import base64
import functools
import io
import json
from typing import Any

import anthropic
import openai
import pytest
import tinker
import tinker_cookbook.renderers as cookbook
from google import genai
from PIL import Image
from tests.kit import Patch, as_agent, ask, play, play_without_a_call, reward
from tinker_cookbook.renderers.base import Message

from evert import AgentClient, ScriptedPolicy
from evert.bridge.tokens import images
from evert.bridge.tokens.bases import base_tokenizer
from evert.bridge.tokens.images import Images
from evert.bridge.tokens.loop_budget import LongTextError


def image_bytes(kind: str = "PNG", size: tuple[int, int] = (64, 64), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind)
    return buffer.getvalue()


PNG = image_bytes()


def data_url(content: bytes = PNG, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@functools.cache
def vision() -> cookbook.Renderer:
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor()
    return cookbook.get_renderer(
        "qwen3_vl_instruct", base_tokenizer(), image_processor=processor, model_name="test"
    )


def seen(*urls: Any, text: str = "What is it?") -> list[Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def chunks(observation: tinker.ModelInput) -> list[Any]:
    return [chunk for chunk in observation.chunks if isinstance(chunk, tinker.types.ImageChunk)]


async def refusals(*urls: Any) -> list[str]:
    """Return the error message for each image ("" if it is accepted). The agent then continues."""
    messages: list[str] = []

    async def agent(client: AgentClient) -> float:
        for url in urls:
            messages.append("")
            try:
                await ask(client, *seen(url))
            except openai.BadRequestError as error:
                messages[-1] = error.message
            await ask(client)
        return 1.0

    trajectory = await play(agent, renderer=vision())
    assert len(trajectory.transitions) == len(urls) + messages.count("")
    return messages


# -- image data ------------------------------------------------------------------------------------


async def by_chat(client: AgentClient, url: str) -> str:
    return await ask(client, *seen(url))


async def by_responses(client: AgentClient, url: str) -> str:
    content = [{"type": "input_image", "image_url": url, "detail": "auto"}]
    messages: Any = [{"role": "user", "content": content}]
    return (await client.openai.responses.create(model="policy", input=messages)).output_text


async def by_anthropic(client: AgentClient, url: str) -> str:
    source: Any = {"type": "url", "url": url}
    if url.startswith("data:"):
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        source = {"type": "base64", "media_type": kind, "data": data}
    content: Any = [{"type": "image", "source": source}]
    messages: Any = [{"role": "user", "content": content}]
    message: Any = await client.anthropic.messages.create(
        model="policy", messages=messages, max_tokens=500
    )
    return str(message.content[0].text)


async def by_gemini(client: AgentClient, url: str) -> str:
    part = genai.types.Part.from_uri(file_uri=url, mime_type="image/png")
    if url.startswith("data:"):
        data = base64.b64decode(url.partition(",")[2])
        part = genai.types.Part.from_bytes(data=data, mime_type="image/png")
    answer = await client.genai.aio.models.generate_content(model="policy", contents=part)
    return answer.text or ""


DIALECTS = [by_chat, by_responses, by_anthropic, by_gemini]
REFUSED = (openai.BadRequestError, anthropic.BadRequestError, genai.errors.ClientError)


async def test_image_data_in_every_dialect_and_pillow_images_reach_the_policy() -> None:
    async def agent(client: AgentClient) -> float:
        texts = [await by(client, data_url()) for by in DIALECTS]
        image = {"type": "image", "image": Image.new("RGB", (64, 64))}
        texts.append(await ask(client, {"role": "user", "content": [image]}))
        return float(texts == ["Fine."] * 5)

    trajectory = await play(agent, renderer=vision())
    assert reward(trajectory) == 1.0
    for turn in trajectory.transitions:
        [chunk] = chunks(turn.ob)
        assert Image.open(io.BytesIO(chunk.data)).size == (64, 64)


async def test_no_dialect_opens_an_image_url() -> None:
    async def agent(client: AgentClient) -> float:
        for by in DIALECTS:
            for url in ("file:///etc/hostname", "http://127.0.0.1:9/x.png"):
                with pytest.raises(REFUSED, match="does not fetch"):
                    await by(client, url)
            await ask(client)
        return 1.0

    trajectory = await play(agent, renderer=vision())
    assert len(trajectory.transitions) == len(DIALECTS)


async def test_common_formats_are_opened_whatever_their_mime_type() -> None:
    urls = [
        data_url(image_bytes(kind, mode=mode), name)
        for kind in ("PNG", "JPEG", "WEBP", "GIF")
        for mode in ("RGB", "L")
        for name in (f"image/{kind.lower()}", "application/octet-stream")
    ]
    lines_without_padding = base64.encodebytes(PNG).decode().replace("=", "")
    urls.append(f"data:image/png;base64,{lines_without_padding}")
    assert await refusals(*urls) == [""] * 17


def animated() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green")]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


BROKEN = {
    data_url(b""): "(0 bytes) cannot be opened; expected a complete image",
    data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"): "cannot be opened",
    data_url(image_bytes("BMP"), "image/bmp"): "formats PNG, JPEG, WEBP, GIF",
    data_url(image_bytes("EPS"), "image/png"): "formats PNG, JPEG, WEBP, GIF",
    data_url(image_bytes(size=(300, 300))[:150]): "cannot be opened",
    data_url(image_bytes("JPEG", (300, 300))[:900]): "truncated",
    data_url(animated(), "image/gif"): "is animated. Send a single frame",
    "data:image/png;base64,!!!": "cannot be decoded",
    "data:image/png;base64": "cannot be",
    "data:,hello": "it is not declared as base64",
    "data:text/html;base64,PGI+": "cannot be opened",
}


async def test_an_incomplete_or_broken_image_gets_a_400() -> None:
    for (url, reason), message in zip(BROKEN.items(), await refusals(*BROKEN), strict=True):
        assert reason in message, url[:80]


async def test_too_many_bytes_pixels_or_images_get_a_400(monkeypatch: Patch) -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="more than 100 images"):
            await ask(client, *seen(*[data_url(b"none is opened")] * 101))
        return 1.0

    await play_without_a_call(agent, renderer=vision())
    bomb = image_bytes(size=(9000, 9000), mode="1")
    assert len(bomb) < 20_000
    [message] = await refusals(data_url(bomb))
    assert "has 9000 x 9000 pixels; the limit is 50000000 pixels" in message

    monkeypatch.setattr(images, "MOST_BYTES", 50)
    [message] = await refusals(data_url())
    assert "is larger than 50 bytes" in message


ADDRESSES = [
    *("file:///etc/passwd", "FILE:///etc/passwd", " file:///etc/passwd", "/etc/passwd"),
    *("etc/passwd", "~/.ssh/id_rsa", "ftp://127.0.0.1/x.png", "gs://bucket/x.png"),
    *("http://127.0.0.1:1/x.png", "https://example.org/x.png?token=hidden", "//example.org"),
    *("http://[::1]/x.png", "jar:file:///x!/y", "", "http://", "http://[", "\x00"),
]


async def test_only_data_urls_are_opened(monkeypatch: Patch) -> None:
    opened: list[Any] = []

    def refuse(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        raise AssertionError(f"{arguments} was opened")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("aiohttp.ClientSession.__init__", refuse)
    for url, message in zip(ADDRESSES, await refusals(*ADDRESSES), strict=True):
        assert "evert does not fetch images from URLs such as" in message, url
        assert "Send the image itself as a data: URL" in message, url
        assert "'data:image/png;base64,' + base64.b64encode(content).decode()." in message, url
        assert "hidden" not in message
    assert not opened


def test_images_are_not_opened_or_rendered_on_the_event_loop() -> None:
    held = Images()
    text = Message(role="user", content="Hi")
    image: Any = {"role": "user", "content": [{"type": "image", "image": data_url()}]}

    assert held.check(text, 10) is text
    with pytest.raises(LongTextError):
        held.check(image, 10)
    assert held.check(image) == image
    with pytest.raises(LongTextError):
        held.check(text, 10)


async def test_the_same_rules_apply_to_images_for_frozen_models() -> None:
    texts, old = list[str](), ScriptedPolicy(["Red."], vision())

    def judge(messages: list[Message]) -> str:
        texts.append(json.dumps(messages[0]["content"]))
        return "Good."

    async def agent(client: AgentClient) -> float:
        for model in ("judge", "old"):
            with pytest.raises(openai.BadRequestError, match="not fetch .*'file:///etc/passwd'"):
                await ask(client, *seen("file:///etc/passwd"), model=model)
            await ask(client, *seen(data_url()), model=model)
        return 1.0

    await play_without_a_call(agent, renderer=vision(), models={"judge": judge, "old": old})
    assert [data_url() in text for text in texts] == [True]
    assert len(old.prompts) == 1


@as_agent(renderer=vision())
async def test_counting_tokens_reads_image_data_but_fetches_nothing(client: AgentClient) -> None:
    async def count(client: AgentClient, url: str) -> int:
        content: Any = [{"type": "image", "source": {"type": "url", "url": url}}]
        counted = await client.anthropic.messages.count_tokens(
            model="policy", messages=[{"role": "user", "content": content}]
        )
        return counted.input_tokens

    with pytest.raises(anthropic.BadRequestError, match="does not fetch"):
        await count(client, "http://127.0.0.1:9/a.png")
    assert await count(client, data_url()) > 1
