"""The engine's clients: the surface the Cookbook calls, in the SDK's place, in this process.

1. Every method the Cookbook's sources call on a client exists here and takes those arguments.
2. Inside the block the SDK's names are the engine's, wherever imported; outside they are the SDK's.
3. Calls run in the order they were made; the event loop never waits for them.
4. Saved, loaded, resumed and pickled clients go on exactly where they were.
5. What is wrong is refused early, with what to do about it.
"""

import ast
import asyncio
import inspect
import multiprocessing
import pickle
import sys
import threading
import types as python_types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
import tinker_cookbook
import torch
from tinker import types
from tinker.lib.public_interfaces import service_client as sdk_module
from transformers import AutoModelForCausalLM

from evert.bridge.tokens.bases import BASE_MODEL
from evert.trainers.engine.clients import rest_client, service_client, training_client
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.sampling_client import SamplingClient
from evert.trainers.engine.common.errors import (
    CheckpointError,
    EngineClosedError,
    ModelNotFoundError,
    SamplingRequestError,
    TrainingError,
)
from evert.trainers.engine.embedded import embedded_engine

SdkServiceClient = tinker.ServiceClient
ADAM = types.AdamParams(learning_rate=1e-2)

FILES = (
    "rl/train.py",
    "supervised/train.py",
    "checkpoint_utils.py",
    "completers.py",
    "rl/metrics.py",
    "supervised/nll_evaluator.py",
    "preference/train_dpo.py",
)
ROLES: dict[str, type] = {
    "service_client": service_client.ServiceClient,
    "training_client": training_client.TrainingClient,
    "sampling_client": SamplingClient,
    "reference_client": SamplingClient,
    "rest_client": rest_client.RestClient,
}
TABLE = {
    "create_lora_training_client",
    "create_training_client_from_state",
    "create_training_client_from_state_with_optimizer",
    "create_sampling_client",
    "create_rest_client",
    "forward_backward",
    "optim_step",
    "forward",
    "save_state",
    "save_weights_for_sampler",
    "save_weights_and_get_sampling_client",
    "sample",
    "compute_logprobs",
    "get_training_run_by_tinker_path",
    "delete_checkpoint_from_tinker_path",
}
"""The calls the engine is known to need, with ``_async`` at their ends up to the Cookbook 0.5."""


def _cookbook_calls() -> Iterator[tuple[type, str, int, tuple[str, ...]]]:
    """(our client, method, positional arguments, keywords) of each call in the Cookbook."""
    root = Path(tinker_cookbook.__file__).parent
    for file in FILES:
        for node in ast.walk(ast.parse((root / file).read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            name = str(getattr(owner, "attr", None) or getattr(owner, "id", ""))
            client = next((c for role, c in ROLES.items() if name.endswith(role)), None)
            if client is not None:
                keywords = tuple(k.arg for k in node.keywords if k.arg)
                yield client, node.func.attr, len(node.args), keywords


CALLS = sorted(set(_cookbook_calls()), key=str)


def datum(length: int = 8, seed: int = 0) -> types.Datum:
    tokens = torch.randint(0, 200, (length + 1,), generator=torch.Generator().manual_seed(seed))
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1].tolist()),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": torch.ones(length)},  # type: ignore[dict-item]
    )


def prompt(*tokens: int) -> types.ModelInput:
    return types.ModelInput.from_ints(list(tokens or (1, 2, 3)))


def params(**options: Any) -> types.SamplingParams:
    return types.SamplingParams(**{"max_tokens": 8, "stop": [], **options})


def loss_of(client: Any) -> float:
    return float(client.forward([datum()], "cross_entropy").result().metrics["loss:sum"])


def train(client: Any, steps: int = 2) -> None:
    for step in range(steps):
        client.forward_backward([datum(seed=step)], "cross_entropy")
        client.optim_step(ADAM).result()


@pytest.fixture
def training(engine: Engine, tiny_model: str) -> Any:
    return tinker.ServiceClient().create_lora_training_client(tiny_model, rank=4).result()


@pytest.mark.parametrize(
    ("client", "method", "positional", "keywords"), CALLS, ids=[f"{c[1]}{c[3]}" for c in CALLS]
)
def test_every_call_the_cookbook_makes_fits(
    client: type, method: str, positional: int, keywords: tuple[str, ...]
) -> None:
    signature = inspect.signature(getattr(client, method))
    signature.bind(None, *[None] * positional, **dict.fromkeys(keywords))


def test_the_known_table_of_calls_is_still_what_the_cookbook_makes() -> None:
    assert {method.removesuffix("_async") for _, method, _, _ in CALLS} >= TABLE


@pytest.mark.parametrize("name", ["ServiceClient", "RestClient"])
def test_constructors_take_what_the_sdks_take(name: str) -> None:
    theirs = inspect.signature(getattr(tinker, name).__init__).parameters
    accepted = [p for p in theirs if p not in ("self", "kwargs", "_holder")]
    surface = {"ServiceClient": service_client.ServiceClient, "RestClient": rest_client.RestClient}[
        name
    ]
    inspect.signature(surface).bind(**dict.fromkeys(accepted))


def test_inside_the_block_the_sdks_names_are_the_engines(tmp_path: Path) -> None:
    mine = python_types.ModuleType("some_users_module")
    mine.ServiceClient = SdkServiceClient  # type: ignore[attr-defined]
    sys.modules[mine.__name__] = mine
    try:
        with embedded_engine(tmp_path):
            assert issubclass(tinker.ServiceClient, service_client.ServiceClient)
            assert issubclass(tinker.RestClient, rest_client.RestClient)
            assert sdk_module.ServiceClient is tinker.ServiceClient
            assert mine.ServiceClient is tinker.ServiceClient
            # Code loaded inside may use the name in an annotation.
            assert tinker.ServiceClient | None
            late = python_types.ModuleType("loaded_inside")
            late.ServiceClient = tinker.ServiceClient  # type: ignore[attr-defined]
            sys.modules[late.__name__] = late
        everywhere = [tinker, sdk_module, mine, late]
        assert all(module.ServiceClient is SdkServiceClient for module in everywhere)
    finally:
        sys.modules.pop(mine.__name__)
        sys.modules.pop("loaded_inside", None)


def test_the_sdk_is_put_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), embedded_engine(tmp_path):
        raise KeyError
    assert tinker.ServiceClient is SdkServiceClient


def test_leaving_the_block_ends_the_threads_and_closes_the_clients(
    tmp_path: Path, tiny_model: str
) -> None:
    before = set(threading.enumerate())
    with embedded_engine(tmp_path):
        training = tinker.ServiceClient().create_lora_training_client(tiny_model).result()
        train(training)
        sampling = training.save_weights_and_get_sampling_client().result()
        sampling.sample(prompt(), 1, params()).result()
    assert set(threading.enumerate()) <= before
    for call in (
        lambda: training.forward([datum()], "cross_entropy"),
        lambda: sampling.sample(prompt(), 1, params()).result(),
    ):
        with pytest.raises(EngineClosedError, match="no longer in use"):
            call()


def test_asynchronous_forms_do_not_warn(engine: Engine, tiny_model: str) -> None:
    async def work() -> None:
        service = tinker.ServiceClient(user_metadata={"a": "b"}, display_name="x", base_url=None)
        training = await service.create_lora_training_client_async(tiny_model, rank=4)
        pending = await training.forward_backward_async([datum()], loss_fn="cross_entropy")
        stepped = await training.optim_step_async(ADAM)
        assert (await pending.result_async()).metrics["loss:sum"] > 0
        assert (await stepped.result_async()).metrics
        sampling = await training.save_weights_and_get_sampling_client_async()
        response = await sampling.sample_async(
            prompt=prompt(), num_samples=2, sampling_params=params()
        )
        assert [len(s.tokens) for s in response.sequences] == [8, 8]
        assert (await sampling.compute_logprobs_async(prompt()))[0] is None

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(work())


def test_calls_run_in_the_order_they_were_made(training: Any) -> None:
    losses = []
    for _ in range(5):
        losses.append(training.forward_backward([datum()], "cross_entropy"))
        training.optim_step(ADAM)
    values = [future.result().metrics["loss:sum"] for future in losses]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 5


async def test_the_event_loop_goes_on_while_the_engine_works(training: Any) -> None:
    data = [datum(200, seed) for seed in range(40)]
    working = await training.forward_backward_async(data, "cross_entropy")
    beats = 0
    while not working.future().done():
        await asyncio.sleep(0.001)
        beats += 1
    assert beats > 3


def test_a_snapshot_does_not_change_with_training(training: Any) -> None:
    sampling = training.save_weights_and_get_sampling_client().result()
    before = sampling.compute_logprobs(prompt(5, 6, 7, 8)).result()
    train(training)
    assert sampling.compute_logprobs(prompt(5, 6, 7, 8)).result() == before
    after = training.save_weights_and_get_sampling_client().result()
    assert after.compute_logprobs(prompt(5, 6, 7, 8)).result() != before


def test_sampling_clients_need_no_waiting_for(training: Any, tiny_model: str) -> None:
    service = tinker.ServiceClient()
    client = service.create_sampling_client(base_model=tiny_model)
    assert client.sample(prompt(), 1, params()).result().sequences[0].logprobs is not None
    assert client.result() is client
    saved = training.save_weights_for_sampler("x").result().path
    for made in (training.create_sampling_client(saved), service.create_sampling_client(saved)):
        assert made.sample(prompt(), 1, params()).result().sequences


async def test_sampling_clients_may_be_awaited(engine: Engine, tiny_model: str) -> None:
    client = tinker.ServiceClient().create_sampling_client(base_model=tiny_model)
    assert await client is client


def test_prompt_logprobs_come_with_a_sample_when_asked_for(engine: Engine, tiny_model: str) -> None:
    client = tinker.ServiceClient().create_sampling_client(base_model=tiny_model)
    found = client.sample(prompt(4, 5, 6, 7), 1, params(), include_prompt_logprobs=True).result()
    expected = client.compute_logprobs(prompt(4, 5, 6, 7)).result()
    assert found.prompt_logprobs is not None
    assert found.prompt_logprobs[0] is None
    assert found.prompt_logprobs[1:] == pytest.approx(expected[1:])
    last = client.compute_logprobs(prompt(4, 5, 6, 7), prompt_logprobs_last_n=2).result()
    assert last[:2] == [None, None]
    assert last[2:] == pytest.approx(expected[2:])
    assert client.sample(prompt(), 1, params()).result().prompt_logprobs is None


@pytest.mark.parametrize("full_parameter", [True, False])
def test_a_resumed_run_goes_on_exactly_where_it_was(
    tmp_path: Path, tiny_model: str, full_parameter: bool
) -> None:
    with embedded_engine(tmp_path, device="cpu", full_parameter=full_parameter):
        service = tinker.ServiceClient()
        first = service.create_lora_training_client(
            tiny_model, rank=4, user_metadata={"renderer_name": "qwen3_instruct"}
        ).result()
        assert first.get_info().is_lora is not full_parameter
        train(first)
        path = first.save_state("000002", ttl_seconds=60).result().path
        train(first, 3)
        expected = loss_of(first)
    with embedded_engine(tmp_path, device="cpu", full_parameter=full_parameter):
        service = tinker.ServiceClient()
        resumed = service.create_training_client_from_state_with_optimizer(path).result()
        train(resumed, 3)
        assert loss_of(resumed) == pytest.approx(expected, abs=1e-6)
        fresh = service.create_training_client_from_state(path).result()
        train(fresh, 3)
        assert loss_of(fresh) != pytest.approx(expected, abs=1e-6)
        run = service.create_rest_client().get_training_run_by_tinker_path(path).result()
        assert run.user_metadata == {"renderer_name": "qwen3_instruct"}
        assert run.is_lora is not full_parameter


def test_saved_weights_load_with_transformers(engine: Engine, training: Any) -> None:
    train(training)
    path = training.save_weights_for_sampler("final").result().path
    folder = engine.store.folder(path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    logits = model(torch.tensor([[5, 6, 7]])).logits[0]
    expected = float(torch.log_softmax(logits, -1)[1, 7].detach())
    client = tinker.ServiceClient().create_sampling_client(path)
    assert client.compute_logprobs(prompt(5, 6, 7)).result()[2] == pytest.approx(expected, abs=1e-5)


def test_a_damaged_checkpoint_is_refused_by_every_way_in(engine: Engine, training: Any) -> None:
    path = training.save_state("x").result().path
    (engine.store.folder(path) / "model.safetensors").write_bytes(b"")
    service = tinker.ServiceClient()
    for call in (
        lambda: service.create_training_client_from_state(path).result(),
        lambda: service.create_training_client_from_state_with_optimizer(path).result(),
        lambda: service.create_sampling_client(path),
    ):
        with pytest.raises(CheckpointError, match=r"damaged: .*model\.safetensors"):
            call()


def test_weights_saved_to_sample_from_cannot_be_trained_on(training: Any) -> None:
    path = training.save_weights_for_sampler("x").result().path
    resume = tinker.ServiceClient().create_training_client_from_state_with_optimizer
    with pytest.raises(CheckpointError, match="saved to sample from"):
        resume(path).result()


async def test_a_checkpoint_can_be_deleted(engine: Engine, training: Any) -> None:
    path = training.save_state("x").result().path
    await tinker.ServiceClient().create_rest_client().delete_checkpoint_from_tinker_path_async(path)
    assert not engine.store.folder(path).exists()


def test_a_client_that_comes_home_is_itself(training: Any) -> None:
    client = training.save_weights_and_get_sampling_client().result()
    assert pickle.loads(pickle.dumps(client)) is client


def _score_elsewhere(client: Any) -> tuple[list[float | None], list[int], bool]:
    torch.set_num_threads(1)
    again = pickle.loads(pickle.dumps(client))
    sequence = client.sample(prompt(), 1, params(max_tokens=16)).result().sequences[0]
    return client.compute_logprobs(prompt(5, 6, 7)).result(), sequence.tokens, again is client


def test_a_client_works_in_another_process(training: Any, tiny_model: str) -> None:
    train(training)
    client = training.save_weights_and_get_sampling_client().result()
    expected = client.compute_logprobs(prompt(5, 6, 7)).result()
    train(training)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        found, there, same = pool.apply(_score_elsewhere, (client,))
        pool.close()
        pool.join()
    here = client.sample(prompt(), 1, params(max_tokens=16)).result().sequences[0].tokens
    assert found == pytest.approx(expected, abs=1e-5)
    assert same
    assert there != here


def test_the_same_seed_gives_the_same_run(tmp_path: Path, tiny_model: str) -> None:
    def run(seed: int) -> list[list[int]]:
        with embedded_engine(tmp_path, device="cpu", seed=seed):
            training = tinker.ServiceClient().create_lora_training_client(tiny_model).result()
            tokens = []
            for _ in range(2):
                client = training.save_weights_and_get_sampling_client().result()
                replies = client.sample(prompt(), 3, params()).result().sequences
                tokens += [s.tokens for s in replies]
                train(training, 1)
            return tokens

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_two_snapshots_of_the_same_weights_draw_different_numbers(training: Any) -> None:
    drawn = [
        training.save_weights_and_get_sampling_client()
        .result()
        .sample(prompt(), 1, params(max_tokens=16))
        .result()
        .sequences[0]
        .tokens
        for _ in range(2)
    ]
    assert drawn[0] != drawn[1]


def test_small_models_are_trained_whole_and_large_ones_with_an_adapter(
    engine: Engine, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = tinker.ServiceClient()
    assert not service.create_lora_training_client(tiny_model).result().get_info().is_lora
    monkeypatch.setattr("evert.trainers.engine.models.loading.SMALL_MODEL_PARAMETERS", 10)
    info = service.create_lora_training_client(tiny_model, rank=2).result().get_info()
    assert (info.is_lora, info.lora_rank) == (True, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("/no/such/folder", "No folder '/no/such/folder' exists.*config.json"),
        ("./models/mine", "No folder"),
        ("nobody/nothing", "not in the local Hugging Face cache.*hf download"),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_what_to_do(
    engine: Engine, name: str, text: str
) -> None:
    with pytest.raises(ModelNotFoundError, match=text):
        tinker.ServiceClient().create_lora_training_client(name).result()


def test_a_folder_without_a_model_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json"):
        tinker.ServiceClient().create_sampling_client(base_model=str(tmp_path))


def test_the_shipped_base_is_found_by_its_name(
    engine: Engine, tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "evert.trainers.engine.models.base_models.base_path", lambda _: Path(tiny_model)
    )
    tokenizer: Any = object()
    monkeypatch.setattr(
        "evert.trainers.engine.models.base_models.base_tokenizer", lambda _: tokenizer
    )
    training = tinker.ServiceClient().create_lora_training_client(BASE_MODEL).result()
    assert training.get_tokenizer() is tokenizer
    assert training.get_info().model_data.model_name == BASE_MODEL


def test_requests_that_cannot_be_served_say_why(engine: Engine, tiny_model: str) -> None:
    service = tinker.ServiceClient()
    with pytest.raises(SamplingRequestError, match="neither model_path nor base_model"):
        service.create_sampling_client()
    client = service.create_sampling_client(base_model=tiny_model)
    with pytest.raises(SamplingRequestError, match="topk_prompt_logprobs"):
        client.sample(prompt(), 1, params(), topk_prompt_logprobs=-3)
    picture = types.ModelInput(chunks=[types.ImageChunk(data=b"", format="png", expected_tokens=1)])
    with pytest.raises(SamplingRequestError, match="not text"):
        client.sample(picture, 1, params()).result()
    training = service.create_lora_training_client(tiny_model).result()
    with pytest.raises(TrainingError, match="AdamW"):
        training.optim_step(types.DimuonParams(learning_rate=1.0))


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with (
        pytest.raises(ModelNotFoundError, match="no CUDA here"),
        embedded_engine(tmp_path, device="cuda"),
    ):
        pass


def test_threads_are_set_inside_the_block_only(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    with embedded_engine(tmp_path, threads=before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
