"""Sample the agents' replies during a TRL step, from the trainer's model or its vLLM server.

    use_vllm=False                the embedded engine, with a copy of the trainer's current weights
    use_vllm=True, mode server    the server's ``/v1/completions``, with token ids
    use_vllm=True, mode colocate  not supported, because ``vllm.LLM`` only generates in batches

We don't use TRL's own generation, because it samples one turn for a whole batch. Agents make calls
at different times, with different token limits and stop sequences. TRL updates the weights of the
vLLM server before it calls the ``rollout_func``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.completers import TinkerTokenCompleter, TokenCompleter

from evert.trainers.config.arguments import UsageError
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.sampling_client import model_client
from evert.trainers.engine.models.base_models import context_length
from evert.trainers.serving.client import ServedSamplingClient

SERVER_SECONDS = 3600.0
"""Timeout for a reply. It is long because the server may be busy with many other requests."""
SERVER_COMMAND = (
    "`VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs "
    """--weight-transfer-config '{"backend": "nccl"}'`"""
)
NEUTRAL = {
    "top_p": (1.0,),
    "top_k": (0, -1, None),
    "min_p": (0.0, None),
    "repetition_penalty": (1.0,),
}
"""Trainer settings that can alter the sampling distribution, and the values that don't alter it."""
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM")
"""Types of distributed training in which no process has all of the weights."""


@dataclass(frozen=True)
class TrlPolicy:
    """The policy for one call to a ``rollout_func``."""

    policy: TokenCompleter
    context_length: int
    has_logprobs: bool
    """Whether the policy returns log-probabilities under the distribution that it samples from."""


@contextmanager
def sampling(trainer: Any, engine: Engine, number: int) -> Iterator[TrlPolicy]:
    """Yield the policy for the trainer's current step. It is only valid inside the block."""
    check(trainer)
    model = trainer.accelerator.unwrap_model(trainer.model)
    room = context_length(model)
    how = {
        "max_tokens": trainer.max_completion_length or room,
        "temperature": trainer.temperature,
    }
    if not trainer.use_vllm:
        numbers = trainer.state.global_step, number, trainer.accelerator.process_index
        client: Any = model_client(engine, "trl", model, tokenizer_of(trainer), *numbers)
        try:
            # the engine returns log-probabilities at temperature 1
            yield TrlPolicy(TinkerTokenCompleter(client, **how), room, trainer.temperature == 1)
        finally:
            client.sampler.scheduler.close()
    else:
        client = ServedSamplingClient(*_server(trainer), timeout=SERVER_SECONDS)
        yield TrlPolicy(TinkerTokenCompleter(client, **how), room, True)


def _server(trainer: Any) -> tuple[str, str]:
    """Return the vLLM server's base URL and model. Only the first process has TRL's client."""
    vllm = trainer.vllm_generation
    base = vllm.server_base_url or f"http://{vllm.server_host}:{vllm.server_port}"
    client = getattr(vllm, "vllm_client", None)
    return f"{base.rstrip('/')}/v1", client.model if client else trainer.model.config.name_or_path


def tokenizer_of(trainer: Any) -> Any:
    """Return the trainer's tokenizer, which may be part of an image processor."""
    return getattr(trainer.processing_class, "tokenizer", trainer.processing_class)


def check(trainer: Any) -> None:
    """Check the trainer's settings.

    Raises:
        UsageError: We cannot answer the agents' calls with these settings.
    """
    for name, neutral in NEUTRAL.items():
        if (value := getattr(trainer, name)) not in neutral:
            raise UsageError(
                f"GRPOConfig has {name}={value!r}; expected {neutral[0]!r}, because replies are "
                "sampled from the unmodified distribution at the trainer's temperature. Leave it "
                "out."
            )
    kind = str(trainer.accelerator.distributed_type).rpartition(".")[2]
    if not trainer.use_vllm and kind in SHARDED:
        raise UsageError(
            f"The trainer's weights are sharded across processes ({kind}), but without vLLM each "
            "process needs a full copy to sample from. Use a single process or DDP, or set "
            "use_vllm=True, vllm_mode='server'."
        )
    if trainer.use_vllm and trainer.vllm_mode != "server":
        raise UsageError(
            f"GRPOConfig has use_vllm=True, vllm_mode={trainer.vllm_mode!r}; expected 'server', "
            f"because agents don't make their calls in batches. Start {SERVER_COMMAND} on another "
            "GPU, and set vllm_mode='server', vllm_server_base_url='http://HOST:8000'."
        )
