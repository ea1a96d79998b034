"""The engine, which holds everything loaded in this process for Tinker's clients.

``embedded.py`` installs the engine's clients in place of the SDK's. The settings are defined in
``models/loading.py``.
"""

import logging
import os
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from evert.trainers.engine.clients.saves import Saves
from evert.trainers.engine.common.errors import CheckpointError, EngineClosedError
from evert.trainers.engine.common.parallel import WorkerThread
from evert.trainers.engine.models.base_models import (
    context_length,
    end_tokens,
    import_lazy_modules,
    load_tokenizer,
)
from evert.trainers.engine.models.loading import EngineSettings, Loader, LoraOptions
from evert.trainers.engine.models.pictures import PictureReader
from evert.trainers.engine.models.stand_ins import StandIns
from evert.trainers.engine.sampling.drawing import stream_key
from evert.trainers.engine.sampling.frozen import freeze
from evert.trainers.engine.sampling.sampler import ModelSampler
from evert.trainers.engine.sampling.scheduler import Scheduler
from evert.trainers.engine.store.checkpoints import PATH, CheckpointInfo, CheckpointStore, RunInfo
from evert.trainers.engine.training.trainer import Trainer

logger = logging.getLogger(__name__)


@dataclass
class TrainingRun:
    """A model being trained, and the metadata recorded in its checkpoints."""

    run_id: str
    base_model: str
    lora_rank: int | None
    """None for full-parameter training."""
    trainer: Trainer


class Engine:
    """The models, samplers and checkpoints behind the embedded clients."""

    def __init__(self, settings: EngineSettings, stand_ins: StandIns | None = None) -> None:
        import_lazy_modules()
        self.settings = settings
        self.stand_ins = stand_ins or StandIns()
        self.models = Loader(self.settings)
        self.device = self.models.device
        self.store = CheckpointStore(self.settings.root)
        self.loader = WorkerThread("evert-loader")
        self.image_worker = WorkerThread("evert-images")
        """Decodes the images in prompts, in submission order."""
        self.requested_models: set[str] = set()
        """Base models for which clients have been created."""
        self._occasions: Counter[int] = Counter()
        self._schedulers: weakref.WeakValueDictionary[int, Scheduler]
        self._schedulers = weakref.WeakValueDictionary()
        self._workers: weakref.WeakSet[WorkerThread] = weakref.WeakSet()
        self._bases: weakref.WeakValueDictionary[str, ModelSampler] = weakref.WeakValueDictionary()
        self._readers: dict[str, PictureReader] = {}
        self.saves = Saves()
        self._process = os.getpid()
        self._closed = False

    def check_process(self) -> None:
        """Raise ``EngineClosedError`` if this process was forked from the engine's process."""
        if os.getpid() != self._process:
            raise EngineClosedError(
                "This process was forked from the one that runs the embedded engine, so the "
                "engine's threads don't exist here. Start the process with "
                "multiprocessing.get_context('spawn') and pass it a sampling client as an "
                "argument, or let evert's workers play the episodes (PoolRollouts, rollouts=pool)."
            )

    def check_open(self) -> None:
        """Raise ``EngineClosedError`` if the engine is closed or belongs to another process."""
        self.check_process()
        if self._closed:
            raise EngineClosedError(
                "This client belongs to an embedded engine that is no longer in use. Use the "
                "client inside the engine's `with` block."
            )

    def check_needed(self, run_id: str) -> None:
        """Raise ``EngineClosedError`` if the engine is closed and the run has no pending save."""
        if self.saves.interrupted:
            raise EngineClosedError(
                "The embedded engine was interrupted while shutting down, before this call ran."
            )
        if not self.saves.awaits_run(run_id):
            self.check_open()

    def new_worker(self) -> WorkerThread:
        """Start a thread that runs calls in order, until ``close`` stops it."""
        self.check_open()
        worker = WorkerThread("evert-trainer")
        self._workers.add(worker)
        return worker

    def reader(self, base_model: str) -> PictureReader:
        """Return the reader that parses prompts and data for a base model."""
        return self._readers.setdefault(base_model, PictureReader(base_model))

    def start_run(
        self, base_model: str, choice: LoraOptions, user_metadata: dict[str, str]
    ) -> TrainingRun:
        """Load a base model for training."""
        self.check_open()
        self.requested_models.add(base_model)
        model, rank = self.models.trainable(base_model, choice)
        return self._new_run(base_model, model, rank, user_metadata)

    def resume_run(
        self, path: str, user_metadata: dict[str, str] | None, *, with_optimizer: bool
    ) -> TrainingRun:
        """Start a new run from a checkpoint.

        If ``user_metadata`` is None, the new run gets the metadata of the run that saved the
        checkpoint, or no metadata if ``path`` is a plain folder, which belongs to no run.
        """
        self.check_open()
        info = self.store.read(path)
        if user_metadata is None:
            has_run = PATH.fullmatch(path) is not None
            user_metadata = self.store.run_info(path).user_metadata if has_run else {}
        model = self._load_saved(path, info)
        run = self._new_run(info.base_model, model, info.lora_rank, user_metadata)
        if with_optimizer:
            run.trainer.load_optimizer(self.store.folder(path))
        return run

    def reload(self, run: TrainingRun, path: str, *, with_optimizer: bool) -> None:
        """Load a checkpoint's weights into a run, discarding the run's accumulated gradient."""
        info = self.store.read(path)
        saved, current = (info.base_model, info.lora_rank), (run.base_model, run.lora_rank)
        if saved != current:
            raise CheckpointError(
                f"{path} contains weights for {saved[0]!r} with LoRA rank {saved[1]}, but this "
                f"client trains {current[0]!r} with rank {current[1]} (None means all weights). "
                "Create a new client with ServiceClient.create_training_client_from_state."
            )
        model = self._load_saved(path, info)
        trainer = self._trainer(run.run_id, run.base_model, model, run.trainer.tokenizer)
        if with_optimizer:
            trainer.load_optimizer(self.store.folder(path))
        run.trainer = trainer

    def occasion(self, steps: int) -> int:
        """Return how many samplers have already been requested for the weights at step ``steps``.

        ``steps`` and this count seed the sampler, so a resumed run samples the same tokens as an
        uninterrupted one. We count requests rather than loads, because the order in which the
        loading threads finish is not deterministic.
        """
        occasion = self._occasions[steps]
        self._occasions[steps] += 1
        return occasion

    def base_sampler(self, base_model: str) -> ModelSampler:
        """Return a base model's sampler, loading the model only if it is not already in use."""
        self.check_open()
        sampler = self._bases.get(base_model)
        if sampler is None:
            model, tokenizer = self.models.base(base_model), load_tokenizer(base_model)
            sampler = self.new_sampler(model, tokenizer, base_model.encode())
            self._bases[base_model] = sampler
        return sampler

    def saved_sampler(self, path: str, *number: int) -> ModelSampler:
        """Return a sampler for a checkpoint. The checkpoint's step count and ``number`` seed it."""
        self.check_open()
        info = self.store.read(path)
        tokenizer = load_tokenizer(info.base_model)
        return self.new_sampler(self._load_saved(path, info), tokenizer, info.steps, *number)

    def close(self) -> None:
        """Finish pending saves, then stop all threads. Later calls raise an error.

        Passes stop before their next micro-batch, unless a pending save depends on them. If the
        user interrupts the shutdown, saves that have not started are dropped. If a save failed and
        nobody has read its error, the error is logged. In a forked process, this does nothing.
        """
        if os.getpid() != self._process:
            return
        try:
            self._closed = True
            self.saves.finish()
        finally:
            for thread in (self.loader, self.image_worker, *self._workers):
                thread.shutdown(wait=True)
            for scheduler in [*self._schedulers.values()]:
                scheduler.close()
            self.saves.report_lost()

    def _load_saved(self, path: str, info: CheckpointInfo) -> Any:
        folder = self.store.folder(path)
        if info.lora_rank is None:
            return self.models.full_model(str(folder))
        return self.models.with_adapter(info.base_model, folder)

    def _trainer(self, run_id: str, base_model: str, model: Any, tokenizer: Any) -> Trainer:
        return Trainer(
            model,
            tokenizer,
            checkpointing=self.settings.gradient_checkpointing,
            reader=self.reader(base_model),
            check_needed=partial(self.check_needed, run_id),
        )

    def _new_run(
        self, base_model: str, model: Any, rank: int | None, user_metadata: dict[str, str]
    ) -> TrainingRun:
        run_id = self.store.new_run(RunInfo(base_model, rank, user_metadata, time.time()))
        trainer = self._trainer(run_id, base_model, model, load_tokenizer(base_model))
        return TrainingRun(run_id, base_model, rank, trainer)

    def new_sampler(self, model: Any, tokenizer: Any, *number: int | bytes) -> ModelSampler:
        """Return a sampler for a copy of the current weights. A shared base model isn't copied."""
        frozen = freeze(model)
        return ModelSampler(
            frozen,
            tokenizer,
            seed=stream_key(self.settings.seed, *number),
            context_length=context_length(model),
            end_tokens=end_tokens(model, tokenizer),
            scheduler=self._scheduler(frozen.base),
        )

    def _scheduler(self, base: Any) -> Scheduler:
        scheduler = self._schedulers.get(id(base)) if base is not None else None
        if scheduler is None:
            scheduler = Scheduler()
            self._schedulers[id(scheduler if base is None else base)] = scheduler
        return scheduler
