"""Serve weights until Ctrl-C: ``evert serve model=runs/NAME`` (``serving/service.py``)."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz

from evert.bridge.errors import EvertError
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.backend import threads_of
from evert.trainers.config.command import Command
from evert.trainers.config.fields import (
    Dtype,
    RecipeError,
    by_path,
    device,
    port,
    setting,
    share,
    size,
    trust,
)
from evert.trainers.config.model_names import ModelRef, local_weights

if TYPE_CHECKING:
    from evert.trainers.serving.chat import ChatModel, Sample
    from evert.trainers.serving.recording import ServedRecords
    from evert.trainers.serving.service import PolicyService

USAGE = """\
Usage: evert serve model=NAME [key=value ...]

  evert serve model=runs/NAME              the last weights of a run
  evert serve model=runs/NAME@20 port=8000
  evert serve model=evert-tiny models.judge=Qwen/Qwen3-8B host=0.0.0.0
  evert serve model=runs/NAME record=served    conversations, for evert view, rescore and export

Settings, with their values:
"""


class ServeError(EvertError, OSError):
    """The server cannot listen on the address."""


@chz.chz
class ServeSettings:
    """The weights to serve, and the address."""

    model: str = chz.field(doc="a base, a Hugging Face folder, runs/NAME or runs/NAME@STEP")
    name: str = setting("", "name that clients use; '': the model's own name")
    host: str = setting(
        "127.0.0.1", "interface to listen on; 0.0.0.0: other machines can connect, over plain HTTP"
    )
    port: int = port("port to listen on; 0: any free port")
    api_key_env: str = setting(
        "VLLM_API_KEY", "environment variable with the key that clients send; unset: a random key"
    )
    trust_remote_code: bool = trust()
    device: str = device("cpu, cuda, mps or auto")
    threads: int | None = size(None, "CPU threads; None: 1 for a tiny model")
    dtype: Dtype = setting(
        "auto", "type of the weights; auto: bfloat16 on CUDA for models trained with an adapter"
    )
    models: Mapping[str, Any] = by_path(
        "more models to serve, by the names that clients use: models.NAME=runs/OTHER"
    )
    max_tokens: int | None = size(
        None, "maximum tokens of a chat reply if the request sets none; None: the run's, or 2048"
    )
    temperature: float | None = size(
        None, "temperature of every chat reply; None: the request's, or 1", 0
    )
    keep: int = size(2**21, "maximum tokens of past conversations that each model keeps")
    record: str = setting("", "folder to record conversations in; '': nothing is recorded")
    record_share: float = share(1.0, "share of the conversations to record")
    record_bytes: int = size(2**30, "maximum bytes of the records; the oldest are deleted")
    seed: int = setting(0, "seed for requests that have none")


def _run(settings: ServeSettings) -> None:
    with serving(settings) as message:
        print(message, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("\nStopped.")


@contextmanager
def serving(settings: ServeSettings) -> Iterator[str]:
    """Serve inside the block; yield the text that tells users how to connect."""
    weights_by_name = {
        name: local_weights(text, key, "served") for name, (text, key) in _names(settings).items()
    }
    first = next(iter(weights_by_name.values()))

    import tinker

    from evert.trainers.engine.embedded import embedded_engine
    from evert.trainers.serving.service import PolicyService

    with (
        trusting_code(settings.trust_remote_code),
        embedded_engine(
            first.checkpoints,
            device=settings.device,
            dtype=settings.dtype,
            seed=settings.seed,
            threads=threads_of(settings.threads, first.model or ""),
        ),
    ):
        make: Any = tinker.ServiceClient().create_sampling_client
        clients = {name: make(*_place(weights)) for name, weights in weights_by_name.items()}
        for client in clients.values():
            assert client.sampler  # loads the weights, or raises
        key = os.environ.get(settings.api_key_env)
        try:
            service = PolicyService(settings.host, settings.port, key)
        except OSError as error:
            raise ServeError(
                f"Cannot listen on {settings.host}, port {settings.port}: {error.strerror}. Choose "
                "another port= or host=, or leave port out for a free one."
            ) from error
        with service:
            models = {
                name: _chat_model(settings, weights, service.sample(clients[name]))
                for name, weights in weights_by_name.items()
            }
            with _records(settings, models, service) as records:
                for name, client in clients.items():
                    service.offer(client, name)
                service.chat(models, records)
                yield _message(service.url, [*models], key and settings.api_key_env, service.key)


def _names(settings: ServeSettings) -> dict[str, tuple[str, str]]:
    """Map each name that clients use to the model's own name and the setting that has it."""
    name = settings.name or Path(settings.model).name
    more = {name: (str(model), f"models.{name}") for name, model in settings.models.items()}
    if name in more:
        raise RecipeError(
            f"models.{name}={settings.models[name]} and model={settings.model} have the same "
            "name. Give model= another one: name=NAME."
        )
    return {name: (settings.model, "model"), **more}


def _place(weights: ModelRef) -> tuple[str | None, str | None]:
    """Return weights' path or base, with None for the other. The path may be in any store."""
    if weights.model_path is None:
        return None, weights.model
    return str(weights.folder or weights.model_path), None


def _chat_model(settings: ServeSettings, weights: ModelRef, sample: "Sample") -> "ChatModel":
    from evert.bridge.models.tinker_model import MAX_TOKENS, context_length_here
    from evert.bridge.tokens.bases import model_renderer
    from evert.bridge.tokens.renderer import prompt_renderer
    from evert.trainers.serving.chat import ChatModel

    base, run = weights.model or "", weights.run
    sampling = {} if settings.temperature is None else {"temperature": settings.temperature}
    return ChatModel(
        sample,
        prompt_renderer(model_renderer(base, run.get("renderer_name"))),
        context=context_length_here(base),
        max_tokens=settings.max_tokens or run.get("max_tokens") or MAX_TOKENS,
        sampling=sampling,
        keep=settings.keep,
    )


@contextmanager
def _records(
    settings: ServeSettings, models: "Mapping[str, ChatModel]", service: "PolicyService"
) -> "Iterator[ServedRecords | None]":
    """Record what the service serves; write everything when the block ends."""
    if not settings.record:
        yield None
        return
    from evert.trainers.serving.recording import ServedRecords

    records = ServedRecords(
        Path(settings.record).expanduser(),
        {name: model.renderer for name, model in models.items()},
        share=settings.record_share,
        max_bytes=settings.record_bytes,
    )
    try:
        yield records
    finally:
        service.close()
        records.close()


def _message(url: str, models: list[str], variable: str | None, key: str) -> str:
    """Return a message with address, key and examples, but no key from the environment."""
    key_text, model = f"${variable}" if variable else key, models[0]
    return f"""\
serving {", ".join(models)} at {url}  (Ctrl-C stops it)
key: {key_text}

for programs that use OpenAI's SDK:
  export OPENAI_BASE_URL={url} OPENAI_API_KEY={key_text}
Anthropic's:
  export ANTHROPIC_BASE_URL={url.removesuffix("/v1")} ANTHROPIC_API_KEY={key_text}
Google's:
  export GOOGLE_GEMINI_BASE_URL={url.removesuffix("/v1")} GEMINI_API_KEY={key_text}

  curl {url}/chat/completions -H "Authorization: Bearer {key_text}" \\
    -H "Content-Type: application/json" \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

token ids, for workers and trainers:
  VLLM_API_KEY={key_text} evert evaluate env=identity models=vllm:{url}#{model}
"""


COMMAND = Command(ServeSettings, USAGE, _run, "model")
main, parse = COMMAND.main, COMMAND.parse
