"""The training client: a model in training, whose calls run in order on one worker thread."""

import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker import types
from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from evert.trainers.engine.checkpoints import Kind, new_checkpoint_info
from evert.trainers.engine.engine import Engine, TrainingRun
from evert.trainers.engine.errors import TrainingError
from evert.trainers.engine.futures import Ready, submit
from evert.trainers.engine.sampler import Sampler
from evert.trainers.engine.sampling_client import SamplingClient, Source, saved_client
from evert.trainers.engine.training import CustomLoss

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TrainingClient(Ready):
    """A model in training. Calls return at once and run in the order they were made."""

    def __init__(self, engine: Engine, run: TrainingRun) -> None:
        """Train ``run`` on a worker thread of the engine's."""
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
        """The loss and the targets' log-probabilities, without a gradient."""
        return self._submit(self._run.trainer.forward, data, loss_fn, loss_fn_config)

    async def forward_async(
        self,
        data: list[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, Any] | None = None,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """See ``forward``."""
        return self.forward(data, loss_fn, loss_fn_config)

    def forward_backward(
        self,
        data: list[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, Any] | None = None,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Add the gradient of the summed loss to what has accumulated since the last step."""
        return self._submit(self._run.trainer.forward_backward, data, loss_fn, loss_fn_config)

    async def forward_backward_async(
        self,
        data: list[types.Datum],
        loss_fn: str,
        loss_fn_config: Mapping[str, Any] | None = None,
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """See ``forward_backward``."""
        return self.forward_backward(data, loss_fn, loss_fn_config)

    def forward_backward_custom(
        self, data: list[types.Datum], loss_fn: CustomLoss, *, loss_type_input: str | None = None
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """Like ``forward_backward`` with ``loss_fn(data, logprobs) -> (loss, metrics)``."""
        return self._submit(self._run.trainer.forward_backward_custom, data, loss_fn)

    async def forward_backward_custom_async(
        self, data: list[types.Datum], loss_fn: CustomLoss, *, loss_type_input: str | None = None
    ) -> AwaitableConcurrentFuture[types.ForwardBackwardOutput]:
        """See ``forward_backward_custom``."""
        return self.forward_backward_custom(data, loss_fn)

    def optim_step(
        self,
        optim_params: types.OptimParams | None = None,
        *,
        adam_params: types.AdamParams | None = None,
    ) -> AwaitableConcurrentFuture[types.OptimStepResponse]:
        """One AdamW step with the accumulated gradient.

        Raises:
            TrainingError: Parameters of another optimizer.
        """
        params = optim_params if optim_params is not None else adam_params
        if not isinstance(params, types.AdamParams):
            raise TrainingError(
                f"optim_step got {params!r}; the embedded engine has AdamW and expects AdamParams."
            )
        return self._submit(self._run.trainer.optim_step, params)

    async def optim_step_async(
        self,
        optim_params: types.OptimParams | None = None,
        *,
        adam_params: types.AdamParams | None = None,
    ) -> AwaitableConcurrentFuture[types.OptimStepResponse]:
        """See ``optim_step``."""
        return self.optim_step(optim_params, adam_params=adam_params)

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> AwaitableConcurrentFuture[types.SaveWeightsResponse]:
        """Save weights and optimizer, to train on from.

        One of the same name is replaced with ``overwrite``, and else a ``CheckpointError``.
        """
        return self._submit(self._save_state, name, ttl_seconds, overwrite, user_metadata)

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> AwaitableConcurrentFuture[types.SaveWeightsResponse]:
        """See ``save_state``."""
        return self.save_state(name, ttl_seconds, overwrite, user_metadata)

    def save_weights_for_sampler(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> AwaitableConcurrentFuture[types.SaveWeightsForSamplerResponse]:
        """Save weights, to sample from."""
        return self._submit(self._save_for_sampler, name, ttl_seconds, user_metadata)

    async def save_weights_for_sampler_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> AwaitableConcurrentFuture[types.SaveWeightsForSamplerResponse]:
        """See ``save_weights_for_sampler``."""
        return self.save_weights_for_sampler(name, ttl_seconds, user_metadata)

    def save_weights_and_get_sampling_client(
        self, name: str | None = None, **options: Any
    ) -> AwaitableConcurrentFuture[SamplingClient]:
        """A client for a copy of the present weights, in memory; ``name`` means nothing."""
        return self._submit(self._snapshot)

    async def save_weights_and_get_sampling_client_async(
        self, name: str | None = None, **options: Any
    ) -> SamplingClient:
        """See ``save_weights_and_get_sampling_client``."""
        return await self.save_weights_and_get_sampling_client(name).result_async()

    def create_sampling_client(self, model_path: str, **options: Any) -> SamplingClient:
        """Sample from a checkpoint, which is loaded in the background.

        Raises:
            CheckpointError: There is no such checkpoint.
        """
        return saved_client(self._engine, model_path)

    async def create_sampling_client_async(self, model_path: str, **options: Any) -> SamplingClient:
        """See ``create_sampling_client``; here the weights are loaded when it returns."""
        client = self.create_sampling_client(model_path)
        await client.loaded()
        return client

    def get_info(self) -> types.GetInfoResponse:
        """The model's name, and its adapter's rank."""
        run = self._run
        return types.GetInfoResponse(
            model_data=types.ModelData(
                arch=run.trainer.model.config.model_type,
                model_name=run.base_model,
                tokenizer_id=run.base_model,
            ),
            model_id=run.run_id,
            is_lora=run.lora_rank is not None,
            lora_rank=run.lora_rank,
            model_name=run.base_model,
        )

    async def get_info_async(self) -> types.GetInfoResponse:
        """See ``get_info``."""
        return self.get_info()

    def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer."""
        return self._run.trainer.tokenizer

    def get_telemetry(self) -> None:
        """None: nothing is reported to anybody."""

    def _submit(self, call: Any, *args: Any) -> AwaitableConcurrentFuture[Any]:
        self._engine.check_open()
        return submit(self._worker, call, *args)

    def _save_state(
        self,
        name: str,
        ttl_seconds: int | None,
        overwrite: bool,
        user_metadata: dict[str, str] | None,
    ) -> types.SaveWeightsResponse:
        def write(folder: Path) -> None:
            self._run.trainer.save_weights(folder)
            self._run.trainer.save_optimizer(folder)

        path = self._save("weights", name, ttl_seconds, user_metadata, write, overwrite=overwrite)
        return types.SaveWeightsResponse(path=path)

    def _save_for_sampler(
        self, name: str, ttl_seconds: int | None, user_metadata: dict[str, str] | None
    ) -> types.SaveWeightsForSamplerResponse:
        write = self._run.trainer.save_weights
        path = self._save("sampler_weights", name, ttl_seconds, user_metadata, write)
        return types.SaveWeightsForSamplerResponse(path=path)

    def _save(
        self,
        kind: Kind,
        name: str,
        ttl_seconds: int | None,
        user_metadata: dict[str, str] | None,
        write: Any,
        *,
        overwrite: bool = True,
    ) -> str:
        run = self._run
        info = new_checkpoint_info(
            run.base_model, run.lora_rank, run.trainer.steps, ttl_seconds, user_metadata
        )
        return self._engine.store.save(run.run_id, kind, name, info, write, overwrite=overwrite)

    def _snapshot(self) -> SamplingClient:
        run = self._run
        steps = run.trainer.steps
        occasion = self._engine.occasion(steps)
        sampler: Future[Sampler] = Future()
        sampler.set_result(self._engine.sampler_for(run.trainer, occasion))
        state = run.trainer.copy_weights()
        info = new_checkpoint_info(run.base_model, run.lora_rank, steps, None, None)
        store, trainer = self._engine.store, run.trainer

        def save() -> str:
            name = f"snapshot-{steps}-{occasion}"
            return store.save(
                run.run_id,
                "sampler_weights",
                name,
                info,
                lambda folder: trainer.save_weights(folder, state),
            )

        return SamplingClient(self._engine, run.base_model, sampler, Source(run.base_model, save))
