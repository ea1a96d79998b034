"""Sampling from a self-hosted Tinker server with the real SDK, over local HTTP."""

import json
import pickle
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import tinker
from tests.kit import Patch
from tinker.lib.internal_client_holder import InternalClientHolder
from tinker.proto import tinker_public_pb2 as wire

from evert import TinkerModel
from evert.bridge.models import older_servers
from evert.bridge.models.older_servers import address_of, complete_client, is_hosted
from evert.bridge.models.tinker_model import open_weights

SEQUENCE = wire.SampledSequence(
    stop_reason=wire.STOP_REASON_LENGTH,
    tokens=np.array([7, 8], np.int32).tobytes(),
    logprobs=np.array([-0.5, -1.5], np.float32).tobytes(),
)
ANSWERS: dict[str, Any] = {
    "client/config": {},
    "client/dynamic_config": {},
    "create_session": {"session_id": "session"},
    "create_sampling_session": {"sampling_session_id": "sampler"},
    "get_server_capabilities": {"supported_models": []},
    "asample": {"request_id": "promised"},
    "retrieve_future": wire.SampleResponse(sequences=[SEQUENCE, SEQUENCE]).SerializeToString(),
}
"""Responses of version 0.4.0 of SkyRL's server."""

HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
SOMEBODY_ELSES = "http://127.0.0.1:9/of-somebody-else"


class StandIn(ThreadingHTTPServer):
    """A Tinker server that always samples the same tokens."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.answers = dict(ANSWERS)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    """The request handler. It does not use keep-alive, so the SDK leaves no connections open."""

    body = b""

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        assert isinstance(self.server, StandIn)
        answer = self.server.answers.get(self.path.removeprefix("/api/v1/"))
        status = 404 if answer is None else 200
        if isinstance(answer, FunctionType):
            status, answer = answer(self.body)
        if isinstance(answer, bytes):
            kind, data = "x-protobuf", answer
        else:
            kind, data = "json", json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", f"application/{kind}")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[StandIn]:
    """Run a server that does not send sequence ids."""
    with StandIn() as running:
        thread = Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _clients_are_closed_and_as_they_were(monkeypatch: Patch) -> Iterator[None]:
    """Close all SDK clients, because otherwise their heartbeats continue to draw random numbers."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-of-a-test")
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.setattr(older_servers, "_completed", set())
    ask = tinker.SamplingClient._send_asample_request
    load = getattr(tinker.ServiceClient, older_servers.LOAD)
    monkeypatch.setattr(tinker.SamplingClient, "_send_asample_request", ask)  # restored at the end
    monkeypatch.setattr(tinker.ServiceClient, older_servers.LOAD, load)
    holders: list[Any] = []
    init = InternalClientHolder.__init__

    def noted(self: InternalClientHolder, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        holders.append(self)

    monkeypatch.setattr(InternalClientHolder, "__init__", noted)  # unpickling creates a new holder
    yield
    for holder in holders:
        holder.close()


def client_of(server: StandIn) -> tinker.SamplingClient:
    service = tinker.ServiceClient(base_url=server.url)
    return service.create_sampling_client(base_model="m").result()


def sampled_ids(client: tinker.SamplingClient) -> list[str]:
    """Sample two sequences and return their ids."""
    prompt, params = tinker.ModelInput.from_ints([1, 2]), tinker.SamplingParams(max_tokens=2)
    response = client.sample(prompt=prompt, num_samples=2, sampling_params=params).result()
    assert [sequence.tokens for sequence in response.sequences] == [[7, 8], [7, 8]]
    return [sequence.sequence_id for sequence in response.sequences]


def test_a_server_without_sequence_ids_can_be_sampled_once_patched(server: StandIn) -> None:
    client = client_of(server)
    complete_client(SOMEBODY_ELSES)
    with pytest.raises(AssertionError, match="sample_sequence_ids"):
        sampled_ids(client)

    received = pickle.loads(pickle.dumps(client))  # as if sent to a worker
    complete_client(f"{address_of(received)}/")
    complete_client(server.url)
    assert sampled_ids(client) == sampled_ids(received) == ["promised-0", "promised-1"]

    server.answers["asample"] = {"request_id": "promised", "sample_sequence_ids": ["a", "b"]}
    assert sampled_ids(client_of(server)) == ["a", "b"], "ids sent by the server are kept"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the SDK's deprecation warnings
async def test_a_frozen_model_on_a_server_without_sequence_ids_can_be_sampled(
    server: StandIn,
) -> None:
    weights = await open_weights(TinkerModel("evert-tiny", base_url=server.url))

    assert sampled_ids(weights.client) == ["promised-0", "promised-1"]


def test_the_hosted_service_is_never_patched(server: StandIn) -> None:
    ask = tinker.SamplingClient._send_asample_request
    for base_url in (None, "", HOSTED, "https://thinkingmachines.dev"):
        complete_client(base_url)

    assert tinker.SamplingClient._send_asample_request is ask
    assert not older_servers._completed
    assert is_hosted(HOSTED)
    assert not is_hosted("https://notthinkingmachines.dev")
    assert not is_hosted("http://localhost:8000/thinkingmachines.dev")
    assert (address_of(client_of(server)), address_of(object())) == (server.url, None)


@pytest.fixture
def loaded(server: StandIn) -> list[dict[str, Any]]:
    """Make the server load states only into existing models; return the list of load requests."""
    requests: list[dict[str, Any]] = []

    def load(body: bytes) -> tuple[int, dict[str, Any]]:
        requests.append(json.loads(body))
        if "model_id" in requests[-1]:
            return 200, {"request_id": "load_weights"}
        return 422, {"detail": "model_id: required"}

    def retrieve(body: bytes) -> tuple[int, dict[str, Any]]:
        return 200, {"model_id": "own", "type": json.loads(body)["request_id"]}

    info = {"model_data": {"arch": "a", "model_name": "m", "tokenizer_id": "m"}, "model_id": "own"}
    server.answers |= {
        "weights_info": {"base_model": "m", "is_lora": True, "lora_rank": 8},
        "create_model": {"request_id": "create_model"},
        "load_weights": load,
        "retrieve_future": retrieve,
        "get_info": info,
    }
    return requests


@pytest.mark.parametrize("optimizer", [True, False])
def test_a_state_is_loaded_with_two_requests_if_a_single_one_is_rejected(
    server: StandIn, loaded: list[dict[str, Any]], optimizer: bool
) -> None:
    service = tinker.ServiceClient(base_url=server.url)
    name = "create_training_client_from_state" + "_with_optimizer" * optimizer
    load = getattr(service, name)
    complete_client(SOMEBODY_ELSES)
    with pytest.raises(tinker.UnprocessableEntityError):
        load("tinker://run/weights/1").result()
    complete_client(server.url)
    load("tinker://run/weights/1").result()

    assert [request.get("model_id") for request in loaded] == [None, None, "own"]
    assert {request["path"] for request in loaded} == {"tinker://run/weights/1"}
    assert {request["optimizer"] for request in loaded} == {optimizer}
