"""The training client: trains a model, running all calls in order on one worker thread."""

import functools
import math
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tinker
from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from evert.trainers.engine.clients.engine import Engine, TrainingRun
from evert.trainers.engine.clients.futures import (
    AcceptedCall,
    ReadyClient,
    client_future,
    finished_future,
)
from evert.trainers.engine.clients.sampling_client import SamplingClient, Source, saved_client
from evert.trainers.engine.clients.surface import async_forms, refuse_unknown
from evert.trainers.engine.common.errors import CheckpointError, LossInputError, TrainingError
from evert.trainers.engine.store.checkpoints import CheckpointInfo, Kind, checkpoint_path
from evert.trainers.engine.store.encryption import encrypt
from evert.trainers.engine.training.trainer import CustomLoss, Trainer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


@refuse_unknown(tinker.TrainingClient)
@async_forms(tinker.TrainingClient, keep=AwaitableConcurrentFuture)
class TrainingClient(ReadyClient):
    """Trains a model. Calls return immediately and run in order in the background."""

    def __init__(self, engine: Engine, run: TrainingRun) -> None:
        self.model_id = run.run_id
        self._engine = engine
        self._run = run
        self._worker = engine.new_worker()
        weakref.finalize(self, self._worker.shutdown, wait=False)

    def forward(
        self,
        data: list[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, Any] | None = None,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Compute the loss and the targets' log-probabilities, without a gradient."""
        work = self._run.trainer.read(data, loss_fn, loss_fn_config)
        return self._submit(lambda trainer: trainer.forward(work))

    def forward_backward(
        self,
        data: list[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, Any] | None = None,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Compute the summed loss and accumulate its gradient until the next ``optim_step``."""
        work = self._run.trainer.read(data, loss_fn, loss_fn_config)
        return self._submit(lambda trainer: trainer.forward_backward(work))

    def forward_backward_custom(
        self,
        data: list[types.Datum],
        loss_fn: CustomLoss,
        *,
        loss_type_input: str | None = None,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Like ``forward_backward``, for a custom loss: ``(data, logprobs) -> (loss, metrics)``."""
        if loss_type_input not in (None, "logprobs"):
            raise LossInputError(
                f"loss_type_input is {loss_type_input!r}, but custom losses can only take "
                "log-probabilities. Leave it out."
            )
        work = self._run.trainer.read_custom(data)
        return self._submit(lambda trainer: trainer.forward_backward_custom(work, data, loss_fn))

    def optim_step(
        self,
        optim_params: types.OptimParams | None = None,
        *,
        adam_params: types.AdamParams | None = None,
    ) -> AwaitableConcurrentFuture[types.OptimStepResponse]:
        """Take one AdamW step on the accumulated gradient."""
        all_params = [params for params in (optim_params, adam_params) if params is not None]
        if len(all_params) != 1 or not isinstance(all_params[0], types.AdamParams):
            raise TrainingError(
                f"optim_step got {all_params}; expected exactly one AdamParams, because the "
                "embedded engine supports only AdamW. Call "
                "optim_step(AdamParams(learning_rate=...))."
            )
        params = all_params[0]
        _check_step(params)
        return self._submit(lambda trainer: trainer.optim_step(params))

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> AwaitableConcurrentFuture[types.SaveWeightsResponse]:
        """Save the weights and the optimizer state, so that training can resume."""

        def write(trainer: Trainer, folder: Path) -> None:
            trainer.save_weights(folder)
            trainer.save_optimizer(folder)

        answer = types.SaveWeightsResponse
        details = ttl_seconds, user_metadata
        return self._save(answer, "weights", name, write, *details, overwrite=overwrite)

    def load_state(
        self, path: str, weights_access_token: str | None = None
    ) -> AwaitableConcurrentFuture[types.LoadWeightsResponse]:
        """Load a checkpoint's weights once all earlier calls are done; reset the optimizer."""
        return self._load(path, with_optimizer=False)

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> AwaitableConcurrentFuture[types.LoadWeightsResponse]:
        """Load a checkpoint's weights and optimizer state once all earlier calls are done."""
        return self._load(path, with_optimizer=True)

    def save_weights_for_sampler(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> AwaitableConcurrentFuture[types.SaveWeightsForSamplerResponse]:
        """Save the weights for sampling."""
        answer, write = types.SaveWeightsForSamplerResponse, Trainer.save_weights
        return self._save(answer, "sampler_weights", name, write, ttl_seconds, user_metadata)

    def save_weights_external(
        self,
        name: str,
        ttl_seconds: int | None = None,
        age_encryption_recipients: list[str] | None = None,
    ) -> AwaitableConcurrentFuture[types.SaveWeightsExternalResponse]:
        """Save the weights for use elsewhere (see ``RestClient.get_external_weights_urls``)."""

        def write(trainer: Trainer, folder: Path) -> None:
            trainer.save_weights(folder)
            if age_encryption_recipients:
                encrypt(folder, age_encryption_recipients)

        answer = types.SaveWeightsExternalResponse
        return self._save(answer, "external_weights", name, write, ttl_seconds)

    def save_weights_and_get_sampling_client(
        self,
        name: str | None = None,
        retry_config: Any = None,
        record_stability_info: bool = False,
        kind: "types.SamplingClientKind" = "snapshot",
    ) -> "tinker.BackcompatSamplingClientFuture":
        """Return a client that samples from an in-memory copy of the current weights.

        ``name`` and ``kind`` are ignored.
        """
        take = functools.partial(self._snapshot, records=record_stability_info)
        return client_future("Sampling", self._submit(take))  # type: ignore[no-any-return]

    def create_sampling_client(
        self,
        model_path: str,
        retry_config: Any = None,
        record_stability_info: bool = False,
    ) -> SamplingClient:
        """Sample from a checkpoint; see ``ServiceClient.create_sampling_client``."""
        return saved_client(self._engine, model_path, records=record_stability_info)

    def get_info(self) -> types.GetInfoResponse:
        """Return the model's name and LoRA rank."""
        run, name = self._run, self._run.base_model
        arch = run.trainer.model.config.model_type
        return types.GetInfoResponse(
            model_data=types.ModelData(arch=arch, model_name=name, tokenizer_id=name),
            model_id=run.run_id,
            is_lora=run.lora_rank is not None,
            lora_rank=run.lora_rank,
            model_name=name,
        )

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """Return the model's tokenizer."""
        return self._run.trainer.tokenizer

    def get_console_url(self) -> str:
        """Return the URL of this run's checkpoint folder, since there is no web console."""
        return (self._engine.store.root / self.model_id).absolute().as_uri()

    def _submit(
        self, call: Callable[[Trainer], T], save_path: str | None = None
    ) -> AwaitableConcurrentFuture[T]:
        self._engine.check_open()
        future = AcceptedCall[T]() if save_path is None else self._engine.saves.accept(save_path)
        future.follow(self._worker.submit(self._in_turn, call))
        return AwaitableConcurrentFuture(future)

    def _in_turn(self, call: Callable[[Trainer], T]) -> T:
        self._engine.check_needed(self.model_id)  # the engine may have been closed in the meantime
        # Look up the trainer only now, because an earlier ``load_state`` may have replaced it.
        return call(self._run.trainer)

    def _load(
        self, path: str, *, with_optimizer: bool
    ) -> AwaitableConcurrentFuture[types.LoadWeightsResponse]:
        def load(trainer: Trainer) -> types.LoadWeightsResponse:
            self._engine.reload(self._run, path, with_optimizer=with_optimizer)
            return types.LoadWeightsResponse(path=path, model_id=self.model_id)

        return self._submit(load)

    def _save(
        self,
        answer: Callable[..., T],
        kind: Kind,
        name: str,
        write: Callable[[Trainer, Path], None],
        ttl_seconds: int | None,
        user_metadata: dict[str, str] | None = None,
        *,
        overwrite: bool = True,
    ) -> AwaitableConcurrentFuture[T]:
        store, run_id = self._engine.store, self._run.run_id
        path = checkpoint_path(run_id, kind, name)
        _check_ttl(path, ttl_seconds)

        def save(trainer: Trainer) -> T:
            info = self._info(ttl_seconds, user_metadata)
            files = functools.partial(write, trainer)
            store.save(run_id, kind, name, info, files, overwrite=overwrite)
            return answer(path=path)

        return self._submit(save, path)

    def _info(
        self, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> CheckpointInfo:
        run, now = self._run, time.time()
        expires = None if ttl_seconds is None else now + ttl_seconds
        origin = run.base_model, run.lora_rank, run.trainer.steps
        return CheckpointInfo(*origin, now, expires, dict(user_metadata or {}))

    def _snapshot(self, trainer: Trainer, *, records: bool) -> Any:
        run, engine = self._run, self._engine
        occasion = engine.occasion(trainer.steps)
        sampler = engine.new_sampler(trainer.model, trainer.tokenizer, trainer.steps, occasion)
        write = functools.partial(trainer.save_weights, state=trainer.copy_weights())
        name, info = f"snapshot-{trainer.steps}-{occasion}", self._info()
        store = engine.store
        save = functools.partial(store.save, run.run_id, "sampler_weights", name, info, write)
        source = Source(run.base_model, save)
        return SamplingClient(engine, finished_future(sampler).future(), source, records=records)


def _check_ttl(path: str, ttl_seconds: int | None) -> None:
    if ttl_seconds is not None and ttl_seconds <= 0:
        raise CheckpointError(
            f"ttl_seconds for {path} is {ttl_seconds}; expected a positive number of seconds, or "
            "None to keep it forever. Nothing was saved."
        )


def _check_step(params: types.AdamParams) -> None:
    for name, value in params.model_dump(exclude={"grad_clip_norm"}).items():
        limit = 1.0 if name.startswith("beta") else math.inf
        if not math.isfinite(value) or value < 0 or value >= limit:
            expected = "of at least 0 and less than 1" if limit == 1.0 else "of 0 or more"
            raise TrainingError(
                f"optim_step got {name}={value}; expected a number {expected}. The weights were "
                "not changed."
            )
