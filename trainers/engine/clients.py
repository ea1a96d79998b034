"""The embedded engine's clients, with the surface the Tinker SDK's have.

    ServiceClient    makes the others
    TrainingClient   a model in training (``training_client.py``)
    RestClient       questions about, and deletion of, checkpoints (``rest_client.py``)
    SamplingClient   frozen weights to sample from; picklable (``sampling_client.py``)

Methods are those the Cookbook calls, in both their plain and ``_async`` forms, with the SDK's
names, arguments and results; what they do is documented there. Two differences: the ``_async``
forms do not warn that they are deprecated, and errors are evert's own.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Self

from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from evert.trainers.engine.engine import Engine, LoraChoice
from evert.trainers.engine.errors import SamplingRequestError
from evert.trainers.engine.futures import finished, submit
from evert.trainers.engine.models import resolve_model
from evert.trainers.engine.rest_client import RestClient, capabilities
from evert.trainers.engine.sampling_client import SamplingClient, Source, saved_client
from evert.trainers.engine.training_client import TrainingClient

if TYPE_CHECKING:
    pass


class ServiceClient:
    """Makes training, sampling and REST clients of one engine."""

    engine: ClassVar[Engine]

    def __init__(
        self,
        user_metadata: dict[str, str] | None = None,
        project_id: str | None = None,
        **options: Any,
    ) -> None:
        """Take what the SDK's client takes; only ``user_metadata`` means anything here."""
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
    ) -> AwaitableConcurrentFuture[TrainingClient]:
        """Start training a base model: the whole of it, or an adapter, as the engine is set."""
        choice = LoraChoice(rank, seed, train_mlp, train_attn, train_unembed)
        metadata = {**self._user_metadata, **(user_metadata or {})}
        return submit(self.engine.loader, self._start, base_model, choice, metadata)

    async def create_lora_training_client_async(
        self, base_model: str, rank: int = 32, **options: Any
    ) -> TrainingClient:
        """See ``create_lora_training_client``."""
        return await self.create_lora_training_client(base_model, rank, **options).result_async()

    def create_training_client_from_state(
        self, path: str, user_metadata: dict[str, str] | None = None, **options: Any
    ) -> AwaitableConcurrentFuture[TrainingClient]:
        """Start training from a checkpoint's weights, with a fresh optimizer."""
        return submit(self.engine.loader, self._resume, path, user_metadata, False)

    async def create_training_client_from_state_async(
        self, path: str, user_metadata: dict[str, str] | None = None, **options: Any
    ) -> TrainingClient:
        """See ``create_training_client_from_state``."""
        return await self.create_training_client_from_state(
            path, user_metadata, **options
        ).result_async()

    def create_training_client_from_state_with_optimizer(
        self, path: str, user_metadata: dict[str, str] | None = None, **options: Any
    ) -> AwaitableConcurrentFuture[TrainingClient]:
        """Go on training from a checkpoint as if nothing had happened."""
        return submit(self.engine.loader, self._resume, path, user_metadata, True)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, user_metadata: dict[str, str] | None = None, **options: Any
    ) -> TrainingClient:
        """See ``create_training_client_from_state_with_optimizer``."""
        return await self.create_training_client_from_state_with_optimizer(
            path, user_metadata, **options
        ).result_async()

    def create_sampling_client(
        self, model_path: str | None = None, base_model: str | None = None, **options: Any
    ) -> SamplingClient:
        """Sample from a checkpoint or a base model, which is loaded in the background.

        Raises:
            SamplingRequestError: Neither was named.
            CheckpointError: There is no such checkpoint; ``model_path`` is a ``tinker://`` path or
                the folder of a checkpoint.
            ModelNotFoundError: There is no such base model.
        """
        engine = self.engine
        engine.check_open()
        if model_path is not None:
            return saved_client(engine, model_path)
        if base_model is None:
            raise SamplingRequestError(
                "create_sampling_client got neither model_path nor base_model; expected a "
                "tinker:// path that saving returned, or a model name."
            )
        resolve_model(base_model)
        engine.asked_for.add(base_model)
        loading = engine.loader.submit(engine.base_sampler, base_model)
        return SamplingClient(engine, base_model, loading, Source(base_model, None))

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None, **options: Any
    ) -> SamplingClient:
        """See ``create_sampling_client``; here the weights are loaded when it returns."""
        client = self.create_sampling_client(model_path, base_model, **options)
        await client.loaded()
        return client

    def create_rest_client(self) -> RestClient:
        """Ask about checkpoints."""
        return type("RestClient", (RestClient,), {"engine": self.engine})()  # type: ignore[no-any-return]

    def get_server_capabilities(self) -> types.GetServerCapabilitiesResponse:
        """The models that always work here, and those that were asked for.

        Any folder or cached Hub model works, too.
        """
        return capabilities(self.engine)

    async def get_server_capabilities_async(self) -> types.GetServerCapabilitiesResponse:
        """See ``get_server_capabilities``."""
        return capabilities(self.engine)

    def get_telemetry(self) -> None:
        """None: nothing is reported to anybody."""

    def close(self, status: str, detail: str | None = None) -> AwaitableConcurrentFuture[None]:
        """Nothing to finish: the engine outlives its service clients."""
        return finished(None)

    def __enter__(self) -> Self:
        """The client; leaving its block does nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """See ``close``."""

    def _start(
        self, base_model: str, choice: LoraChoice, user_metadata: dict[str, str]
    ) -> TrainingClient:
        return TrainingClient(self.engine, self.engine.start_run(base_model, choice, user_metadata))

    def _resume(
        self, path: str, user_metadata: dict[str, str] | None, with_optimizer: bool
    ) -> TrainingClient:
        run = self.engine.resume_run(path, user_metadata, with_optimizer=with_optimizer)
        return TrainingClient(self.engine, run)
