"""The engine's clients have all methods of the SDK's clients; unsupported ones explain why."""

import asyncio
import concurrent.futures
import inspect
import pickle
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tinker
import torch
from tests.kit import Patch
from tests.trainers.kit import (
    ADAM,
    datum,
    loss_of,
    params,
    prompt,
    sampler_of,
    sequences,
    train,
    trainer_of,
)
from tinker import types
from tinker_cookbook import weights

from evert.bridge.errors import EvertError
from evert.trainers.engine.clients import (
    rest_client,
    sampling_client,
    service_client,
    surface,
    training_client,
)
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common import errors
from evert.trainers.engine.common.errors import (
    CheckpointError,
    CheckpointExistsError,
    LossInputError,
    NoCheckpointError,
    UnsupportedError,
)

PAIRS: list[tuple[type, type]] = [
    (tinker.ServiceClient, service_client.ServiceClient),
    (tinker.TrainingClient, training_client.TrainingClient),
    (tinker.SamplingClient, sampling_client.SamplingClient),
    (tinker.RestClient, rest_client.RestClient),
]


def parameters(method: Any) -> list[inspect.Parameter]:
    """Return the parameters of a method, without ``self``."""
    members = list(inspect.signature(method).parameters.values())
    return [p for p in members if p.name != "self" and p.kind is not p.VAR_KEYWORD]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_every_method_accepts_the_sdks_arguments(theirs: type, ours: type) -> None:
    public = [name for name in dir(theirs) if not name.startswith("_")]
    assert not [n for n in public if not hasattr(ours, n)], "new in the SDK: serve or refuse them"
    for name in public:
        method, expected = getattr(ours, name), getattr(theirs, name)
        if not callable(expected):
            continue
        static = isinstance(inspect.getattr_static(theirs, name), staticmethod)
        bound = [] if static else [None]
        # Scripts pass arguments both by position and by name.
        positional = [p for p in parameters(expected) if p.kind is not p.KEYWORD_ONLY]
        names = [p.name for p in parameters(expected) if p.kind is not p.VAR_POSITIONAL]
        try:
            inspect.signature(method).bind(*bound, *positional)
            inspect.signature(method).bind(*bound, **dict.fromkeys(names))
        except TypeError as error:
            pytest.fail(f"{theirs.__name__}.{name}: {error}")
        assert inspect.iscoroutinefunction(method) or not name.endswith("_async"), name
    if theirs in (tinker.ServiceClient, tinker.RestClient):  # users construct these themselves
        made = [p for p in inspect.signature(theirs).parameters if p not in ("kwargs", "_holder")]
        inspect.signature(ours).bind(**dict.fromkeys(made))


async def test_a_refused_method_says_why_and_what_to_do(engine: Engine, tiny_model: str) -> None:
    sampling = sampler_of(tiny_model)
    for refused, client, sdk in (
        (rest_client.REFUSED, tinker.RestClient(), "RestClient"),
        (service_client.REFUSED, tinker.ServiceClient(), "ServiceClient"),
        (sampling_client.REFUSED, sampling, "SamplingClient"),
    ):
        for name in refused:
            text = f"{sdk}.{name} is not available with.*: .*\\. "
            with pytest.raises(UnsupportedError, match=text) as caught:
                getattr(client, name)("x")
            assert isinstance(caught.value, tinker.BadRequestError)
            if hasattr(client, f"{name}_async"):
                with pytest.raises(UnsupportedError, match=name):
                    await getattr(client, f"{name}_async")("x")


def test_features_that_need_a_connection_are_refused_and_console_urls_are_folders(
    engine: Engine, training: Any, tiny_model: str
) -> None:
    sampling = sampler_of(tiny_model)
    assert sampling.on_queue_state_change("paused", None) is None
    with pytest.raises(UnsupportedError, match="public methods"):
        _ = tinker.ServiceClient().holder
    assert tinker.ServiceClient().get_console_url() == engine.store.root.as_uri()
    assert training.get_console_url() == (engine.store.root / training.model_id).as_uri()


@pytest.fixture
def rest(engine: Engine) -> Any:
    return tinker.RestClient()


def files_of(rest: Any, path: str) -> list[Path]:
    urls = rest.get_external_weights_urls(path).result().urls
    return [Path(url.removeprefix("file://")) for url in urls.values()]


def test_runs_are_listed(engine: Engine, rest: Any, training: Any, tiny_model: str) -> None:
    other = trainer_of(tiny_model, user_metadata={"who": "b"})
    state = training.save_state("s", ttl_seconds=7200, user_metadata={"k": "v"}).result().path
    weights = training.save_weights_for_sampler("w").result().path
    listed = rest.list_checkpoints(training.model_id).result().checkpoints
    assert [c.tinker_path for c in listed] == [weights, state]
    assert [c.checkpoint_type for c in listed] == ["sampler", "training"]
    assert listed[1].checkpoint_id == "weights/s"
    assert listed[1].user_metadata == {"k": "v"}
    assert listed[1].size_bytes == sum(file.stat().st_size for file in files_of(rest, state))
    assert (listed[1].expires_at - listed[1].time).total_seconds() == pytest.approx(7200)
    assert listed[0].expires_at is None
    for name, content in (("torn", "{"), ("of another name", "{}")):
        (engine.store.root / name).mkdir()
        (engine.store.root / name / "run.json").write_text(content)
    runs = rest.list_training_runs().result()
    assert (len(runs.training_runs), runs.cursor.total_count) == (2, 2)
    mine = rest.get_training_run(training.model_id).result()
    assert mine.last_checkpoint.tinker_path == state
    assert mine.last_sampler_checkpoint.tinker_path == weights
    theirs = rest.get_training_run(other.model_id).result()
    assert (theirs.user_metadata, theirs.last_checkpoint) == ({"who": "b"}, None)
    second = rest.list_user_checkpoints(limit=1, offset=1).result()
    assert [c.tinker_path for c in second.checkpoints] == [state]
    assert (second.cursor.offset, second.cursor.total_count) == (1, 2)
    assert (mine.base_model, mine.is_lora) == (tiny_model, False)


async def test_checkpoints_can_be_kept_or_deleted(engine: Engine, rest: Any, training: Any) -> None:
    state = training.save_state("s", ttl_seconds=60).result().path
    await rest.set_checkpoint_ttl_from_tinker_path_async(state, 3600)
    info = engine.store.read(state)
    assert info.expires == pytest.approx(time.time() + 3600, abs=60)
    rest.set_checkpoint_ttl_from_tinker_path(state, None).result()
    assert engine.store.read(state).expires is None
    with pytest.raises(CheckpointError, match=r"ttl_seconds .* is 5; expected 3600"):
        rest.set_checkpoint_ttl_from_tinker_path(state, 5).result()
    await rest.delete_checkpoint_async(training.model_id, "weights/s")
    assert not engine.store.folder(state).exists()
    for gone in (rest.delete_checkpoint_from_tinker_path, rest.get_external_weights_urls):
        with pytest.raises(tinker.NotFoundError, match="does not exist"):
            gone(state).result()
    with pytest.raises(NoCheckpointError, match="was not found: .*EVERT_HOME"):
        rest.list_checkpoints("nobody").result()


def test_the_cookbook_downloads_weights(engine: Engine, training: Any, tmp_path: Path) -> None:
    train(training)
    state = training.save_state("s").result().path
    with pytest.raises(CheckpointError, match="age_encryption_recipients contains an invalid key"):
        training.save_weights_external("x", age_encryption_recipients=["age1nonsense"]).result()
    assert not list(engine.store.root.glob("*/external_weights/*"))
    external = training.save_weights_external("x").result().path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK uses a client's future as if it were the client
        for i, path in enumerate((state, external)):
            folder = weights.download(tinker_path=path, output_dir=str(tmp_path / str(i)))
            downloaded = safetensors.torch.load_file(Path(folder) / "model.safetensors")
            there = safetensors.torch.load_file(engine.store.folder(state) / "model.safetensors")
            assert downloaded.keys() == there.keys()
            assert all(torch.equal(downloaded[key], there[key]) for key in downloaded)


def test_new_methods_and_options_of_the_sdk_are_refused_and_reported_by_name(
    engine: Engine, tiny_model: str, monkeypatch: Patch
) -> None:
    class Newer(tinker.RestClient):
        def brand_new(self) -> None: ...

        async def list_training_runs_async(self, *args: Any, colour: str = "red") -> Any: ...

        def get_training_run(self, *args: Any, colour: str = "red") -> Any: ...

    monkeypatch.setattr(surface, "UNKNOWN", unknown := list[str]())
    cls = type("Client", (rest_client.RestClient,), {"engine": engine})
    client: Any = surface.refuse_unknown(Newer)(cls)()
    added = ["brand_new", "colour= of Newer.get_training_run"]
    assert unknown == [f"Newer.{added[0]}", added[1], "colour= of Newer.list_training_runs_async"]
    with pytest.raises(UnsupportedError, match=r"brand_new is not available.*doesn't support it"):
        client.brand_new()
    run = trainer_of(tiny_model).model_id
    assert client.get_training_run(run, colour="red").result().training_run_id == run
    with pytest.raises(UnsupportedError, match="colour='blue'"):
        client.get_training_run(run, colour="blue")
    assert inspect.iscoroutinefunction(client.list_training_runs_async)


NOT_ONE = pytest.mark.skipif(
    not hasattr(tinker, "BackcompatTrainingClientFuture"),
    reason="this SDK returns clients immediately",
)


@NOT_ONE
async def test_the_future_of_a_client_can_be_used_as_the_client(
    engine: Engine, tiny_model: str
) -> None:
    future: Any = tinker.ServiceClient().create_lora_training_client(tiny_model)
    assert isinstance(future, tinker.APIFuture)
    assert isinstance(future, tinker.TrainingClient)
    client = future.result()
    assert await future is client
    assert isinstance(client, tinker.TrainingClient)
    with pytest.warns(FutureWarning, match=r"call \.result\(\)"):
        assert future.forward_backward([datum()], "cross_entropy").result().metrics
    with pytest.warns(FutureWarning):
        assert future.model_id == client.model_id


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_a_script_that_never_waits_for_a_client_runs(engine: Engine, tiny_model: str) -> None:
    service = tinker.ServiceClient()
    first = service.create_lora_training_client(tiny_model)
    path = first.save_state("x").result().path
    for client in (
        service.create_training_client_from_state(path),
        service.create_training_client_from_state_with_optimizer(path),
    ):
        client.forward_backward([datum()], "cross_entropy")
        client.optim_step(ADAM)
        sampler = client.save_weights_and_get_sampling_client()
        assert isinstance(sampler, tinker.SamplingClient)
        assert sequences(sampler)[0].tokens
        assert sampler.get_tokenizer() is not None


@NOT_ONE
def test_a_loading_error_is_raised_by_the_first_call_of_the_client(engine: Engine) -> None:
    future = tinker.ServiceClient().create_lora_training_client("/no/such/folder")
    with pytest.warns(FutureWarning), pytest.raises(tinker.NotFoundError, match="does not exist"):
        future.get_info()


@pytest.mark.filterwarnings("ignore:DEPRECATED:FutureWarning")
async def test_results_are_futures_of_the_standard_library(engine: Engine, tiny_model: str) -> None:
    client = sampler_of(tiny_model)
    futures = [client.sample(prompt(i), 1, params()) for i in range(1, 4)]
    scored = client.compute_logprobs(prompt(1, 2, 3))
    assert {*concurrent.futures.as_completed([*futures, scored], 30)} == {*futures, scored}
    assert (await asyncio.wrap_future(futures[0])).sequences == futures[0].result().sequences
    assert await scored == scored.future().result()
    assert scored.done()


def test_a_state_is_loaded_in_the_order_of_the_calls(training: Any) -> None:
    path = training.save_state("start").result().path
    before = loss_of(training)
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(ADAM)
    trained = training.forward([datum()], "cross_entropy")
    training.load_state(path)
    loaded = training.forward([datum()], "cross_entropy")
    assert trained.result().metrics["loss:sum"] < before
    assert loaded.result().metrics["loss:sum"] == pytest.approx(before)


def test_a_state_of_another_model_is_refused(engine: Engine, training: Any) -> None:
    other = trainer_of("evert-tiny")
    path = other.save_state("x").result().path
    before = loss_of(training)
    with pytest.raises(CheckpointError, match=r"'evert-tiny' with LoRA rank None.*from_state"):
        training.load_state(path).result()
    assert loss_of(training) == pytest.approx(before)


def test_a_state_is_not_overwritten_by_default(engine: Engine, training: Any) -> None:
    path = training.save_state("a").result().path
    train(training)
    with pytest.raises(CheckpointExistsError, match="already.*overwrite=True") as caught:
        training.save_state("a").result()
    assert isinstance(caught.value, tinker.ConflictError)
    assert engine.store.read(path).steps == 0
    assert training.save_state("a", overwrite=True).result().path == path
    assert engine.store.read(path).steps == 2


ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, EvertError)]


def test_errors_belong_to_both_evert_and_the_sdk_and_can_be_pickled() -> None:
    for error in ERRORS:
        if error.__module__ != errors.__name__ or error.__name__.startswith("_"):
            continue
        again = pickle.loads(pickle.dumps(error("what went wrong")))
        assert isinstance(again, error)
        assert isinstance(again, tinker.TinkerError), error
        assert str(again) == "what went wrong"
    assert isinstance(CheckpointError("x"), OSError)
    assert isinstance(LossInputError("x"), ValueError)


def test_other_optimizers_are_refused(engine: Engine) -> None:
    service, dimuon = tinker.ServiceClient(), types.DimuonOptimizerConfig()
    with pytest.raises(UnsupportedError, match=r"supports only AdamW.*Leave it out"):
        service.create_lora_training_client("evert-tiny", optimizer=dimuon)
    with pytest.raises(UnsupportedError, match="only AdamW"):
        service.create_training_client_from_state("tinker://x/weights/x", optimizer=dimuon)
