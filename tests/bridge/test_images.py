"""Images of an agent's messages: data, or fetched from hosts that somebody allowed.

1. Every dialect's data reaches the policy as a chunk, and what is no whole image is a 400.
2. No other address is ever opened by default: no file, no host, by whatever spelling.
3. A host that ``image_hosts`` names is asked, once an episode, within limits, and redirects lead to
   such hosts only.
4. The event loop goes on meanwhile, and a fetch ends with its episode.
5. Frozen models see images by the same rules.
"""

import asyncio
import base64
import functools
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
import pytest_asyncio
import tinker
import tinker_cookbook.renderers as cookbook
from aiohttp import web
from google import genai
from PIL import Image
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, ChatAgentEnv, EnvClosedError, ScriptedPolicy
from evert.bridge import images
from evert.bridge.base import base_tokenizer
from evert.bridge.images import Images, host_names, read_hosts
from evert.bridge.long_text import LongTextError


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

    made = Qwen2VLImageProcessor()
    return cookbook.get_renderer(
        "qwen3_vl_instruct", base_tokenizer(), image_processor=made, model_name="test"
    )


def seen(*urls: Any, text: str = "What is it?") -> list[Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


async def play(agent: Any, **options: Any) -> Trajectory:
    env = ChatAgentEnv(agent, renderer=vision(), **options)
    return await do_single_rollout(ScriptedPolicy(lambda prompt: "Red."), env)


def chunks(observation: tinker.ModelInput) -> list[Any]:
    return [chunk for chunk in observation.chunks if isinstance(chunk, tinker.types.ImageChunk)]


async def refusal(url: Any, **options: Any) -> str:
    """What an agent is told that sends one image, and then goes on without."""
    told: list[str] = []

    async def agent(client: AgentClient) -> float:
        try:
            await client.chat.completions.create(messages=seen(url))
        except openai.BadRequestError as error:
            told.append(error.message)
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return 1.0

    trajectory = await play(agent, **options)
    assert len(trajectory.transitions) == 2 - len(told)
    return told[0] if told else ""


# -- 1. data -------------------------------------------------------------------------------------


async def by_chat(client: AgentClient, url: str) -> str:
    said = await client.chat.completions.create(messages=seen(url))
    return said.choices[0].message.content or ""


async def by_responses(client: AgentClient, url: str) -> str:
    content = [{"type": "input_image", "image_url": url, "detail": "auto"}]
    asked: Any = [{"role": "user", "content": content}]
    return (await client.openai.responses.create(model="policy", input=asked)).output_text


async def by_anthropic(client: AgentClient, url: str) -> str:
    source: Any = {"type": "url", "url": url}
    if url.startswith("data:"):
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        source = {"type": "base64", "media_type": kind, "data": data}
    content: Any = [{"type": "image", "source": source}]
    asked: Any = [{"role": "user", "content": content}]
    said: Any = await client.anthropic.messages.create(
        model="policy", messages=asked, max_tokens=500
    )
    return str(said.content[0].text)


async def by_gemini(client: AgentClient, url: str) -> str:
    part = genai.types.Part.from_uri(file_uri=url, mime_type="image/png")
    if url.startswith("data:"):
        data = base64.b64decode(url.partition(",")[2])
        part = genai.types.Part.from_bytes(data=data, mime_type="image/png")
    said = await client.genai.aio.models.generate_content(model="policy", contents=part)
    return said.text or ""


Ask = Callable[[AgentClient, str], Awaitable[str]]
DIALECTS = [by_chat, by_responses, by_anthropic, by_gemini]
every_dialect = pytest.mark.parametrize("ask", DIALECTS, ids=lambda ask: ask.__name__)
REFUSED = (openai.BadRequestError, anthropic.BadRequestError, genai.errors.ClientError)


@every_dialect
async def test_data_of_every_dialect_reaches_the_policy(ask: Ask) -> None:
    async def agent(client: AgentClient) -> float:
        return float(await ask(client, data_url()) == "Red.")

    trajectory = await play(agent)

    assert trajectory.transitions[-1].reward == 1.0
    [chunk] = chunks(trajectory.transitions[0].ob)
    assert Image.open(io.BytesIO(chunk.data)).size == (64, 64)


@every_dialect
@pytest.mark.parametrize("url", ["file:///etc/hostname", "http://127.0.0.1:9/x.png"])
async def test_no_dialect_has_an_address_opened(ask: Ask, url: str) -> None:
    told: list[str] = []

    async def agent(client: AgentClient) -> float:
        with pytest.raises(REFUSED) as caught:
            await ask(client, url)
        told.append(str(caught.value))
        return 1.0

    env = ChatAgentEnv(agent, renderer=vision())
    found: Any = await env.initial_observation()

    assert found.reward == 1.0
    assert "is not fetched" in told[0]


async def test_a_file_of_openais_is_refused() -> None:
    async def agent(client: AgentClient) -> float:
        content: Any = [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]
        with pytest.raises(openai.BadRequestError, match="'input_image' with an image_url"):
            await client.openai.responses.create(model="policy", input=content)
        return 1.0

    found: Any = await ChatAgentEnv(agent, renderer=vision()).initial_observation()
    assert found.reward == 1.0


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
async def test_the_usual_formats_are_opened_whatever_their_name_says(kind: str, mode: str) -> None:
    content = image_bytes(kind, mode=mode)

    assert await refusal(data_url(content, f"image/{kind.lower()}")) == ""
    assert await refusal(data_url(content, "application/octet-stream")) == ""


async def test_base64_may_be_in_lines_and_without_its_padding() -> None:
    encoded = base64.encodebytes(PNG).decode().replace("=", "")

    assert await refusal(f"data:image/png;base64,{encoded}") == ""


def animated() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green")]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (data_url(b""), "cannot be opened (0 bytes); expected a whole image"),
        (
            data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
            "cannot be opened",
        ),
        (data_url(image_bytes("BMP"), "image/bmp"), "one of PNG, JPEG, WEBP, GIF"),
        (data_url(image_bytes("EPS"), "image/png"), "one of PNG, JPEG, WEBP, GIF"),
        (data_url(image_bytes(size=(300, 300))[:150]), "cannot be opened"),
        (data_url(image_bytes("JPEG", (300, 300))[:900]), "truncated"),
        (data_url(animated(), "image/gif"), "is animated; send one of its frames"),
        ("data:image/png;base64,!!!", "cannot be read"),
        ("data:image/png;base64", "cannot be"),
        ("data:,hello", "it is not marked as base64"),
        ("data:text/html;base64,PGI+", "cannot be opened"),
    ],
)
async def test_what_is_no_whole_image_is_a_400(url: str, reason: str) -> None:
    assert reason in await refusal(url)


async def test_an_image_of_too_many_bytes_or_pixels_is_a_400(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = image_bytes(size=(9000, 9000), mode="1")
    assert len(bomb) < 20_000
    assert "has 9000 x 9000 pixels; at most 50000000 are opened" in await refusal(data_url(bomb))

    monkeypatch.setattr(images, "MOST_BYTES", 50)
    assert "has more than 50 bytes" in await refusal(data_url())


async def test_a_message_of_too_many_images_is_a_400() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="more than 100 images"):
            await client.chat.completions.create(messages=seen(*[data_url()] * 101))
        return 1.0

    found: Any = await ChatAgentEnv(agent, renderer=vision()).initial_observation()
    assert found.reward == 1.0


async def test_an_image_of_pillows_may_be_passed_natively() -> None:
    async def agent(client: AgentClient) -> float:
        image = {"type": "image", "image": Image.new("RGB", (64, 64))}
        await client.chat.completions.create(messages=[{"role": "user", "content": [image]}])
        return 1.0

    trajectory = await play(agent)
    assert len(chunks(trajectory.transitions[0].ob)) == 1


async def test_a_conversation_with_images_is_one_lineage() -> None:
    async def agent(client: AgentClient) -> float:
        messages = seen(data_url())
        for _ in range(3):
            said = await client.chat.completions.create(messages=messages)
            messages.append(said.choices[0].message)
            messages += seen(data_url(image_bytes("JPEG"), "image/jpeg"), text="And this?")
        return 1.0

    trajectory = await play(agent)

    assert [len(chunks(turn.ob)) for turn in trajectory.transitions] == [1, 2, 3]
    assert trajectory.transitions[-1].metrics["lineages"] == 1
    assert trajectory.transitions[-1].metrics["drift"] == 0


# -- 2. no other address -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        " file:///etc/passwd",
        "/etc/passwd",
        "etc/passwd",
        "~/.ssh/id_rsa",
        "ftp://127.0.0.1/x.png",
        "gs://bucket/x.png",
        "http://127.0.0.1:1/x.png",
        "https://example.org/x.png",
        "//example.org/x.png",
        "http://[::1]/x.png",
        "jar:file:///x!/y",
        "",
        "http://",
        "http://[",
        "\x00",
    ],
)
async def test_no_other_address_is_opened(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError(f"{arguments} was opened")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("aiohttp.ClientSession.__init__", refuse)

    told = await refusal(url)

    assert "is not fetched. Images are data: URLs, or come from the hosts" in told
    assert "that image_hosts allows (none). Send it as data:image/png;base64,..." in told


async def test_a_refusal_says_how_to_allow_the_host_and_keeps_what_may_be_secret() -> None:
    told = await refusal("https://example.org/x.png?token=hidden", image_hosts=["http://a:80"])

    assert "'https://example.org/x.png' is not fetched" in told
    assert "image_hosts allows (http://a:80)" in told
    assert "allow its host: ChatAgentEnv(..., image_hosts=['example.org'])." in told
    assert "hidden" not in told
    assert "allow its host" not in await refusal("file:///etc/passwd")


# -- 3. hosts that are allowed -------------------------------------------------------------------


class Host:
    """A host of images on this machine."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.is_asked, self.goes_on = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append(path)
        self.is_asked.set()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if path == "/slow":
            await self.goes_on.wait()
        if path == "/round":
            raise web.HTTPFound(self.url + "/round")
        if path == "/endless":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b"x" * 10_000)
        if path == "/away":
            raise web.HTTPFound(request.query["to"])
        if path == "/missing":
            raise web.HTTPNotFound()
        return web.Response(body=b"no image" if path == "/page" else PNG)


@pytest_asyncio.fixture
async def host() -> AsyncIterator[Host]:
    made = Host()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    made.goes_on.set()
    await runner.cleanup()


@every_dialect
async def test_an_allowed_host_is_asked_once_an_episode(ask: Ask, host: Host) -> None:
    async def agent(client: AgentClient) -> float:
        said = [await ask(client, f"{host.url}/a.png") for _ in range(3)]
        return float(said == ["Red."] * 3)

    trajectory = await play(agent, image_hosts=host.url)

    assert trajectory.transitions[-1].reward == 1.0
    assert [len(chunks(turn.ob)) for turn in trajectory.transitions] == [1, 1, 1]
    assert host.asked == ["/a.png"]
    assert "cookie" not in host.headers[0]
    assert "authorization" not in host.headers[0]


async def test_a_conversation_is_known_by_the_address_that_the_agent_sent(host: Host) -> None:
    async def agent(client: AgentClient) -> float:
        messages = seen(f"{host.url}/a.png", data_url())
        for number in range(3):
            said = await client.chat.completions.create(messages=messages)
            messages.append(said.choices[0].message)
            messages += seen(f"{host.url}/{number}.png", f"{host.url}/a.png")
        return 1.0

    trajectory = await play(agent, image_hosts=[host.url])

    assert trajectory.transitions[-1].metrics["lineages"] == 1
    assert trajectory.transitions[-1].metrics["drift"] == 0
    assert [len(chunks(turn.ob)) for turn in trajectory.transitions] == [2, 4, 6]
    assert sorted(host.asked) == ["/0.png", "/1.png", "/a.png"]


async def test_redirects_lead_to_allowed_hosts_only(host: Host) -> None:
    for place in ("file:///etc/passwd", "http://127.0.0.1:1/", "//localhost/x", "https://a.b/"):
        told = await refusal(f"{host.url}/away?to={place}", image_hosts=[host.url])
        assert "is not fetched" in told
    assert await refusal(f"{host.url}/away?to=/b.png", image_hosts=[host.url]) == ""
    assert host.asked[-1] == "/b.png"
    told = await refusal(f"{host.url}/round", image_hosts=[host.url])
    assert "was redirected more than 3 times" in told


async def test_a_host_is_allowed_with_its_scheme_and_port_alone(host: Host) -> None:
    for allowed in ("127.0.0.1", "https://127.0.0.1", "http://127.0.0.1", "http://127.0.0.1:1"):
        assert "is not fetched" in await refusal(f"{host.url}/a.png", image_hosts=[allowed])
    for url in (f"{host.url}@a.example/x.png", f"{host.url.replace('127.0.0.1', 'localhost')}/x"):
        assert "is not fetched" in await refusal(url, image_hosts=[host.url])
    assert host.asked == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/page", "cannot be opened (8 bytes)"),
        ("/missing", "came HTTP 404"),
        ("/endless", "has more than 100000 bytes"),
    ],
)
async def test_what_a_host_answers_is_no_image_is_a_400(
    path: str, reason: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MOST_BYTES", 100_000)

    assert reason in await refusal(host.url + path, image_hosts=[host.url])


async def test_a_host_that_cannot_be_reached_is_a_400() -> None:
    told = await refusal("http://127.0.0.1:1/x.png", image_hosts=["http://127.0.0.1:1"])

    assert "The image 'http://127.0.0.1:1/x.png' cannot be fetched" in told


async def test_a_host_that_does_not_answer_in_time_is_a_400(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "FETCH_SECONDS", 0.1)

    told = await refusal(f"{host.url}/slow", image_hosts=[host.url])
    assert f"Not fetched within 0.1 s: '{host.url}/slow'. Send data: URLs." in told


async def test_no_more_is_fetched_than_an_episode_may_hold(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [seen(f"{host.url}/{number}.png")[0] for number in range(101)]
    with pytest.raises(openai.BadRequestError, match="101 images are to be fetched; at most 100"):
        await Images(host.url).fetch(many)
    assert host.asked == []

    monkeypatch.setattr(images, "MOST_FETCHED_BYTES", 2 * len(PNG))
    held = Images(host.url)
    await held.fetch(many[:2])
    with pytest.raises(openai.BadRequestError, match="images of this episode have more than"):
        await held.fetch(many[:3])


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("example.org", ("https", "example.org", 443)),
        ("Example.ORG.", ("https", "example.org", 443)),
        ("example.org:8443", ("https", "example.org", 8443)),
        ("http://10.0.0.3:8000", ("http", "10.0.0.3", 8000)),
        ("http://[::1]:80/", ("http", "::1", 80)),
        ("https://bücher.example", ("https", "bücher.example", 443)),
    ],
)
def test_hosts_are_read(given: str, origin: Any) -> None:
    assert read_hosts(given) == read_hosts([given]) == {origin}
    assert host_names([given]) == (origin[1],)


@pytest.mark.parametrize(
    "given",
    ["", "*", "file:///", "ftp://x", "https://x/path", "x/path", "a b", "https://u:p@x", "x?y", 5],
)
def test_what_is_no_host_is_refused(given: Any) -> None:
    async def agent(client: AgentClient) -> float:
        return 1.0

    with pytest.raises(ValueError, match="expected hosts such as 'example.org'"):
        ChatAgentEnv(agent, image_hosts=[given])


# -- 4. beside the loop --------------------------------------------------------------------------


def test_no_image_is_opened_on_the_loop_and_none_is_rendered_there_again() -> None:
    held = Images()
    text = Message(role="user", content="Hi")
    image: Any = {"role": "user", "content": [{"type": "image", "image": data_url()}]}

    assert held.shown(text, 10) is text
    with pytest.raises(LongTextError):
        held.shown(image, 10)
    assert held.shown(image) == image
    with pytest.raises(LongTextError):
        held.shown(text, 10)


async def test_closing_an_env_ends_its_fetch(host: Host) -> None:
    async def agent(client: AgentClient) -> float:
        await client.chat.completions.create(messages=seen(f"{host.url}/slow"))
        return 1.0

    env = ChatAgentEnv(agent, renderer=vision(), image_hosts=[host.url])
    beginning = asyncio.create_task(env.initial_observation())
    await host.is_asked.wait()
    await env.close()

    with pytest.raises(EnvClosedError):
        await beginning
    assert not host.goes_on.is_set()
    assert not [task for task in asyncio.all_tasks() if "Images" in repr(task)]


async def test_evert_s_own_fetch_is_never_taken_over(host: Host) -> None:
    """An agent may play an episode of another, whose images are fetched in its context."""

    async def inner(client: AgentClient) -> float:
        await client.chat.completions.create(messages=seen(f"{host.url}/v1/chat/completions"))
        return 1.0

    async def outer() -> float:
        trajectory = await play(inner, image_hosts=[host.url])
        return trajectory.transitions[-1].reward

    found: Any = await ChatAgentEnv(outer).initial_observation()
    assert found.reward == 1.0
    assert host.asked == ["/v1/chat/completions"]


# -- 5. frozen models ----------------------------------------------------------------------------


class Judge(MessageCompleter):
    """A frozen model that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def __call__(self, messages: list[Message]) -> Message:
        self.shown.append(json.dumps(messages[0]["content"]))
        return Message(role="assistant", content="Good.")


async def test_a_frozen_model_sees_images_by_the_same_rules(host: Host) -> None:
    judge = Judge()

    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="'file:///etc/passwd' is not fetched"):
            await client.chat.completions.create(model="judge", messages=seen("file:///etc/passwd"))
        await client.chat.completions.create(model="judge", messages=seen(f"{host.url}/a.png"))
        return 1.0

    env = ChatAgentEnv(agent, models={"judge": judge}, image_hosts=[host.url])
    found: Any = await env.initial_observation()

    assert found.reward == 1.0
    [shown] = judge.shown
    assert data_url() in shown


async def test_a_frozen_policy_of_tokens_does_so_too() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="'file:///etc/passwd' is not fetched"):
            await client.chat.completions.create(model="old", messages=seen("file:///etc/passwd"))
        await client.chat.completions.create(model="old", messages=seen(data_url()))
        return 1.0

    old = ScriptedPolicy(["Red."], vision())
    found: Any = await ChatAgentEnv(
        agent, renderer=vision(), models={"old": old}
    ).initial_observation()

    assert found.reward == 1.0
    assert len(old.prompts) == 1


async def test_tokens_are_counted_of_data_and_nothing_is_fetched_for_it(host: Host) -> None:
    async def count(client: AgentClient, url: str) -> int:
        content: Any = [{"type": "image", "source": {"type": "url", "url": url}}]
        counted = await client.anthropic.messages.count_tokens(
            model="policy", messages=[{"role": "user", "content": content}]
        )
        return counted.input_tokens

    async def agent(client: AgentClient) -> float:
        with pytest.raises(anthropic.BadRequestError, match="is not fetched"):
            await count(client, f"{host.url}/a.png")
        return float(await count(client, data_url()) > 1)

    env = ChatAgentEnv(agent, renderer=vision(), image_hosts=[host.url])
    found: Any = await env.initial_observation()

    assert found.reward == 1.0
    assert host.asked == []


def test_frozen_models_share_the_images_of_the_episode() -> None:
    async def agent(client: AgentClient) -> float:
        return 1.0

    env = ChatAgentEnv(agent, models={"judge": lambda messages: "Yes."}, image_hosts="a.example")
    in_time = env._frozen["judge"]
    assert isinstance(in_time, functools.partial)
    assert env._turns.images in in_time.args[0].args
