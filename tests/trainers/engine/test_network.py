"""While the engine is in use, this process can reach only this machine and allowed hosts."""

import asyncio
import multiprocessing
import multiprocessing.spawn
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import anthropic
import httpx
import huggingface_hub.constants
import openai
import pytest
import tinker
from tests.kit import Patch
from tests.nightly import each
from tests.trainers.kit import sampler_of, sequences, snapshot, trainer_of
from tinker import RestClient as SdkRestClient
from tinker import ServiceClient as SdkServiceClient

from evert import AgentError, ChatAgentEnv
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import NetworkRefusedError
from evert.trainers.engine.common.network import network_is_refused, no_network
from evert.trainers.engine.embedded import embedded_engine

WAS_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE
OUTSIDE = ("192.0.2.1", 80)
"""An address reserved for documentation, where nothing answers."""


def test_other_machines_cannot_be_reached_by_any_kind_of_connection() -> None:
    kind = socket.SOCK_DGRAM
    with (
        no_network(),
        closing(socket.socket()) as door,
        closing(socket.socket(socket.AF_INET, kind)) as datagrams,
    ):
        ways: list[Callable[[], Any]] = [
            lambda: door.connect(OUTSIDE),
            lambda: door.connect_ex(OUTSIDE),
            lambda: datagrams.sendto(b"", OUTSIDE),
            lambda: datagrams.sendto(b"", 0, OUTSIDE),
            lambda: datagrams.sendmsg([b""], [], 0, OUTSIDE),
        ]
        for way in ways:
            with pytest.raises(NetworkRefusedError, match=r"'192\.0\.2\.1'.*allow_hosts"):
                way()
            with ThreadPoolExecutor() as other, pytest.raises(NetworkRefusedError):
                other.submit(way).result()
        with pytest.raises(NetworkRefusedError):
            asyncio.run(asyncio.open_connection(*OUTSIDE))
        with pytest.raises(NetworkRefusedError) as caught:  # immediately, without a retry
            httpx.get("http://example.com")
    # Outside an agent, the error mentions only the engine.
    assert str(caught.value).endswith("or add the host to `allow_hosts`.")


def test_names_of_other_machines_are_refused_before_any_lookup() -> None:
    with no_network():
        for other in ("example.com", b"example.com", "192.0.2.1", "2001:db8::1"):
            with pytest.raises(NetworkRefusedError):
                socket.getaddrinfo(other, 443)
        for host in ("localhost", "127.0.0.1", "127.3.2.1", "::1", "0.0.0.0", None):
            assert socket.getaddrinfo(host, 80), host


@pytest.mark.parametrize("kind", ["loopback", "unix"])
def test_connections_within_this_machine_work(kind: str, tmp_path: Path) -> None:
    address: Any = str(tmp_path / "s") if kind == "unix" else ("127.0.0.1", 0)
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with (
        no_network(),
        socket.create_server(address, family=family) as server,
        closing(socket.socket(family)) as client,
    ):
        client.connect(server.getsockname())
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"hello")
            assert client.recv(5) == b"hello"


def test_the_sdks_own_clients_are_refused_immediately(engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-not-a-key")
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    assert SdkServiceClient is not tinker.ServiceClient
    with pytest.raises(NetworkRefusedError, match="thinkingmachines"):
        SdkServiceClient().create_sampling_client(base_model="some/model")
    with pytest.raises(NetworkRefusedError):
        SdkRestClient()


def ask_as_a_child(_: object = None) -> tuple[list[str], str]:
    """Create a sampling client; return the hosts that were looked up, and the error."""
    hosts: list[str] = []
    errors: list[str] = []

    def refuse(host: Any, *_: Any, **__: Any) -> Any:
        hosts.append(str(host))
        raise OSError("no network in this test")

    def ask() -> None:
        try:
            sampler_of("some/model")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    socket.getaddrinfo = refuse
    asking = threading.Thread(target=ask, daemon=True)  # the SDK would retry for minutes
    asking.start()
    asking.join(30)
    return hosts, "".join(errors)


WITHOUT_EVERT = """
import socket, sys, tinker
socket.getaddrinfo = lambda *_, **__: sys.exit("it asked")
tinker.ServiceClient().create_sampling_client(base_model="some/model")
"""


@pytest.mark.parametrize("key", each(["tml-not-a-key", None], ["tml-not-a-key"]))
def test_a_child_process_looks_up_no_host_and_gets_an_error_with_what_to_do(
    key: str | None, tmp_path: Path, monkeypatch: Patch
) -> None:
    if key is None:
        monkeypatch.delenv("TINKER_API_KEY", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))  # no stored key
    else:
        monkeypatch.setenv("TINKER_API_KEY", key)
    advice = "available in that process. Pass a sampling client to this process as an argument"
    contexts = [multiprocessing.get_context(how) for how in ("forkserver", "spawn")]
    with contexts[0].Pool(1) as early:  # starts the fork server before the engine
        early.apply(os.getpid)
    with embedded_engine(tmp_path, device="cpu", threads=1):
        for context in contexts:
            with context.Pool(1) as pool:
                hosts, error = pool.apply(ask_as_a_child)
            assert (hosts, advice in error) == ([], True), error
        command = [sys.executable, "-c", WITHOUT_EVERT]
        done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
        assert advice in done.stderr


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_learns_that_the_engine_is_gone(tmp_path: Path, tiny_model: str) -> None:
    with embedded_engine(tmp_path, device="cpu", threads=1) as engine:
        training = trainer_of(tiny_model)
        sampling = snapshot(training)
        busy = threading.Event()
        engine.loader.submit(busy.wait, 60)
        loading = sampler_of(tiny_model)

        ways: list[Callable[[], Any]] = [
            lambda: sampler_of(tiny_model),
            lambda: trainer_of(tiny_model),
            lambda: training.save_state("x").result(),
            lambda: sequences(sampling),
            lambda: loading.sampler,
            lambda: asyncio.run(loading.result_async()),
        ]
        for way in ways:
            assert _error_in_a_fork(way).startswith("EngineClosedError: This process was forked")
        assert _error_in_a_fork(engine.close) == ""
        busy.set()
        assert training.save_state("x").result().path


def _error_in_a_fork(call: Callable[[], Any]) -> str:
    here, there = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        try:
            call()
            there.send("")
        except Exception as error:
            there.send(f"{type(error).__name__}: {error}")

    child = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    child.start()
    try:
        assert here.poll(60), "the child hangs"
        return str(here.recv())
    finally:
        child.kill()
        child.join()


def test_allowed_hosts_and_their_addresses_can_be_reached(monkeypatch: Patch) -> None:
    entry = (socket.AF_INET, socket.SOCK_STREAM, 6, "", OUTSIDE)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [entry])
    with no_network(allow_hosts=("tool.example",)):
        assert socket.getaddrinfo("tool.example", 80) == [entry]
        assert not network_is_refused("192.0.2.1")
        with pytest.raises(NetworkRefusedError):
            socket.getaddrinfo("other.example", 80)
    # With nested blocks, every block must allow the host.
    with no_network(allow_hosts=("a", "b")), no_network(allow_hosts=("b", "c")):
        assert [network_is_refused(host) for host in "abc"] == [True, False, True]


def test_the_hub_is_in_offline_mode_unless_it_is_allowed() -> None:
    with no_network():
        assert huggingface_hub.constants.is_offline_mode()
    assert huggingface_hub.constants.HF_HUB_OFFLINE == WAS_OFFLINE
    with no_network(allow_hosts=("huggingface.co",)):
        assert not network_is_refused("huggingface.co")
        assert huggingface_hub.constants.HF_HUB_OFFLINE == WAS_OFFLINE


def test_leaving_the_outermost_block_restores_everything(monkeypatch: Patch) -> None:
    def state() -> tuple[Any, ...]:
        prepare = multiprocessing.spawn.get_preparation_data
        here = (socket.getaddrinfo, prepare, dict(vars(socket.socket)))
        return (*here, {**os.environ, "PYTEST_CURRENT_TEST": ""})

    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:8000")
    monkeypatch.delenv("TINKER_CREDENTIAL_CMD", raising=False)
    before = state()
    with no_network():
        with pytest.raises(KeyError), no_network():
            raise KeyError
        assert network_is_refused("example.com")
        assert before[-1] != state()[-1]
    assert before == state()
    assert not network_is_refused("example.com")


HELLO: Any = [{"role": "user", "content": "Hello?"}]


def ask_openai() -> None:
    openai.OpenAI(api_key="x").chat.completions.create(model="gpt-5.2", messages=HELLO)


def ask_anthropic() -> None:
    anthropic.Anthropic(api_key="x").messages.create(model="gpt-5.2", messages=HELLO, max_tokens=9)


async def ask_openai_async() -> None:
    async with openai.AsyncOpenAI(api_key="x") as client:
        await client.responses.create(model="gpt-5.2", input="Hello?")


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic, ask_openai_async])
async def test_a_call_to_another_model_is_a_400_that_names_both_models(ask: Any) -> None:
    with no_network(), pytest.raises(AgentError) as caught:
        await ChatAgentEnv(ask).initial_observation()
    assert type(caught.value).__name__ == "AgentError.BadRequestError"
    assert "The agent requested 'gpt-5.2'; the policy is called 'policy'." in str(caught.value)
    assert "policy_names='gpt-5.2'" in str(caught.value)
    assert "allow_hosts" not in str(caught.value)


async def test_a_client_that_cannot_be_intercepted_gets_an_error_with_an_alternative() -> None:
    def agent() -> None:
        urllib.request.urlopen("http://api.openai.com/v1/chat/completions", b"{}")

    remedy = r"use client\.base_url and client\.api_key"
    with no_network(), pytest.raises(AgentError, match=remedy):
        await ChatAgentEnv(agent).initial_observation()
