"""The REST client: questions about checkpoints, and their deletion."""

from datetime import UTC, datetime
from typing import Any, ClassVar

from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from evert.bridge.base import BASES
from evert.trainers.engine.checkpoints import CheckpointStore
from evert.trainers.engine.engine import Engine
from evert.trainers.engine.futures import finished
from evert.trainers.engine.models import base_context_length


def capabilities(engine: Engine) -> types.GetServerCapabilitiesResponse:
    """The models that always work here, and those that were asked for."""
    models = [
        types.SupportedModel(
            model_name=name,
            max_context_length=base_context_length(name),
            trainable=True,
            sampleable=True,
        )
        for name in dict.fromkeys([*BASES, *engine.asked_for])
    ]
    return types.GetServerCapabilitiesResponse(supported_models=models)


class RestClient:
    """Questions about checkpoints, and their deletion."""

    engine: ClassVar[Engine]

    def __init__(self, **options: Any) -> None:
        """Take what the SDK's client takes; nothing of it means anything here."""

    def get_training_run_by_tinker_path(
        self, tinker_path: str
    ) -> AwaitableConcurrentFuture[types.TrainingRun]:
        """The run a checkpoint belongs to, with the ``user_metadata`` it was started with."""
        return finished(_training_run(self.engine.store, tinker_path))

    async def get_training_run_by_tinker_path_async(self, tinker_path: str) -> types.TrainingRun:
        """See ``get_training_run_by_tinker_path``."""
        return _training_run(self.engine.store, tinker_path)

    def delete_checkpoint_from_tinker_path(
        self, tinker_path: str
    ) -> AwaitableConcurrentFuture[None]:
        """Delete a checkpoint."""
        self.engine.store.delete(tinker_path)
        return finished(None)

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """See ``delete_checkpoint_from_tinker_path``."""
        self.engine.store.delete(tinker_path)

    def get_servercapabilities(
        self,
    ) -> AwaitableConcurrentFuture[types.GetServerCapabilitiesResponse]:
        """The models that always work here, and those that were asked for."""
        return finished(capabilities(self.engine))


def _training_run(store: CheckpointStore, path: str) -> types.TrainingRun:
    info = store.run_info(path)
    return types.TrainingRun(
        training_run_id=path.removeprefix("tinker://").split("/")[0],
        base_model=info.base_model,
        model_owner="local",
        is_lora=info.lora_rank is not None,
        lora_rank=info.lora_rank,
        last_request_time=datetime.fromtimestamp(info.created, UTC),
        user_metadata=info.user_metadata,
    )
