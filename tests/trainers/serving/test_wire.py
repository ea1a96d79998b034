"""Requests and responses on the wire. Invalid bodies are refused and do not break the service."""

import json
import re
from typing import Any

import aiohttp
import pytest
import tinker
from tests.kit import Patch
from tests.trainers.serving.conftest import prompt

from evert.trainers.engine.clients.sampling_client import SamplingClient
from evert.trainers.engine.common.errors import SamplingRequestError
from evert.trainers.serving.errors import UnfitServerError
from evert.trainers.serving.service import PolicyService
from evert.trainers.serving.wire import (
    CompletionRequest,
    ServerKind,
    read_answer,
    read_request,
    write_request,
)

PARAMS = [
    tinker.SamplingParams(max_tokens=5),
    tinker.SamplingParams(max_tokens=None, stop=[]),
    tinker.SamplingParams(max_tokens=5, stop=[7, 8], temperature=0.5, seed=3),
    tinker.SamplingParams(max_tokens=5, stop=["a", "b"], top_k=4, top_p=0.5),
]


@pytest.mark.parametrize("params", PARAMS)
def test_a_request_is_read_back_as_it_was_written(params: tinker.SamplingParams) -> None:
    request = CompletionRequest("m", [1, 2], params, count=3, prompt_logprobs=True)
    assert read_request(write_request(request)) == request


def test_missing_fields_of_a_request_have_defaults() -> None:
    params = tinker.SamplingParams(max_tokens=16)
    request = read_request(b'{"model": "m", "prompt": "Hi"}')
    assert request == CompletionRequest("m", "Hi", params, texts=True)


def test_untruncated_sampling_is_requested_in_each_servers_dialect() -> None:
    llama, vllm = (
        json.loads(write_request(CompletionRequest("m", [1], PARAMS[2]), dialect))
        for dialect in (ServerKind.LLAMA_CPP, ServerKind.VLLM)
    )
    assert llama["samplers"] == ["temperature"]
    assert llama["logprobs"] == 1
    assert "ignore_eos" not in llama  # it would make llama.cpp ban the end token
    assert vllm["return_token_ids"] is vllm["ignore_eos"] is True
    assert vllm["stop_token_ids"] == [7, 8]
    assert vllm["logprobs"] == 0


WRONG: list[tuple[str, str]] = [
    ("", "The body is not JSON"),
    ("[" * 10_000, "The body is not JSON"),
    ('{"a": ' * 10_000, "The body is not JSON"),
    ("[1]", r"The body is \[1\]; expected a JSON object"),
    ("{}", "prompt is None; expected one prompt"),
    ('{"prompt": []}', r"prompt is \[\]"),
    ('{"prompt": [[1], [2]]}', r"prompt is \[\[1\], \[2\]\]"),
    ('{"prompt": [-1]}', r"prompt is \[-1\]"),
    ('{"prompt": [true]}', r"prompt is \[True\]"),
    ('{"prompt": [1e9]}', "prompt is"),
    ('{"prompt": [99999999999]}', "prompt is"),
    ('{"prompt": [1], "max_tokens": 0}', "max_tokens is 0; expected an integer of at least 1"),
    ('{"prompt": [1], "max_tokens": 1.5}', r"max_tokens is 1\.5"),
    ('{"prompt": [1], "n": 0}', "n is 0"),
    ('{"prompt": [1], "n": 257}', "n is 257; expected an integer from 1 to 256"),
    ('{"prompt": [1], "n": 20000}', "n is 20000; expected an integer from 1 to 256"),
    ('{"prompt": [1], "temperature": -1}', "temperature is -1"),
    ('{"prompt": [1], "temperature": "hot"}', "temperature is 'hot'"),
    ('{"prompt": [1], "seed": 1e40}', "seed is"),
    ('{"prompt": [1], "temperature": 1e999}', "temperature is inf|The body is not JSON"),
    ('{"prompt": [1], "top_p": 2}', "top_p is 2"),
    ('{"prompt": [1], "top_p": 0}', "top_p is 0; expected a number above 0 and at most 1"),
    ('{"prompt": [1], "top_k": -2}', "top_k is -2; expected an integer of at least 1, or -1"),
    ('{"prompt": [1], "stop": [""]}', "stop is"),
    ('{"prompt": [1], "stop": ["a"], "stop_token_ids": [1]}', "both stop and stop_token_ids"),
    ('{"prompt": [1], "stream": true}', "stream=True is not supported here"),
    ('{"prompt": [1], "logit_bias": {"5": -100}}', "logit_bias="),
    ('{"prompt": [1], "model": 5}', "model is 5"),
]


async def test_an_invalid_body_is_refused_by_field_and_does_not_break_the_service(
    client: SamplingClient, service: PolicyService
) -> None:
    served = service.offer(client)
    headers = {"Authorization": f"Bearer {service.key}"}
    vast = json.dumps({"model": served.model, "prompt": [1] * 300_000})
    beyond = json.dumps({"model": served.model, "prompt": [10**8], "max_tokens": 1})
    more = [(vast, "."), (beyond, "."), (b"\xff\xfe\x00\xd8", ".")]
    async with aiohttp.ClientSession(headers=headers) as session:
        for body, text in [*WRONG, *more]:
            async with session.post(f"{service.url}/completions", data=body) as answer:
                message = (await answer.json())["error"]["message"]
                assert answer.status in (400, 404), message
                assert re.search(text, message), message
        async with session.get(f"{service.url}/completions") as answer:
            assert answer.status == 404
    with pytest.raises(SamplingRequestError, match="A prompt of 500000 tokens"):
        await served.sample_async(tinker.ModelInput.from_ints([1] * 500_000), 1, PARAMS[0])
    with pytest.raises(SamplingRequestError, match="ids go from 0 to 511"):
        await served.compute_logprobs_async(tinker.ModelInput.from_ints([512]))
    assert (await served.sample_async(prompt(), 1, PARAMS[0])).sequences


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    client: SamplingClient, service: PolicyService, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("evert.trainers.serving.service.context_length_here", lambda name: 8)
    served = service.offer(client)
    long = {"model": served.model, "prompt": "x " * 100_000, "max_tokens": 1}
    headers = {"Authorization": f"Bearer {service.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{service.url}/completions", json=long) as answer,
    ):
        assert answer.status == 400
        assert "has 200,000 characters," in (await answer.json())["error"]["message"]


ASKED = CompletionRequest("m", [1, 2], tinker.SamplingParams(max_tokens=5, stop=[9]))


def answer(**choice: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "finish_reason": "stop", **choice}]}).encode()


def test_llama_cpps_log_probabilities_are_read() -> None:
    entries = [{"id": token, "logprob": -token / 2, "token": "x"} for token in (3, 9, 4)]
    [sequence] = read_answer(answer(logprobs={"content": entries}), ASKED).sequences
    assert sequence.tokens == [3, 9]  # cut after the requested stop
    assert sequence.logprobs == [-1.5, -4.5]
    assert sequence.stop_reason == "stop"


UNFIT: list[tuple[bytes, str]] = [
    (answer(text="hi", logprobs={"token_logprobs": [-1.0]}), "did not return token ids"),
    (answer(text="hi", token_ids=[1]), "returned 0 log-probabilities for 1 tokens"),
    (answer(token_ids=[1, 2], logprobs={"token_logprobs": [-1.0]}), "1 log-probabilities"),
    (answer(token_ids=[1], logprobs={"token_logprobs": [None]}), "log-probabilities"),
    (b"<html>", "not in the format"),
    (b"[]", "not in the format"),
    (b'{"choices": []}', "not in the format"),
    (b'{"choices": [{"token_ids": 5}]}', "not in the format"),
    (b'{"choices": [5]}', "not in the format"),
    (answer(token_ids=[1], logprobs=[1]), "not in the format"),
]


@pytest.mark.parametrize(("content", "text"), UNFIT)
def test_a_response_without_a_needed_field_says_what_to_change(content: bytes, text: str) -> None:
    with pytest.raises(UnfitServerError, match=text) as error:
        read_answer(content, ASKED)
    remedy = "vLLM 0.10.2 or newer, llama.cpp's server, or `evert serve`."
    assert remedy in str(error.value)
