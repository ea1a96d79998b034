"""The REST client: lists, describes, locates and deletes training runs and checkpoints.

Everything is read from the engine's folder (``catalog.py``). Methods that need accounts, sessions
or billing raise an error that suggests an alternative.
"""

import time
from typing import Any, ClassVar

import tinker
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from evert.bridge.tokens.bases import BASES
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.futures import settled_future
from evert.trainers.engine.clients.surface import refuse_hosted
from evert.trainers.engine.common.errors import CheckpointError
from evert.trainers.engine.models.base_models import base_context_length
from evert.trainers.engine.store import catalog

SHORTEST_TTL, LONGEST_TTL = 3600, 10 * 366 * 24 * 3600
"""The range that the hosted service accepts for ``ttl_seconds``: one hour to ten years."""

_NO_SESSIONS = "it has no sessions. Use list_training_runs() to list the runs in its folder."
_NO_BILL = "nothing is billed here. Use list_user_checkpoints() to get the size of each checkpoint."
_NOT_PUBLIC = (
    "its checkpoints are files on this machine. Share or copy them instead; "
    "get_external_weights_urls(path) lists the files."
)

NO_COPY = (
    "it has no projects. Use create_training_client_from_state_with_optimizer(path) to start a new "
    "run, or get_external_weights_urls(path) to list the files."
)

REFUSED = {
    "copy_weights": NO_COPY,
    "get_weights_info_by_tinker_path": "it keeps this information per run. Use "
    "get_training_run_by_tinker_path(path) to get the base model and the LoRA rank.",
    "get_audit_log": "it has no audit log. Only the hosted service keeps one.",
    "publish_checkpoint_from_tinker_path": _NOT_PUBLIC,
    "unpublish_checkpoint_from_tinker_path": _NOT_PUBLIC,
    "get_session": _NO_SESSIONS,
    "list_sessions": _NO_SESSIONS,
    "search_sessions": _NO_SESSIONS,
    "assign_session_project": _NO_SESSIONS,
    "export_session_trace": "it doesn't record traces. Use torch.profiler to trace this process.",
    "whoami": "it has no accounts. Remove the call.",
    "get_sampler": "samplers have no ids here. Use SamplingClient.get_base_model() to get the "
    "model's name.",
    "get_billing_usage": _NO_BILL,
    "get_current_checkpoint_storage_usage": _NO_BILL,
}
"""SDK methods that the engine can't serve, mapped to the reason and what to do instead."""


def capabilities(engine: Engine) -> types.GetServerCapabilitiesResponse:
    """List the bundled base models and the models for which clients have been created."""
    models = [
        types.SupportedModel(
            model_name=name,
            max_context_length=base_context_length(name),
            trainable=True,
            sampleable=True,
        )
        for name in dict.fromkeys([*BASES, *engine.requested_models])
    ]
    return types.GetServerCapabilitiesResponse(supported_models=models)


@refuse_hosted(tinker.RestClient, REFUSED)
class RestClient:
    """Manages the training runs and checkpoints in the engine's folder."""

    engine: ClassVar[Engine]

    def __init__(self, **options: Any) -> None:
        """Accept the SDK's options and ignore them."""
        self._store = self.engine.store

    def get_server_capabilities(
        self,
    ) -> AwaitableConcurrentFuture[types.GetServerCapabilitiesResponse]:
        """List the bundled base models and the models for which clients have been created."""
        return settled_future(capabilities, self.engine)

    def get_training_run(
        self, training_run_id: str, access_scope: str = "owned"
    ) -> AwaitableConcurrentFuture[types.TrainingRun]:
        """Return a training run, including its ``user_metadata``."""
        return self.get_training_run_by_tinker_path(f"tinker://{training_run_id}/weights/any")

    def get_training_run_by_tinker_path(
        self, tinker_path: str, access_scope: str = "owned"
    ) -> AwaitableConcurrentFuture[types.TrainingRun]:
        """Return the training run that a checkpoint belongs to."""
        return settled_future(catalog.training_run, self._store, tinker_path)

    def list_training_runs(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: str = "owned",
        project_id: str | None = None,
    ) -> AwaitableConcurrentFuture[types.TrainingRunsResponse]:
        """List the runs in the engine's folder, newest first; ``project_id`` is ignored."""
        return settled_future(catalog.page_of_runs, self._store, offset, limit)

    def list_checkpoints(
        self, training_run_id: str
    ) -> AwaitableConcurrentFuture[types.CheckpointsListResponse]:
        """List a run's checkpoints, newest first."""
        return settled_future(catalog.checkpoints_of, self._store, training_run_id)

    def list_user_checkpoints(
        self, limit: int = 100, offset: int = 0
    ) -> AwaitableConcurrentFuture[types.CheckpointsListResponse]:
        """List the checkpoints of all runs, newest first."""
        return settled_future(catalog.page_of_checkpoints, self._store, offset, limit)

    def get_external_weights_urls(
        self, tinker_path: str
    ) -> AwaitableConcurrentFuture[types.ExternalWeightsUrlsResponse]:
        """Return a ``file://`` URL for each file in a checkpoint of any type."""
        return settled_future(catalog.file_urls, self._store, tinker_path)

    def set_checkpoint_ttl_from_tinker_path(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> AwaitableConcurrentFuture[None]:
        """Record when a checkpoint expires (None: never). It is not deleted automatically."""
        return settled_future(self._keep, tinker_path, ttl_seconds)

    def delete_checkpoint(
        self, training_run_id: str, checkpoint_id: str
    ) -> AwaitableConcurrentFuture[None]:
        """Delete a checkpoint by its id as shown in listings, such as ``weights/000010``."""
        return self.delete_checkpoint_from_tinker_path(
            f"tinker://{training_run_id}/{checkpoint_id}"
        )

    def delete_checkpoint_from_tinker_path(
        self, tinker_path: str
    ) -> AwaitableConcurrentFuture[None]:
        """Delete a checkpoint."""
        return settled_future(self._store.delete, tinker_path)

    def get_telemetry(self) -> None:
        """Return None: the engine sends no telemetry."""

    def _keep(self, path: str, ttl_seconds: int | None) -> None:
        if ttl_seconds is not None and not SHORTEST_TTL <= ttl_seconds <= LONGEST_TTL:
            raise CheckpointError(
                f"ttl_seconds for {path} is {ttl_seconds}; expected {SHORTEST_TTL} (one hour) to "
                f"{LONGEST_TTL} (ten years), or None to keep it forever."
            )
        self._store.expire(path, None if ttl_seconds is None else time.time() + ttl_seconds)
