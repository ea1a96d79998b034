"""Trains a model: forward and backward passes, optimizer steps, saving and loading.

Calls run in order on the training client's worker thread, but the passes within a call may run in
parallel. Data is split into micro-batches that fit in memory, and into smaller ones if we run out
of memory. Since each loss is a sum over tokens, adding up the gradients of the micro-batches gives
the gradient of the whole batch.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from tinker import types
from torch import Tensor

from evert.trainers.engine.common.errors import CheckpointError, TrainingError
from evert.trainers.engine.common.parallel import bounded_map
from evert.trainers.engine.models.base_models import base_of, context_length, no_progress_bars
from evert.trainers.engine.models.pictures import PictureReader
from evert.trainers.engine.sampling.memory import is_out_of_memory
from evert.trainers.engine.store.checkpoints import OPTIMIZER
from evert.trainers.engine.training.examples import (
    DatumTensors,
    Limits,
    Work,
    micro_batches,
    read_custom,
    read_work,
)
from evert.trainers.engine.training.pass_budget import PassBudget, pass_budget
from evert.trainers.engine.training.passes import Passes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CustomLoss = Callable[[list[types.Datum], list[Any]], tuple[Any, dict[str, float]]]
"""(data, log-probabilities of each datum's targets) -> (scalar loss, metrics)"""

logger = logging.getLogger(__name__)


class Trainer:
    """A model with its accumulated gradient and optimizer."""

    def __init__(
        self,
        model: Any,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        checkpointing: bool | None = None,
        reader: PictureReader | None = None,
        check_needed: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a trainer for all parameters that require gradients.

        If ``checkpointing`` is None, layers are recomputed only if a pass wouldn't fit otherwise.
        ``check_needed`` is called before each micro-batch and can raise an error to stop the pass.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.steps = 0
        self.passes = Passes(model)
        reader = reader or PictureReader(model.config.name_or_path)
        self._limits = Limits(self.passes.vocabulary, context_length(model), reader)
        self._checkpointing = checkpointing
        self._check_needed = check_needed
        self._optimizer: torch.optim.AdamW | None = None
        self._failure: str | None = None

    def read(
        self, data: Sequence[types.Datum], loss_fn: str, config: Mapping[str, Any] | None = None
    ) -> Work:
        """Parse a training request; see ``read_work``. Thread-safe."""
        return read_work(data, loss_fn, config, self._limits)

    def read_custom(self, data: Sequence[types.Datum]) -> Work:
        """Parse a request with a custom loss; see ``examples.py``. Thread-safe."""
        return read_custom(data, self._limits)

    def forward(self, work: Work) -> types.ForwardBackwardOutput:
        """Compute the loss and the targets' log-probabilities, without a gradient."""
        return self._run(work, backward=False)

    def forward_backward(self, work: Work) -> types.ForwardBackwardOutput:
        """Like ``forward``, but also accumulate the gradient of the summed loss.

        If this fails, the accumulated gradient is discarded and the next optimizer step will fail.
        """
        with self._all_or_nothing():
            return self._run(work, backward=True)

    def forward_backward_custom(
        self, work: Work, data: Sequence[types.Datum], loss_fn: CustomLoss
    ) -> types.ForwardBackwardOutput:
        """Like ``forward_backward``, but with a custom loss computed from the log-probabilities.

        ``work`` must be the result of ``read_custom(data)``.
        """
        with self._all_or_nothing():
            first = self._run(work, backward=False)
            logprobs = [
                output["logprobs"].to_torch().clone().requires_grad_(True)
                for output in first.loss_fn_outputs
            ]
            loss, metrics = loss_fn(list(data), logprobs)
            _check_custom(loss)
            loss.backward()
            # With w = -dC/dlogp, cross-entropy, -sum(w log p), has the gradient of the loss C.
            carriers = [
                replace(example, inputs={"weights": _gradient_of(values, i)})
                for i, (example, values) in enumerate(zip(work.examples, logprobs, strict=True))
            ]
            second = self._run(replace(work, examples=carriers), backward=True)
        second.metrics["surrogate_loss:sum"] = second.metrics["loss:sum"]
        second.metrics.update(metrics)
        second.metrics["loss:sum"] = float(loss.detach().sum())
        return second

    def optim_step(self, params: types.AdamParams) -> types.OptimStepResponse:
        """Take one AdamW step on the accumulated gradient, then reset the gradient.

        If a pass failed or the gradient is not finite, this raises an error and doesn't change the
        weights.
        """
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self._check_gradient(norm)
        if params.grad_clip_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, params.grad_clip_norm, norm)
        optimizer = self._prepared_optimizer(params)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return types.OptimStepResponse(
            metrics={"optim/grad_norm": float(norm), "optim/lr": params.learning_rate}
        )

    def save_weights(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """Save the tokenizer and the model or adapter (or ``state``, an earlier copy of it)."""
        options: dict[str, Any] = {} if state is None else {"state_dict": state}
        if hasattr(self.model, "peft_config"):
            options["save_embedding_layers"] = False  # large, and unchanged from the base model
        with no_progress_bars():
            self.model.save_pretrained(folder, **options)
        self.tokenizer.save_pretrained(folder)

    def copy_weights(self) -> dict[str, Tensor]:
        """Return a copy of the trained weights: the full model's weights, or only the adapter's."""
        from peft import PeftModel

        if isinstance(self.model, PeftModel):
            return {k: v.clone() for k, v in self.model.state_dict().items() if "lora_" in k}
        first: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in self.model.state_dict().items():
            # Tied weights are saved once, under their first name, and tied again when loaded.
            first.setdefault(tensor.data_ptr(), (name, tensor))
        return {name: tensor.clone() for name, tensor in first.values()}

    def save_optimizer(self, folder: Path) -> None:
        """Save the optimizer state, so that training can be resumed exactly."""
        tensors = {}
        for name, parameter in self._trained_parameters().items():
            state = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
            tensors.update({f"{name}:{key}": value.contiguous() for key, value in state.items()})
        safetensors.torch.save_file(tensors, folder / OPTIMIZER, {"steps": str(self.steps)})

    def load_optimizer(self, folder: Path) -> None:
        """Load optimizer state saved by ``save_optimizer``."""
        file = folder / OPTIMIZER
        if not file.is_file():
            raise CheckpointError(
                f"{folder} has no {OPTIMIZER}, because it was saved for sampling and not for "
                "training. Load only its weights, or use a checkpoint saved with save_state."
            )
        with safetensors.safe_open(file, "pt") as archive:
            self.steps = int(archive.metadata()["steps"])
        tensors = safetensors.torch.load_file(file)
        trained = self._trained_parameters()
        optimizer = self._prepared_optimizer(types.AdamParams())
        for key, value in tensors.items():
            name, _, field = key.rpartition(":")
            if name not in trained:
                raise CheckpointError(
                    f"{file} contains optimizer state for {name!r}, which is not trained in this "
                    "model. Load it with the base model and rank that it was saved with."
                )
            # AdamW keeps its step counter on the CPU.
            place = value if field == "step" else value.to(self.passes.device)
            optimizer.state[trained[name]][field] = place

    def _trained_parameters(self) -> dict[str, Tensor]:
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def _prepared_optimizer(self, params: types.AdamParams) -> torch.optim.AdamW:
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(self._trained_parameters().values(), lr=0.0)
        for group in self._optimizer.param_groups:
            group.update(
                lr=params.learning_rate,
                betas=(params.beta1, params.beta2),
                eps=params.eps,
                weight_decay=params.weight_decay,
            )
        return self._optimizer

    def _check_gradient(self, norm: Tensor) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise TrainingError(
                f"The optimizer step was not taken because the previous pass failed ({failure}). "
                "The weights were not changed. Fix the data and run both again."
            )
        if not bool(torch.isfinite(norm)):
            self.model.zero_grad()
            raise TrainingError(
                f"The optimizer step was not taken because the gradient norm is {float(norm)}. The "
                "weights were not changed. Check the advantages and log-probabilities for "
                "non-finite values, or lower the learning rate."
            )

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.model.zero_grad()
            self._failure = str(error)
            raise

    def _run(self, work: Work, *, backward: bool) -> types.ForwardBackwardOutput:
        device = self.passes.device
        examples = [example.to(device) for example in work.examples]
        lengths = [len(example.tokens) for example in examples]
        budget: PassBudget | None = pass_budget(
            lengths,
            base_of(self.model).config,
            self.passes.dtype,
            device,
            checkpointing=self._checkpointing if backward else True,  # a forward pass needs less
            gradient_bytes=sum(p.nbytes for p in self._trained_parameters().values()),
        )
        before = self._gradient() if backward else {}
        while budget is not None:
            try:
                return self._run_batches(examples, work, budget, backward=backward)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                logger.warning("Out of memory with %s; retrying with a smaller one.", budget)
            budget = budget.smaller(lengths)
            if backward:
                self._restore_gradient(before)
        raise TrainingError(
            f"{device} does not have enough memory for a pass over {max(lengths)} tokens, even "
            "with one datum at a time and gradient checkpointing. Train an adapter "
            "(full_parameter=False), use bfloat16 (dtype), shorter sequences or a smaller model."
        )

    def _gradient(self) -> dict[Tensor, Tensor]:
        return {p: p.grad.clone() for p in self.model.parameters() if p.grad is not None}

    def _restore_gradient(self, gradients: Mapping[Tensor, Tensor]) -> None:
        self.model.zero_grad()
        for parameter, gradient in gradients.items():
            parameter.grad = gradient.clone()

    def _run_batches(
        self,
        examples: Sequence[DatumTensors],
        work: Work,
        budget: PassBudget,
        *,
        backward: bool,
    ) -> types.ForwardBackwardOutput:
        trained = [*self._trained_parameters().values()] if backward else []
        self.passes.set_checkpointing(budget.checkpointing and backward)

        def run(group: list[int]) -> tuple[Tensor, float, Sequence[Tensor | None]]:
            self._check_needed()
            chosen = [examples[i] for i in group]
            inputs = [example.inputs for example in chosen]
            targets = torch.cat([example.targets for example in chosen])
            with torch.set_grad_enabled(backward):  # this setting is thread-local
                logprobs = self.passes.logprobs([example.tokens for example in chosen], targets)
                value = work.loss.total(logprobs, inputs, work.settings)
            gradients = torch.autograd.grad(value, trained, allow_unused=True) if backward else ()
            return logprobs.detach().cpu(), float(value.detach()), gradients

        outputs: list[types.LossFnOutput] = [{} for _ in examples]
        total = 0.0
        groups = micro_batches(examples, budget.tokens, folds=self.passes.folds)
        results = bounded_map(run, groups, budget.parallel)
        for group, (logprobs, value, gradients) in zip(groups, results, strict=True):
            total += value
            _accumulate(trained, gradients)
            parts = torch.split(logprobs, [len(examples[i].tokens) for i in group])
            for i, part in zip(group, parts, strict=True):
                outputs[i] = {"logprobs": types.TensorData.from_torch(part.clone())}
        return types.ForwardBackwardOutput("TensorData", outputs, {"loss:sum": total})


def _accumulate(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def _check_custom(loss: Any) -> None:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad:
        return
    shape = f" of shape {[*loss.shape]}" if isinstance(loss, Tensor) else ""
    detached = ", without a gradient" if shape and not loss.requires_grad else ""
    raise TrainingError(
        f"The custom loss is a {type(loss).__name__}{shape}{detached}; expected a scalar tensor "
        "computed from the log-probabilities. Sum it, and do not detach it."
    )


def _gradient_of(logprobs: Tensor, index: int) -> Tensor:
    if logprobs.grad is None:
        raise TrainingError(
            f"The custom loss does not depend on the log-probabilities of datum {index}; it must "
            "use every datum. Leave that datum out, or add 0 times their sum to the loss."
        )
    return -logprobs.grad
