"""The service client, which creates the other clients.

All clients have the same methods as the SDK's clients, sync and ``_async``, with the same
arguments and results; see the SDK's documentation. Methods that need the hosted service raise
``UnsupportedError``. There are two differences: the ``_async`` methods don't emit deprecation
warnings, and errors are instances of evert's classes as well as the SDK's. Methods that create a
client return one of the SDK's futures, which can be used as a client and emits the SDK's warnings.
"""

from abc import ABCMeta
from numbers import Integral
from typing import Any, ClassVar, Self, cast

import tinker
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.futures import client_future, finished_future
from evert.trainers.engine.clients.rest_client import NO_COPY, RestClient, capabilities
from evert.trainers.engine.clients.sampling_client import SamplingClient, Source, saved_client
from evert.trainers.engine.clients.surface import refuse_hosted
from evert.trainers.engine.clients.training_client import TrainingClient
from evert.trainers.engine.common.errors import (
    SamplingRequestError,
    TrainingError,
    UnsupportedError,
)
from evert.trainers.engine.models.base_models import resolve_model
from evert.trainers.engine.models.loading import LoraOptions

REFUSED = {
    "copy_weights": NO_COPY,
    "holder": "it has no connection. Use the client's public methods.",
    "create_custom_loss": "it can't trace a loss function. Pass a function "
    "(data, logprobs) to forward_backward_custom instead.",
}
"""SDK methods that the engine can't serve, mapped to the reason and what to do instead."""


@refuse_hosted(tinker.ServiceClient, REFUSED)
class ServiceClient:
    """Creates the engine's training, sampling and REST clients."""

    engine: ClassVar[Engine]

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        **options: Any,
    ) -> None:
        """Accept the SDK's options, but use only ``user_metadata``."""
        self._user_metadata = dict(user_metadata or {})

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: types.OptimizerConfig | None = None,
    ) -> "tinker.BackcompatTrainingClientFuture":
        """Start training an adapter or all weights of a base model, depending on the settings."""
        _check_optimizer(optimizer)
        _check_rank(rank)
        base_model = self.engine.stand_ins.of(base_model)
        choice = LoraOptions(rank, seed, train_mlp, train_attn, train_unembed)
        metadata = {**self._user_metadata, **(user_metadata or {})}
        return self._start(self.engine.start_run, base_model, choice, metadata)

    def create_training_client_from_state(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: types.OptimizerConfig | None = None,
    ) -> "tinker.BackcompatTrainingClientFuture":
        """Start training from a checkpoint's weights, with a fresh optimizer."""
        _check_optimizer(optimizer)
        return self._resume(path, base_model, user_metadata, with_optimizer=False)

    def create_training_client_from_state_with_optimizer(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> "tinker.BackcompatTrainingClientFuture":
        """Resume training from a checkpoint, with its optimizer state."""
        return self._resume(path, base_model, user_metadata, with_optimizer=True)

    def create_sampling_client(
        self,
        model_path: str | None = None,
        base_model: str | None = None,
        retry_config: Any = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Create a sampling client whose checkpoint or base model loads in the background.

        ``model_path`` is a ``tinker://`` path or a folder.
        """
        engine = self.engine
        engine.check_open()
        if model_path is not None:
            return saved_client(engine, model_path, records=record_stability_info)
        if base_model is None:
            raise SamplingRequestError(
                "create_sampling_client got neither model_path nor base_model. Pass a "
                "tinker:// path returned by a save, or a model name."
            )
        base_model = engine.stand_ins.of(base_model)
        resolve_model(base_model)
        engine.requested_models.add(base_model)
        loading = engine.loader.submit(engine.base_sampler, base_model)
        source = Source(base_model, None)
        return SamplingClient(engine, loading, source, records=record_stability_info)

    def create_rest_client(self) -> RestClient:
        """Create a client that lists, describes and deletes runs and checkpoints."""
        return type("RestClient", (RestClient,), {"engine": self.engine})()  # type: ignore[no-any-return]

    def get_server_capabilities(self) -> types.GetServerCapabilitiesResponse:
        """List the bundled base models and the models in use. Model folders work as well."""
        return capabilities(self.engine)

    def get_console_url(self) -> str:
        """Return the URL of the engine's checkpoint folder, since there is no web console."""
        return self.engine.store.root.absolute().as_uri()

    def get_telemetry(self) -> None:
        """Return None: the engine sends no telemetry."""

    def close(self, status: str, detail: str | None = None) -> AwaitableConcurrentFuture[None]:
        """Do nothing: the engine outlives its service clients."""
        return finished_future(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """See ``close``."""

    def _resume(
        self,
        path: str,
        base_model: str | None,
        user_metadata: dict[str, str] | None,
        *,
        with_optimizer: bool,
    ) -> "tinker.BackcompatTrainingClientFuture":
        def resume() -> Any:
            name = base_model and self.engine.stand_ins.of(base_model)
            _check_base(name, self.engine.store.info(path).base_model)
            return self.engine.resume_run(path, user_metadata, with_optimizer=with_optimizer)

        return self._start(resume)

    def _start(self, make_run: Any, *args: Any) -> "tinker.BackcompatTrainingClientFuture":
        self.engine.check_open()

        def start() -> Any:
            return TrainingClient(self.engine, make_run(*args))

        loading = AwaitableConcurrentFuture(self.engine.loader.submit(start))
        return client_future("Training", loading)  # type: ignore[no-any-return]


def _check_optimizer(optimizer: types.OptimizerConfig | None) -> None:
    if optimizer is not None and not isinstance(optimizer, types.AdamOptimizerConfig):
        raise UnsupportedError(
            f"optimizer is {optimizer!r}, but the embedded engine supports only AdamW (Dimuon's "
            "formula is not public). Leave it out, or pass AdamOptimizerConfig()."
        )


def _check_rank(rank: int) -> None:
    if not isinstance(rank, Integral) or rank < 1:
        raise TrainingError(
            f"create_lora_training_client got rank={rank!r}; expected a positive integer. "
            "To train all weights without an adapter, use embedded_engine(full_parameter=True)."
        )


def _check_base(base_model: str | None, saved_base: str) -> None:
    if base_model not in (None, saved_base):
        raise UnsupportedError(
            f"base_model is {base_model!r}, but the checkpoint was trained from {saved_base!r}. "
            "The embedded engine can only resume it on the same base model. Leave base_model out."
        )


# Scripts may check clients with isinstance() against the SDK's classes.
cast(ABCMeta, tinker.TrainingClient).register(TrainingClient)
cast(ABCMeta, tinker.SamplingClient).register(SamplingClient)
