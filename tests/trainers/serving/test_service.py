"""Samples requested over HTTP match those drawn in the serving process."""

import asyncio
import math
import pickle
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import tinker
from tests.kit import Logs, Patch, until
from tests.trainers.kit import sampler_of
from tests.trainers.serving.conftest import prompt
from tinker_cookbook.completers import TinkerTokenCompleter

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import EngineClosedError, SamplingRequestError
from evert.trainers.serving import connection
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.errors import NotServedError, ServerGoneError, ServingError
from evert.trainers.serving.service import PolicyService
from evert.trainers.serving.wire import CompletionRequest

Sampled = list[tuple[list[int], list[float] | None, str]]


async def sampled(client: Any, params: Sequence[tinker.SamplingParams]) -> Sampled:
    """Sample one reply for each set of parameters, concurrently."""
    requests = [client.sample_async(prompt(f"Hi {i}"), 1, way) for i, way in enumerate(params)]
    replies = [answer.sequences[0] for answer in await asyncio.gather(*requests)]
    return [(reply.tokens, reply.logprobs, reply.stop_reason) for reply in replies]


def how(index: int, **fields: object) -> tinker.SamplingParams:
    return tinker.SamplingParams(**{"max_tokens": 12, "seed": index, **fields})  # type: ignore[arg-type]


LONG = how(0, stop=[], max_tokens=900)
WAYS: list[dict[str, Any]] = [
    {}, {"stop": ["<|im_end|>"]}, {"stop": [3]}, {"stop": []}, {"temperature": 0},
    {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"max_tokens": 1}, *({} for _ in range(20)),
]  # fmt: skip


async def test_served_samples_equal_in_process_samples(client: Any, service: PolicyService) -> None:
    ways = [how(index, **way) for index, way in enumerate(WAYS)]
    there = await sampled(service.offer(client), ways)
    here = await sampled(client, ways)
    for (tokens, logprobs, reason), expected in zip(there, here, strict=True):
        assert (tokens, reason) == (expected[0], expected[2])
        # Other rows in the batch may change the last bit.
        assert logprobs == pytest.approx(expected[1], abs=1e-5)


async def test_scoring_over_http_changes_no_sample(client: Any, service: PolicyService) -> None:
    served, hot = service.offer(client), tinker.SamplingParams(max_tokens=8, temperature=5)
    scored = await served.compute_logprobs_async(prompt())
    there = await served.sample_async(prompt(), 1, hot)
    answer = await served.sample_async(prompt(), 1, how(0), include_prompt_logprobs=True)
    assert answer.prompt_logprobs == scored == await client.compute_logprobs_async(prompt())
    client.sampler._request_counts.clear()
    first, second = [await client.sample_async(prompt(), 1, hot) for _ in range(2)]
    assert there.sequences[0].tokens == first.sequences[0].tokens != second.sequences[0].tokens


def test_a_served_client_works_in_any_event_loop_or_without_one(
    client: Any, service: PolicyService
) -> None:
    served = pickle.loads(pickle.dumps(service.offer(client)))
    replies = served.sample(prompt(), 3, how(1)).result().sequences
    for index in range(3):
        asyncio.run(served.sample_async(prompt(), 1, how(index)))
    completer = TinkerTokenCompleter(served, max_tokens=5)
    action = asyncio.run(completer(prompt(), ["<|im_end|>"]))
    expected = client.sample(prompt(), 3, how(1)).result().sequences
    assert [r.tokens for r in replies] == [r.tokens for r in expected]
    assert served.get_base_model() == "evert-tiny"
    assert served.get_tokenizer().encode("Hi") == client.get_tokenizer().encode("Hi")
    assert len(action.tokens) == len(action.logprobs) <= 5
    assert not [loop for loop, _ in connection._open if loop.is_closed()]


async def test_the_error_for_withdrawn_weights_names_them(
    client: Any, service: PolicyService
) -> None:
    served, again = service.offer(client), service.offer(client)
    assert again.model == served.model
    assert [model["id"] for model in await served.models()] == [served.model]
    service.withdraw(client)
    service.withdraw(client)
    with pytest.raises(NotServedError, match="'policy-1' are no longer served.*available: none"):
        await served.sample_async(prompt(), 1, how(0))
    newer = service.offer(client)
    with pytest.raises(NotServedError, match="Currently available: policy-2"):
        await served.sample_async(prompt(), 1, how(0))
    assert (await newer.sample_async(prompt(), 1, how(0))).sequences


async def test_models_can_be_listed_while_others_are_offered(
    client: Any, service: PolicyService, monkeypatch: Patch
) -> None:
    """A trainer's thread may offer new weights at any time."""
    served = service.offer(client)
    newer = sampler_of("evert-tiny")

    def base_model() -> str:
        service.offer(newer)
        return "evert-tiny"

    monkeypatch.setattr(client, "get_base_model", base_model)
    assert [model["id"] for model in await served.models()] == [served.model]


async def test_errors_of_the_engine_arrive_unchanged(
    client: Any, service: Any, engine: Engine
) -> None:
    served = service.offer(client)
    options: dict[str, Any]
    for options in ({"max_tokens": 10**6}, {"temperature": math.nan}, {"top_p": -1}, {"top_k": 0}):
        messages = []
        for sampler in (served, client):
            with pytest.raises(SamplingRequestError) as caught:
                await sampler.sample_async(prompt(), 1, how(0, **options))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    engine.close()
    with pytest.raises(EngineClosedError, match="no longer in use"):
        await served.sample_async(prompt(), 1, how(0))


async def test_closing_a_service_cancels_its_callers_requests(client: Any) -> None:
    with PolicyService() as service:
        served = service.offer(client)
        requests = [served.sample_async(prompt(f"{i}"), 1, LONG) for i in range(8)]
        long = [asyncio.create_task(request) for request in requests]
        await until(lambda: service.requests == len(long))
    ends = await asyncio.gather(*long, return_exceptions=True)
    assert {type(end) for end in ends} == {ServerGoneError}
    service.close()
    with pytest.raises(ServerGoneError, match="Check that the server, or the trainer"):
        await served.sample_async(prompt(), 1, how(0))


async def test_a_caller_that_disconnects_cancels_its_call(
    client: Any, service: PolicyService
) -> None:
    served = service.offer(client)
    task = asyncio.create_task(served.sample_async(prompt(), 1, LONG))
    await until(lambda: client.sampler.scheduler._runs)
    task.cancel()
    await until(lambda: not client.sampler.scheduler._runs)
    assert client.sampler.stats.sampled_tokens == 0  # counts only finished rows


def test_a_service_that_is_closed_immediately_leaves_no_thread_or_socket() -> None:
    for _ in range(20):
        service = PolicyService()
        service.close()
        assert not service._thread.is_alive()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(service.url.split(":")[2].split("/")[0])))


async def test_with_a_wrong_key_nothing_is_sampled(client: Any, service: PolicyService) -> None:
    served = service.offer(client)
    for key in (None, "", "another", service.key[:-1]):
        stranger = ServedSamplingClient(served.base_url, served.model, key)
        with pytest.raises(ServingError, match=r"returned 401.*api_key="):
            await stranger.sample_async(prompt(), 1, how(0))
    assert service.requests == 0


STRANGE: list[tuple[bytes, int]] = [
    (b"Authorization: Bearer KEY", 200),
    (b"Authorization: Bearer \xff\xfe", 401),
    (b"Authorization: Bearer \xed\xa0\x80", 401),
    (b"Authorization: Bearer KEY\xc3\xa9", 401),
    (b"Authorization: Basic \xff", 401),
    (b"Authorization: Bearer KEY\r\nOrigin: http://localhost:3000", 200),
    (b"Authorization: Bearer KEY\r\nOrigin: http://evil.example", 403),
    (b"Authorization: Bearer KEY\r\nOrigin: null", 403),
    (b"Authorization: Bearer KEY\r\nHost: evil.example", 403),
    (b"Authorization: Bearer KEY\r\nHost: 127.0.0.1.evil.example", 403),
    (b"Authorization: Bearer KEY\r\nHost: LOCALHOST:1", 200),
]


@pytest.mark.parametrize(("headers", "status"), STRANGE)
async def test_a_request_needs_the_key_and_a_local_host_and_origin(
    headers: bytes, status: int, service: PolicyService, caplog: Logs
) -> None:
    host, port = service.url.split("/")[2].split(":")
    headers = headers.replace(b"KEY", service.key.encode())
    if b"Host:" not in headers:
        headers += f"\r\nHost: {host}:{port}".encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/models HTTP/1.1\r\n" + headers + b"\r\n\r\n")
    answer = await reader.readuntil(b"\r\n")
    writer.close()
    await writer.wait_closed()
    assert int(answer.split()[1]) == status
    assert not caplog.records


async def test_a_long_text_is_tokenised_off_the_services_loop(
    client: Any, service: PolicyService, monkeypatch: Patch
) -> None:
    threads: set[str] = set()
    tokenizer = client.get_tokenizer()

    class Watched(type(tokenizer)):  # type: ignore[misc]
        def encode(self, *args: object, **options: object) -> object:
            threads.add(threading.current_thread().name)
            return super().encode(*args, **options)

    monkeypatch.setattr(tokenizer, "__class__", Watched)
    served = service.offer(client)
    request = CompletionRequest(served.model, "Hello there. " * 50, how(0))

    assert len((await served.request(request)).sequences) == 1
    assert threads
    assert not [name for name in threads if "policy service" in name]
