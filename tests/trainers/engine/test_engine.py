"""The engine's clients in place of the SDK's clients, used in the way the Cookbook uses them."""

import asyncio
import gc
import multiprocessing
import pickle
import re
import signal
import sys
import threading
import time
import types as python_types
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from tests.kit import Patch
from tests.trainers.kit import (
    ADAM,
    datum,
    loss_of,
    params,
    prompt,
    run_python,
    sampler_of,
    sequences,
    snapshot,
    spied,
    train,
    trainer_of,
)  # fmt: skip
from tinker import types
from tinker.lib.public_interfaces import service_client as sdk_module
from transformers import AutoModelForCausalLM

from evert.trainers.engine.clients import rest_client, service_client
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common import parallel
from evert.trainers.engine.common.errors import (
    CheckpointError,
    EngineClosedError,
    ModelNotFoundError,
    SamplingRequestError,
    TrainingError,
)
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models.loading import prepare_device
from evert.trainers.engine.sampling import prefill
from evert.trainers.engine.store.checkpoints import CheckpointStore
from evert.trainers.engine.training.passes import Passes
from evert.trainers.engine.training.trainer import Trainer

SdkServiceClient = tinker.ServiceClient
PICTURE = types.ModelInput(chunks=[types.ImageChunk(data=b"", format="png", expected_tokens=1)])


def test_the_block_replaces_the_sdks_classes_with_the_engines(tmp_path: Path) -> None:
    mine = python_types.ModuleType("some_users_module")
    mine.ServiceClient = SdkServiceClient  # type: ignore[attr-defined]
    sys.modules[mine.__name__] = mine
    try:
        with embedded_engine(tmp_path):
            assert issubclass(tinker.ServiceClient, service_client.ServiceClient)
            assert issubclass(tinker.RestClient, rest_client.RestClient)
            assert sdk_module.ServiceClient is tinker.ServiceClient
            assert mine.ServiceClient is tinker.ServiceClient
            # Code loaded inside the block may use ``ServiceClient`` in an annotation.
            assert tinker.ServiceClient | None
            with pytest.raises(KeyError), embedded_engine(tmp_path / "inner"):
                raise KeyError
            late = python_types.ModuleType("loaded_inside")
            late.ServiceClient = tinker.ServiceClient  # type: ignore[attr-defined]
            sys.modules[late.__name__] = late
        everywhere = [tinker, sdk_module, mine, late]
        assert all(module.ServiceClient is SdkServiceClient for module in everywhere)
    finally:
        sys.modules.pop(mine.__name__)
        sys.modules.pop("loaded_inside", None)


def test_leaving_the_block_stops_threads_and_closes_clients(
    tmp_path: Path, tiny_model: str
) -> None:
    before = set(threading.enumerate())
    with embedded_engine(tmp_path):
        service: Any = tinker.ServiceClient()
        training = trainer_of(tiny_model)
        train(training)
        sampling = snapshot(training)
        assert sequences(sampling)
    assert set(threading.enumerate()) <= before
    calls: list[Callable[[], Any]] = [
        lambda: service.create_lora_training_client(tiny_model),
        lambda: service.create_training_client_from_state("tinker://x/weights/x"),
        lambda: training.forward([datum()], "cross_entropy"),
        lambda: sampling.sample(prompt(), 1, params()),
        lambda: sampling.sample(PICTURE, 1, params()),
    ]
    for call in calls:
        with pytest.raises(EngineClosedError, match="no longer in use"):
            call().result()


def test_async_methods_do_not_warn(engine: Engine, tiny_model: str) -> None:
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


def test_calls_run_in_the_order_in_which_they_were_made(training: Any) -> None:
    losses = []
    for _ in range(5):
        losses.append(training.forward_backward([datum()], "cross_entropy"))
        training.optim_step(ADAM)
    values = [future.result().metrics["loss:sum"] for future in losses]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 5


async def test_the_event_loop_is_not_blocked_while_the_engine_works(training: Any) -> None:
    data = [datum(200, seed) for seed in range(40)]
    working = await training.forward_backward_async(data, "cross_entropy")
    beats = 0
    while not working.future().done():
        await asyncio.sleep(0.001)
        beats += 1
    assert beats > 3


async def test_a_sampling_client_may_be_awaited(training: Any, tiny_model: str) -> None:
    service: Any = tinker.ServiceClient()
    client = sampler_of(tiny_model)
    assert await client is client.result() is client
    saved = training.save_weights_for_sampler("x").result().path
    for made in (training.create_sampling_client(saved), service.create_sampling_client(saved)):
        assert sequences(made)


async def test_a_client_loads_after_a_wait_timed_out(engine: Engine, tiny_model: str) -> None:
    busy = threading.Event()
    engine.loader.submit(busy.wait, 60)
    client = sampler_of(tiny_model)
    with pytest.raises(TimeoutError):
        await client.result_async(timeout=0.01)
    busy.set()
    assert await client is client


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("full_parameter", [True, False])
def test_a_run_resumes_exactly(tmp_path: Path, tiny_model: str, full_parameter: bool) -> None:
    about = {"renderer_name": "qwen3_instruct"}

    def check(client: Any, how: str, *, optimizer: bool) -> None:
        train(client, 3)
        same = loss_of(client) == pytest.approx(expected, abs=1e-6)
        assert same is optimizer, how

    with embedded_engine(tmp_path, device="cpu", full_parameter=full_parameter):
        first = trainer_of(tiny_model, rank=4, user_metadata=about)
        assert first.get_info().is_lora is not full_parameter
        train(first)
        path = first.save_state("000002", ttl_seconds=60).result().path
        train(first, 3)
        expected = loss_of(first)
        for form in ("", "_async"):
            for name in ("load_state_with_optimizer", "load_state"):
                answer = getattr(first, name + form)(path)
                future = asyncio.run(answer) if form else answer
                assert future.result().path == path
                check(first, name + form, optimizer=name != "load_state")
    with embedded_engine(tmp_path, device="cpu", full_parameter=full_parameter) as engine:
        service: Any = tinker.ServiceClient()
        again = service.create_training_client_from_state_with_optimizer(path).result()
        check(again, "resumed", optimizer=True)
        for form in (path, str(engine.store.folder(path))):
            fresh = service.create_training_client_from_state(form).result()
            check(fresh, form, optimizer=False)
        run = service.create_rest_client().get_training_run_by_tinker_path(path).result()
        assert run.user_metadata == about
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


def test_a_damaged_checkpoint_is_refused_by_every_method(engine: Engine, training: Any) -> None:
    path = training.save_state("x").result().path
    weights = training.save_weights_for_sampler("x").result().path
    (engine.store.folder(path) / "model.safetensors").write_bytes(b"")
    service: Any = tinker.ServiceClient()
    resume = service.create_training_client_from_state_with_optimizer
    for way in (service.create_training_client_from_state, resume, service.create_sampling_client):
        with pytest.raises(CheckpointError, match=r"damaged: .*model\.safetensors"):
            way(path).result()
    with pytest.raises(CheckpointError, match="saved for sampling"):
        resume(weights).result()


def test_a_checkpoint_is_read_only_as_often_as_needed(training: Any, monkeypatch: Patch) -> None:
    path = training.save_state("x").result().path
    service: Any = tinker.ServiceClient()
    ways: list[tuple[Callable[[], Any], int]] = [
        (lambda: service.create_training_client_from_state_with_optimizer(path).result(), 1),
        (lambda: training.load_state(path).result(), 1),
        (lambda: service.create_sampling_client(path).sampler, 2),
    ]
    reads = spied(monkeypatch, CheckpointStore, "read", lambda store, path: path)
    for way, times in ways:
        reads.clear()
        way()
        assert reads == [path] * times


def _score_elsewhere(client: Any) -> tuple[list[float | None], list[int], bool]:
    torch.set_num_threads(1)
    again = pickle.loads(pickle.dumps(client))
    [reply] = sequences(client, max_tokens=16)
    return client.compute_logprobs(prompt(5, 6, 7)).result(), reply.tokens, again is client


def test_a_client_works_in_another_process(training: Any, tiny_model: str) -> None:
    train(training)
    client = snapshot(training)
    assert pickle.loads(pickle.dumps(client)) is client
    expected = client.compute_logprobs(prompt(5, 6, 7)).result()
    train(training)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        scores, there, same = pool.apply(_score_elsewhere, (client,))
        pool.close()
        pool.join()
    [here] = sequences(client, max_tokens=16)
    assert scores == pytest.approx(expected, abs=1e-5)
    assert same
    assert there != here.tokens


def test_unpickled_clients_share_their_base(tmp_path: Path, tiny_model: str) -> None:
    with embedded_engine(tmp_path, device="cpu", full_parameter=False):
        training = trainer_of(tiny_model)
        path = training.save_weights_for_sampler("x").result().path
        sent = [pickle.dumps(training.create_sampling_client(path)) for _ in range(2)]
        gc.collect()  # drop the clients, as if the pickles came from another process
        first, second = map(pickle.loads, sent)
        assert first is not second
        assert first.sampler.scheduler is second.sampler.scheduler  # one per base model


def test_the_same_seed_reproduces_the_run(tmp_path: Path, tiny_model: str) -> None:
    def run(seed: int) -> list[list[int]]:
        with embedded_engine(tmp_path, device="cpu", seed=seed):
            training = trainer_of(tiny_model)
            tokens = []
            for step in range(3):
                tokens += [s.tokens for s in sequences(snapshot(training), count=3)]
                train(training, step % 2)  # 0, 1, 0 steps: the first two snapshots match
            return tokens

    first = run(1)
    assert first == run(1) != run(2)
    assert len({tuple(tokens) for tokens in first}) == 9


def test_large_models_train_an_adapter(engine: Engine, tiny_model: str, monkeypatch: Any) -> None:
    assert not trainer_of(tiny_model).get_info().is_lora
    monkeypatch.setattr("evert.trainers.engine.models.loading.SMALL_MODEL_PARAMETERS", 10)
    info = trainer_of(tiny_model, rank=2).get_info()
    assert (info.is_lora, info.lora_rank) == (True, 2)


def test_an_unsupported_request_is_refused(engine: Engine, tiny_model: str, tmp_path: Path) -> None:
    client, training = sampler_of(tiny_model), trainer_of(tiny_model)
    with pytest.raises(SamplingRequestError, match="neither model_path nor base_model"):
        tinker.ServiceClient().create_sampling_client()
    with pytest.raises(SamplingRequestError, match="not text"):
        client.sample(PICTURE, 1, params()).result()
    with pytest.raises(TrainingError, match="AdamW"):
        training.optim_step(types.DimuonParams(learning_rate=1.0))
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json"):
        sampler_of(str(tmp_path))
    for name, text in (
        ("/no/such/folder", "Folder '/no/such/folder' does not exist.*config.json"),
        ("./models/mine", "does not exist"),
        ("nobody/nothing", "not in the local Hugging Face cache.*hf download"),
    ):
        with pytest.raises(ModelNotFoundError, match=text):
            trainer_of(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize(
    ("device", "text"),
    [("cuda", "can't find a CUDA"), ("tpu", "'tpu' .*expected 'cpu', 'cuda', 'mps' or")],
)
def test_a_missing_device_is_refused(device: str, text: str, tmp_path: Path) -> None:
    engine = embedded_engine(tmp_path, device=device)
    with pytest.raises(ModelNotFoundError, match=text), engine:
        pass


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [(["cuda", "mps"], "cuda"), (["cuda"], "cuda"), (["mps"], "mps"), ([], "cpu")],
)
def test_auto_prefers_cuda_then_mps_then_cpu(
    gpus: list[str], expected: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in gpus)
    assert prepare_device("auto") == torch.device(expected)


def test_the_thread_count_is_set_only_inside_the_block(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    with embedded_engine(tmp_path, threads=before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_closing_the_engine_stops_a_pass_before_its_next_micro_batch(
    tiny_model: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    begun, run = threading.Event(), Passes.logprobs
    passes: list[Any] = []
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    monkeypatch.setitem(prefill._CHUNK_TOKENS, "cpu", 64)

    with embedded_engine(tmp_path) as engine:

        def first_waits_for_the_close(self: Passes, *args: Any) -> torch.Tensor:
            passes.append(args)
            begun.set()
            while not engine._closed:
                time.sleep(0.01)
            return run(self, *args)

        monkeypatch.setattr(Passes, "logprobs", first_waits_for_the_close)
        client = trainer_of(tiny_model, rank=4)
        future = client.forward_backward([datum(60, n) for n in range(5)], "cross_entropy")
        asked_later = client.optim_step(ADAM)
        assert begun.wait(60)
    for unfinished in (future, asked_later):
        with pytest.raises(EngineClosedError, match="no longer in use"):
            unfinished.result()
    assert len(passes) == 1


SAVES: list[Callable[[Any, str], Any]] = [
    lambda client, name: client.save_state(name),
    lambda client, name: client.save_weights_for_sampler(name),
    lambda client, name: client.save_weights_external(name),
    lambda client, name: asyncio.run(client.save_state_async(name)),
    lambda client, name: asyncio.run(client.save_weights_for_sampler_async(name)),
    lambda client, name: asyncio.run(_save_and_give_up(client, name)),
]


async def _save_and_give_up(client: Any, name: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await client.save_state(name).result_async()


@pytest.mark.parametrize("ends_with", [None, KeyError, KeyboardInterrupt])
def test_saves_that_are_not_awaited_are_written_before_the_engine_closes(
    ends_with: type[BaseException] | None, tiny_model: str, tmp_path: Path
) -> None:
    def steps(client: Any) -> None:
        for seed in range(3):
            client.forward_backward([datum(seed=seed)], "cross_entropy")
            client.optim_step(ADAM)

    names = [f"save{number}" for number in range(len(SAVES))]
    with nullcontext() if ends_with is None else pytest.raises(ends_with):  # noqa: SIM117
        with embedded_engine(tmp_path, device="cpu", threads=1):
            client = trainer_of(tiny_model)
            steps(client)
            for save, name in zip(SAVES, names, strict=True):
                save(client, name)
            idle = trainer_of(tiny_model)
            steps(idle)
            if ends_with is not None:
                raise ends_with
    written = {file.parent.name: file.parent for file in tmp_path.glob("*/*weights/*/evert.json")}
    assert sorted(written) == names
    with embedded_engine(tmp_path / "twin", device="cpu", threads=1):
        twin = trainer_of(tiny_model)
        steps(twin)
        expected = loss_of(twin)
        for folder in written.values():
            again = tinker.ServiceClient().create_training_client_from_state(str(folder)).result()
            assert loss_of(again) == pytest.approx(expected, abs=1e-6)


def test_an_interrupt_during_saves_lists_the_dropped_ones(
    tiny_model: str, tmp_path: Path, monkeypatch: Patch, caplog: Any
) -> None:
    write = Trainer.save_weights

    def save_three() -> None:
        with embedded_engine(tmp_path, device="cpu") as engine:

            def interrupted(self: Trainer, folder: Path) -> None:
                while not engine._closed:
                    time.sleep(0.01)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                while not engine.saves.interrupted:
                    time.sleep(0.01)
                write(self, folder)

            monkeypatch.setattr(Trainer, "save_weights", interrupted)
            client = trainer_of(tiny_model)
            for name in ("first", "second", "third"):
                client.save_state(name)

    with pytest.raises(KeyboardInterrupt):
        save_three()
    assert [file.parent.name for file in tmp_path.glob("*/weights/*/evert.json")] == ["first"]
    dropped = re.findall(r"weights/(\w+) was not saved: .* interrupted", caplog.text)
    assert dropped == ["second", "third"]


def test_closing_the_engine_lists_failed_saves_that_were_not_awaited(
    tiny_model: str, tmp_path: Path, monkeypatch: Patch, caplog: Any
) -> None:
    def full(self: Trainer, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Trainer, "save_optimizer", full)
    with embedded_engine(tmp_path, device="cpu"):
        client = trainer_of(tiny_model)
        with pytest.raises(CheckpointError, match="No space left"):
            client.save_state("known").result()
        with pytest.raises(CheckpointError, match="No space left"):
            asyncio.run(client.save_state("known").result_async())
        client.save_state("lost")
    assert re.findall(r"(\w+) was not saved: Could not write .* No space", caplog.text) == ["lost"]


LEFT_OPEN = """
import sys, tinker
from contextlib import ExitStack
from evert import embedded_engine
stack = ExitStack()
stack.enter_context(embedded_engine(sys.argv[2], device="cpu", threads=1))
tinker.ServiceClient().create_lora_training_client(sys.argv[1]).result().save_state("last")
"""


def test_a_save_is_written_even_if_the_block_is_never_left(tiny_model: str, tmp_path: Path) -> None:
    run_python("-c", LEFT_OPEN, tiny_model, str(tmp_path))
    assert [*tmp_path.glob("*/weights/last/evert.json")]
