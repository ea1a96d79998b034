"""``lm15``, the HTTP client below DSPy's own engine, which has neither httpx nor a base class: a
router over ``client.transport``, and what its import has to do with take-over.

An agent's own routers are among the calls of ``sdk_calls.py``. DSPy, with the lm15 that it brings,
is played in ``tests/frameworks``.
"""

import asyncio
import contextvars
import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import lm15
import pytest
from tests.bridge.faces.sdk_calls import LM15
from tests.kit import asks, play, reward

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv
from evert.bridge.clients import takeover


async def test_a_router_over_the_clients_transport_needs_no_context() -> None:
    """A thread that was started before the agent, as frameworks have them."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: None).result()

        async def agent(client: AgentClient) -> bool:
            own: Any = {"model": "gpt-5.2", "transport": client.transport}
            outside: Any = contextvars.Context()
            said: list[Any] = []
            for router in LM15.values():
                pending = outside.run(pool.submit, partial(router.ask_blocking, "Hi", **own))
                said += [await asyncio.wrap_future(pending), await router.ask("Hi", **own)]
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
async def test_an_agent_may_be_the_first_to_import_it_and_evert_itself_never_does() -> None:
    async def agent() -> bool:
        assert "lm15" not in sys.modules
        fresh: Any = importlib.import_module("lm15")
        assert fresh is not lm15
        messages = (fresh.Message.user("Hello?"),)
        config = fresh.router.RouterConfig(env={"OPENAI_API_KEY": "x"})
        async with fresh.AsyncLMRouter(config) as router:
            request = fresh.Request(model="openai-chat:policy", messages=messages)
            return str((await router.complete(request)).text) == "Fine."

    await play(asks)
    assert reward(await play(agent)) == 1.0


async def test_remove_leaves_it_as_it_was() -> None:
    takeover.remove()
    transports: Any = importlib.import_module("lm15.transports")
    classes = (transports.StdlibTransport, transports.StdlibAsyncTransport)
    before = [*sys.meta_path, *(vars(one)["stream"] for one in classes)]

    for _ in range(2):
        takeover.install()
        assert [vars(one)["stream"] for one in classes] != before[-2:]
    takeover.remove()
    assert [*sys.meta_path, *(vars(one)["stream"] for one in classes)] == before


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
    assert ["was closed: this rollout is over" in str(error) for error in told] == [True]
