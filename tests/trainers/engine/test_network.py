"""While the engine is in use, nothing leaves this machine.

1. Loopback and Unix sockets work; every other address is refused, by name or by number.
2. The SDK's own client, built directly, cannot get out either.
3. Allowed hosts get through; blocks nest; the last one out restores everything.
4. An agent that asks for another model than the policy is told both names, by its own SDK.
"""

import asyncio
import socket
import threading
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import httpx
import huggingface_hub.constants
import openai
import pytest
import tinker
from tinker import RestClient as SdkRestClient
from tinker import ServiceClient as SdkServiceClient

from evert import AgentError, ChatAgentEnv
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import NetworkRefusedError
from evert.trainers.engine.common.network import network_is_refused, no_network

WAS_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE
OUTSIDE = ("192.0.2.1", 80)
"""An address reserved for documentation: nobody answers there."""


def test_a_connection_to_another_machine_is_refused() -> None:
    with no_network(), closing(socket.socket()) as door:
        for attempt in (door.connect, door.connect_ex):
            with pytest.raises(NetworkRefusedError, match=r"'192\.0\.2\.1'.*allow_hosts"):
                attempt(OUTSIDE)


def test_a_datagram_to_another_machine_is_refused() -> None:
    kind = socket.SOCK_DGRAM
    with no_network(), closing(socket.socket(socket.AF_INET, kind)) as door:
        with pytest.raises(NetworkRefusedError):
            door.sendto(b"", OUTSIDE)
        with pytest.raises(NetworkRefusedError):
            door.sendto(b"", 0, OUTSIDE)


@pytest.mark.parametrize("host", ["example.com", b"example.com", "192.0.2.1", "2001:db8::1"])
def test_a_name_is_refused_before_it_is_looked_up(host: str | bytes) -> None:
    with no_network(), pytest.raises(NetworkRefusedError):
        socket.getaddrinfo(host, 443)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1", "0.0.0.0", None])
def test_this_machine_may_be_looked_up(host: str | None) -> None:
    with no_network():
        assert socket.getaddrinfo(host, 80)


def test_a_loopback_connection_works() -> None:
    with (
        no_network(),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"hello")
            assert client.recv(5) == b"hello"


def test_a_unix_socket_works(tmp_path: Path) -> None:
    address = str(tmp_path / "s")
    with no_network(), closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(address)
        server.listen()
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(address)


def test_http_clients_are_refused_at_once_and_not_retried() -> None:
    with no_network(), pytest.raises(NetworkRefusedError):
        httpx.get("http://example.com")


async def test_asynchronous_connections_are_refused() -> None:
    with no_network(), pytest.raises(NetworkRefusedError):
        await asyncio.open_connection(*OUTSIDE)


def test_other_threads_are_refused_too() -> None:
    caught: list[BaseException] = []

    def attempt() -> None:
        try:
            socket.create_connection(OUTSIDE, timeout=0.1)
        except NetworkRefusedError as error:
            caught.append(error)

    with no_network():
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    assert len(caught) == 1


def test_the_sdks_own_clients_are_refused_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-not-a-key")
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    assert SdkServiceClient is not tinker.ServiceClient
    with pytest.raises(NetworkRefusedError, match="thinkingmachines"):
        SdkServiceClient().create_sampling_client(base_model="some/model")
    with pytest.raises(NetworkRefusedError):
        SdkRestClient()


def test_allowed_hosts_get_through_with_the_addresses_they_resolve_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", OUTSIDE)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [entry])
    with no_network(allow_hosts=("tool.example",)):
        assert socket.getaddrinfo("tool.example", 80) == [entry]
        assert not network_is_refused("192.0.2.1")
        with pytest.raises(NetworkRefusedError):
            socket.getaddrinfo("other.example", 80)


def test_nested_blocks_must_all_allow_a_host() -> None:
    with no_network(allow_hosts=("a", "b")), no_network(allow_hosts=("b", "c")):
        assert not network_is_refused("b")
        assert network_is_refused("a")
        assert network_is_refused("c")


def test_the_hub_is_offline_inside_so_that_cached_models_load() -> None:
    with no_network():
        assert huggingface_hub.constants.is_offline_mode()
    assert huggingface_hub.constants.HF_HUB_OFFLINE == WAS_OFFLINE


def test_the_hub_is_not_offline_where_it_is_allowed() -> None:
    with no_network(allow_hosts=("huggingface.co",)):
        assert not network_is_refused("huggingface.co")
        assert huggingface_hub.constants.HF_HUB_OFFLINE == WAS_OFFLINE


def test_leaving_the_last_block_restores_everything() -> None:
    before = (socket.getaddrinfo, socket.socket.connect, dict(vars(socket.socket)))
    with no_network():
        with no_network():
            pass
        assert network_is_refused("example.com")
    assert before == (socket.getaddrinfo, socket.socket.connect, dict(vars(socket.socket)))
    assert not network_is_refused("example.com")


def test_an_error_inside_the_block_lowers_the_guard_too() -> None:
    with pytest.raises(KeyError), no_network():
        raise KeyError
    assert not network_is_refused("example.com")


# -- 4. an agent's own client ----------------------------------------------------------------------

HELLO: Any = [{"role": "user", "content": "Hello?"}]


def ask_openai() -> None:
    openai.OpenAI(api_key="x").chat.completions.create(model="gpt-5.2", messages=HELLO)


def ask_anthropic() -> None:
    anthropic.Anthropic(api_key="x").messages.create(model="gpt-5.2", messages=HELLO, max_tokens=9)


async def ask_openai_async() -> None:
    async with openai.AsyncOpenAI(api_key="x") as client:
        await client.responses.create(model="gpt-5.2", input="Hello?")


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic, ask_openai_async])
async def test_another_model_than_the_policy_is_a_400_that_names_both(ask: Any) -> None:
    with no_network(), pytest.raises(AgentError) as caught:
        await ChatAgentEnv(ask).initial_observation()

    assert type(caught.value).__name__ == "AgentError.BadRequestError"
    assert "The agent asked for 'gpt-5.2'; the policy is called 'policy'." in str(caught.value)
    assert "policy_names='gpt-5.2'" in str(caught.value)
    assert "allow_hosts" not in str(caught.value)


async def test_a_client_that_cannot_be_taken_over_is_told_what_to_take() -> None:
    def agent() -> None:
        urllib.request.urlopen("http://api.openai.com/v1/chat/completions", b"{}")

    with (
        no_network(),
        pytest.raises(AgentError, match=r"takes client\.base_url and client\.api_key"),
    ):
        await ChatAgentEnv(agent).initial_observation()


def test_code_outside_of_agents_is_told_of_the_engine_alone() -> None:
    with no_network(), pytest.raises(NetworkRefusedError) as caught:
        httpx.get("http://example.com")

    assert str(caught.value).endswith("if it is meant to be reached.")
