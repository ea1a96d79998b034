"""The engine's clients have the SDK's whole surface: what is not served says why.

1. Every public method of the SDK's clients is there, takes the SDK's arguments, and is answered or
   refused with one of the SDK's errors that says what to do. Told by introspection.
2. Futures of clients act as the clients, and warn as the SDK's do.
3. A state can be loaded into a client that is there; a name that is taken is kept.
4. A loss that the SDK traced does what the callable does.
5. Errors are evert's and the SDK's.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tinker
from tests.trainers.engine.test_engine import ADAM, datum, loss_of, params, prompt, train
from tinker import types

from evert.bridge.errors import EvertError
from evert.trainers.engine import errors
from evert.trainers.engine.engine import Engine, embedded_engine
from evert.trainers.engine.errors import (
    CheckpointError,
    CheckpointExistsError,
    LossInputError,
    UnsupportedError,
)


@pytest.fixture
def training(engine: Engine, tiny_model: str) -> Any:
    return tinker.ServiceClient().create_lora_training_client(tiny_model, rank=4).result()


# -- futures act as clients ------------------------------------------------------------------------


def test_the_future_of_a_training_client_is_one(engine: Engine, tiny_model: str) -> None:
    future = tinker.ServiceClient().create_lora_training_client(tiny_model)
    assert isinstance(future, tinker.APIFuture)
    assert isinstance(future, tinker.TrainingClient)
    client = future.result()
    assert isinstance(client, tinker.TrainingClient)
    with pytest.warns(FutureWarning, match=r"call \.result\(\)"):
        assert future.forward_backward([datum()], "cross_entropy").result().metrics
    with pytest.warns(FutureWarning):
        assert future.model_id == client.model_id


async def test_the_future_of_a_training_client_can_be_awaited(
    engine: Engine, tiny_model: str
) -> None:
    client = await tinker.ServiceClient().create_lora_training_client(tiny_model)
    assert (await client.optim_step(ADAM) is not None) is True


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
        assert sampler.sample(prompt(), 1, params()).result().sequences[0].tokens
        assert sampler.get_tokenizer() is not None


def test_what_fails_to_load_is_raised_by_whatever_is_asked_first(engine: Engine) -> None:
    future = tinker.ServiceClient().create_lora_training_client("/no/such/folder")
    with pytest.warns(FutureWarning), pytest.raises(tinker.NotFoundError, match="No folder"):
        future.get_info()


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("full_parameter", [True, False])
@pytest.mark.parametrize("form", ["", "_async"])
def test_a_loaded_state_goes_on_where_it_was_saved(
    tmp_path: Path, tiny_model: str, full_parameter: bool, form: str
) -> None:
    def load(client: Any, method: str) -> types.LoadWeightsResponse:
        answer = getattr(client, method + form)(path)
        future = asyncio.run(answer) if form else answer
        loaded: types.LoadWeightsResponse = future.result()
        return loaded

    with embedded_engine(tmp_path, device="cpu", full_parameter=full_parameter):
        service = tinker.ServiceClient()
        client: Any = service.create_lora_training_client(tiny_model, rank=4).result()
        train(client)
        path = client.save_state("here").result().path
        train(client, 3)
        expected = loss_of(client)
        assert load(client, "load_state_with_optimizer").path == path
        train(client, 3)
        assert loss_of(client) == pytest.approx(expected, abs=1e-6)
        load(client, "load_state")
        train(client, 3)
        assert loss_of(client) != pytest.approx(expected, abs=1e-6)


def test_a_state_is_loaded_when_its_turn_comes(training: Any) -> None:
    path = training.save_state("start").result().path
    before = loss_of(training)
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(ADAM)
    trained = training.forward([datum()], "cross_entropy")
    training.load_state(path)
    loaded = training.forward([datum()], "cross_entropy")
    assert trained.result().metrics["loss:sum"] < before
    assert loaded.result().metrics["loss:sum"] == pytest.approx(before)


def test_a_state_of_another_model_is_refused_and_the_client_goes_on(
    engine: Engine, training: Any
) -> None:
    other = tinker.ServiceClient().create_lora_training_client("evert-tiny").result()
    path = other.save_state("x").result().path
    before = loss_of(training)
    with pytest.raises(CheckpointError, match=r"'evert-tiny' with LoRA rank None.*from_state"):
        training.load_state(path).result()
    assert loss_of(training) == pytest.approx(before)


def test_a_state_keeps_its_name_where_overwriting_was_not_asked_for(
    engine: Engine, training: Any
) -> None:
    path = training.save_state("a").result().path
    train(training)
    with pytest.raises(CheckpointExistsError, match="already.*overwrite=True") as caught:
        training.save_state("a").result()
    assert isinstance(caught.value, tinker.ConflictError)
    assert engine.store.read(path).steps == 0
    assert training.save_state("a", overwrite=True).result().path == path
    assert engine.store.read(path).steps == 2


# -- custom losses ---------------------------------------------------------------------------------


def weighted(logprobs: Any, weights: Any) -> Any:
    loss = -(logprobs * weights).sum()
    return loss, {"custom/mine:mean": loss * 2}


def without_logprobs(weights: Any) -> Any:
    return weights.sum(), {}


def test_a_traced_loss_does_what_its_formula_says(training: Any) -> None:
    data = [datum(8, 1), datum(5, 2)]
    handle = tinker.ServiceClient().create_custom_loss(
        weighted, input_ranks={"logprobs": 1, "weights": 1}
    )
    assert isinstance(handle, tinker.APIFuture)
    found = training.forward_backward_custom(data, handle.result()).result()
    step = training.optim_step(types.AdamParams(learning_rate=0.0)).result()
    expected = training.forward_backward(data, "cross_entropy").result()
    again = training.optim_step(types.AdamParams(learning_rate=0.0)).result()
    assert found.metrics["loss:sum"] == pytest.approx(expected.metrics["loss:sum"], rel=1e-5)
    assert found.metrics["custom/mine:mean"] == pytest.approx(expected.metrics["loss:sum"])
    assert step.metrics["optim/grad_norm"] == pytest.approx(again.metrics["optim/grad_norm"])


def test_a_loss_that_the_service_would_refuse_is_refused(training: Any, tmp_path: Path) -> None:
    service = tinker.ServiceClient()
    with pytest.raises(LossInputError, match="must take logprobs as its first"):
        service.create_custom_loss(without_logprobs, {"weights": 1}).result()
    handle = service.create_custom_loss(weighted, {"logprobs": 1, "weights": 1}).result()
    bare = types.Datum(model_input=prompt(), loss_fn_inputs={"target_tokens": [1, 2, 3]})  # type: ignore[dict-item]
    with pytest.raises(LossInputError, match=r"datum\[0\] has no .*'weights'"):
        training.forward_backward_custom([bare], handle)
    with pytest.raises(LossInputError, match="loss_type_input"):
        training.forward_backward_custom([datum()], handle, loss_type_input="logits")
    with embedded_engine(tmp_path / "other", device="cpu"):
        stranger = tinker.ServiceClient().create_custom_loss(
            weighted, {"logprobs": 1, "weights": 1}
        )
    with pytest.raises(LossInputError, match="was made in session"):
        training.forward_backward_custom([datum()], stranger.result())


# -- errors ----------------------------------------------------------------------------------------

ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, EvertError)]


@pytest.mark.parametrize("error", [e for e in ERRORS if e.__module__ == errors.__name__])
def test_an_error_is_evert_s_and_the_sdk_s_and_pickles(error: type[EvertError]) -> None:
    import pickle

    if error.__name__.startswith("_"):
        return
    again = pickle.loads(pickle.dumps(error("what went wrong")))
    assert isinstance(again, error)
    assert isinstance(again, tinker.TinkerError)
    assert str(again) == "what went wrong"


def test_another_optimizer_is_refused(engine: Engine) -> None:
    service, dimuon = tinker.ServiceClient(), types.DimuonOptimizerConfig()
    with pytest.raises(UnsupportedError, match=r"has AdamW alone.*Leave it out"):
        service.create_lora_training_client("evert-tiny", optimizer=dimuon)
    with pytest.raises(UnsupportedError, match="AdamW alone"):
        service.create_training_client_from_state("tinker://x/weights/x", optimizer=dimuon)
