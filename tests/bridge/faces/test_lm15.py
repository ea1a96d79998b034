"""``lm15``, the HTTP client below DSPy's own engine, which has neither httpx nor a base class: a
router over ``client.transport``, and what its import has to do with take-over.

An agent's own routers are among the calls of ``sdk_calls.py``. DSPy, with the lm15 that it brings,
is played in ``tests/frameworks``.
"""

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import lm15
import pytest
from tests.bridge.faces.sdk_calls import LM15
from tests.kit import asks, play, reward

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv
from evert.bridge.clients import takeover


async def test_a_router_over_the_clients_transport_needs_no_context() -> None:
    """A thread that was started before the agent, as frameworks have them."""
    given: list[Any] = []
    said: list[str] = []
    ready = threading.Event()

    def work() -> None:
        ready.wait()
        for router in LM15.values():
            said.append(router.ask_blocking("Hi", "gpt-5.2", transport=given[0].transport))

    thread = threading.Thread(target=work)
    thread.start()

    async def agent(client: AgentClient) -> bool:
        given.append(client)
        ready.set()
        await asyncio.to_thread(thread.join)
        for router in LM15.values():
            said.append(await router.ask("Hi", "gpt-5.2", transport=client.transport))
        return said == ["Fine."] * 6

    assert reward(await play(agent)) == 1.0


# -- when it is imported -------------------------------------------------------------------------


@pytest.fixture
def not_imported() -> Iterator[None]:
    """lm15 as if nobody had imported it yet."""
    names = [name for name in sys.modules if name.partition(".")[0] == "lm15"]
    kept = {name: sys.modules.pop(name) for name in names}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm15"]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.mark.usefixtures("not_imported")
async def test_an_agent_may_be_the_first_to_import_it() -> None:
    async def agent() -> bool:
        fresh: Any = importlib.import_module("lm15")
        assert fresh is not lm15
        messages = (fresh.Message.user("Hello?"),)
        config = fresh.router.RouterConfig(env={"OPENAI_API_KEY": "x"})
        async with fresh.AsyncLMRouter(config) as router:
            request = fresh.Request(model="openai-chat:policy", messages=messages)
            return str((await router.complete(request)).text) == "Fine."

    assert reward(await play(agent)) == 1.0


@pytest.mark.usefixtures("not_imported")
async def test_evert_itself_never_imports_it() -> None:
    await play(asks)

    assert "lm15" not in sys.modules


async def test_remove_leaves_it_as_it_was() -> None:
    takeover.remove()
    transports: Any = importlib.import_module("lm15.transports")
    classes = (transports.StdlibTransport, transports.StdlibAsyncTransport)
    before = [vars(one)["stream"] for one in classes]
    finders = [*sys.meta_path]

    takeover.install()
    takeover.install()
    assert [vars(one)["stream"] for one in classes] != before
    takeover.remove()

    assert [vars(one)["stream"] for one in classes] == before
    assert sys.meta_path == finders


async def test_a_rollout_that_is_given_up_answers_what_waits() -> None:
    told: list[lm15.InvalidRequestError] = []

    def agent(client: BlockingAgentClient) -> float:
        try:
            LM15["openai-chat"].ask_blocking("Hi", transport=client.transport)
        except lm15.InvalidRequestError as error:
            told.append(error)
        return 0.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()

    [error] = told
    assert "was closed: this rollout is over" in str(error)
