"""The REST client: lists, describes, locates and deletes runs and checkpoints.

All answers come from the engine's folder (``catalog.py``). Methods that need accounts, sessions or
billing are refused with a message that names an alternative.
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
"""The service's range of ``ttl_seconds``: an hour to ten years."""

_NO_SESSIONS = "it keeps no sessions. list_training_runs() lists the runs of its folder."
_NO_BILL = "nothing is billed here. list_user_checkpoints() gives the size of each checkpoint."
_NOT_PUBLIC = (
    "its checkpoints are files on this machine. Share or copy the folder: "
    "get_external_weights_urls(path) lists the files."
)

NO_COPY = (
    "it has no projects. create_training_client_from_state_with_optimizer(path) starts a new run, "
    "and get_external_weights_urls(path) lists the files."
)

REFUSED = {
    "copy_weights": NO_COPY,
    "get_weights_info_by_tinker_path": "it describes weights by their run. "
    "get_training_run_by_tinker_path(path) gives the base model and the adapter's rank.",
    "get_audit_log": "it keeps no audit log. Ask the hosted service.",
    "publish_checkpoint_from_tinker_path": _NOT_PUBLIC,
    "unpublish_checkpoint_from_tinker_path": _NOT_PUBLIC,
    "get_session": _NO_SESSIONS,
    "list_sessions": _NO_SESSIONS,
    "search_sessions": _NO_SESSIONS,
    "assign_session_project": _NO_SESSIONS,
    "export_session_trace": "it records no trace. torch.profiler can trace this process.",
    "whoami": "it has no accounts. Remove the call.",
    "get_sampler": "samplers have no ids here. SamplingClient.get_base_model() names the model.",
    "get_billing_usage": _NO_BILL,
    "get_current_checkpoint_storage_usage": _NO_BILL,
}
"""Maps methods of the SDK's client that the engine cannot serve to the reason and what to do."""


def capabilities(engine: Engine) -> types.GetServerCapabilitiesResponse:
    """List the shipped bases, and the models that clients were created for."""
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
    """Runs and checkpoints of the engine's folder."""

    engine: ClassVar[Engine]

    def __init__(self, **options: Any) -> None:
        """Accept the SDK's options and ignore them."""
        self._store = self.engine.store

    def get_server_capabilities(
        self,
    ) -> AwaitableConcurrentFuture[types.GetServerCapabilitiesResponse]:
        """List the shipped bases, and the models that clients were created for."""
        return settled_future(capabilities, self.engine)

    def get_training_run(
        self, training_run_id: str, access_scope: str = "owned"
    ) -> AwaitableConcurrentFuture[types.TrainingRun]:
        """Return a run, with the ``user_metadata`` that it was started with."""
        return self.get_training_run_by_tinker_path(f"tinker://{training_run_id}/weights/any")

    def get_training_run_by_tinker_path(
        self, tinker_path: str, access_scope: str = "owned"
    ) -> AwaitableConcurrentFuture[types.TrainingRun]:
        """Return the run that a checkpoint belongs to."""
        return settled_future(catalog.training_run, self._store, tinker_path)

    def list_training_runs(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: str = "owned",
        project_id: str | None = None,
    ) -> AwaitableConcurrentFuture[types.TrainingRunsResponse]:
        """List the runs in the engine's folder, latest first; ``project_id`` is ignored."""
        return settled_future(catalog.page_of_runs, self._store, offset, limit)

    def list_checkpoints(
        self, training_run_id: str
    ) -> AwaitableConcurrentFuture[types.CheckpointsListResponse]:
        """List the checkpoints of a run, latest first."""
        return settled_future(catalog.checkpoints_of, self._store, training_run_id)

    def list_user_checkpoints(
        self, limit: int = 100, offset: int = 0
    ) -> AwaitableConcurrentFuture[types.CheckpointsListResponse]:
        """List the checkpoints of all runs, latest first."""
        return settled_future(catalog.page_of_checkpoints, self._store, offset, limit)

    def get_external_weights_urls(
        self, tinker_path: str
    ) -> AwaitableConcurrentFuture[types.ExternalWeightsUrlsResponse]:
        """Return a ``file://`` URL for each file of a checkpoint of any kind."""
        return settled_future(catalog.file_urls, self._store, tinker_path)

    def set_checkpoint_ttl_from_tinker_path(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> AwaitableConcurrentFuture[None]:
        """Record when a checkpoint expires; None for never. Nothing is deleted automatically."""
        return settled_future(self._keep, tinker_path, ttl_seconds)

    def delete_checkpoint(
        self, training_run_id: str, checkpoint_id: str
    ) -> AwaitableConcurrentFuture[None]:
        """Delete a checkpoint by its id in listings (``weights/000010``)."""
        return self.delete_checkpoint_from_tinker_path(
            f"tinker://{training_run_id}/{checkpoint_id}"
        )

    def delete_checkpoint_from_tinker_path(
        self, tinker_path: str
    ) -> AwaitableConcurrentFuture[None]:
        """Delete a checkpoint."""
        return settled_future(self._store.delete, tinker_path)

    def get_telemetry(self) -> None:
        """None: nothing is reported."""

    def _keep(self, path: str, ttl_seconds: int | None) -> None:
        if ttl_seconds is not None and not SHORTEST_TTL <= ttl_seconds <= LONGEST_TTL:
            raise CheckpointError(
                f"ttl_seconds of {path} is {ttl_seconds}; expected {SHORTEST_TTL} (an hour) to "
                f"{LONGEST_TTL} (ten years), or None for never."
            )
        self._store.expire(path, None if ttl_seconds is None else time.time() + ttl_seconds)
