"""``evert serve model=runs/NAME``: serve a model over HTTP (see ``serving/service.py``)."""

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

  evert serve model=runs/NAME              serve the latest weights of a run
  evert serve model=runs/NAME@20 port=8000
  evert serve model=evert-tiny models.judge=Qwen/Qwen3-8B host=0.0.0.0
  evert serve model=runs/NAME record=served    record conversations to view, rescore or export

Settings and their values:
"""


class ServeError(EvertError, OSError):
    """The server cannot listen on this address."""


@chz.chz
class ServeSettings:
    """The models to serve, and the server's options."""

    model: str = chz.field(doc="base model, Hugging Face folder, runs/NAME or runs/NAME@STEP")
    name: str = setting("", "model name that clients use (default: the last part of model=)")
    host: str = setting(
        "127.0.0.1", "address to listen on; 0.0.0.0 lets other machines connect, over plain HTTP"
    )
    port: int = port("port to listen on (0 picks a free port)")
    api_key_env: str = setting(
        "VLLM_API_KEY",
        "environment variable that holds the clients' API key; if unset, a random key is used",
    )
    trust_remote_code: bool = trust()
    device: str = device("cpu, cuda, mps or auto")
    threads: int | None = size(None, "number of CPU threads (default: 1 for a tiny model)")
    dtype: Dtype = setting(
        "auto", "weight dtype; auto uses bfloat16 on CUDA for models trained with an adapter"
    )
    models: Mapping[str, Any] = by_path(
        "additional models to serve, by the name clients use: models.NAME=runs/OTHER"
    )
    max_tokens: int | None = size(
        None,
        "maximum tokens per chat reply if the request sets no limit (default: the run's, or 2048)",
    )
    temperature: float | None = size(
        None, "temperature for all chat replies (default: the request's, or 1)", 0
    )
    keep: int = size(2**21, "maximum number of tokens of past conversations to keep per model")
    record: str = setting("", "folder to record conversations in (default: don't record)")
    record_share: float = share(1.0, "fraction of conversations to record")
    record_bytes: int = size(2**30, "maximum bytes of records to keep; the oldest are deleted")
    seed: int = setting(0, "seed for requests that don't set one")


def _run(settings: ServeSettings) -> None:
    with serving(settings) as message:
        print(message, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("\nStopped.")


@contextmanager
def serving(settings: ServeSettings) -> Iterator[str]:
    """Serve inside the block, and yield a message that explains how to connect."""
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
            assert client.sampler  # load the weights now, so that errors show up early
        key = os.environ.get(settings.api_key_env)
        try:
            service = PolicyService(settings.host, settings.port, key)
        except OSError as error:
            raise ServeError(
                f"Cannot listen on {settings.host}, port {settings.port}: {error.strerror}. Choose "
                "a different port= or host=, or omit port= to use any free port."
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
    """Map each name that clients use to its model and the setting that specified it."""
    name = settings.name or Path(settings.model).name
    more = {name: (str(model), f"models.{name}") for name, model in settings.models.items()}
    if name in more:
        raise RecipeError(
            f"models.{name}={settings.models[name]} and model={settings.model} have the same "
            "name. Choose a different name for model= with name=NAME."
        )
    return {name: (settings.model, "model"), **more}


def _place(weights: ModelRef) -> tuple[str | None, str | None]:
    """Return (path, None) for trained weights, and (None, name) for a base model."""
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
    """Record the service's conversations, and flush the records when the block exits."""
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
    """Return the address, the key (or the name of its environment variable) and examples."""
    key_text, model = f"${variable}" if variable else key, models[0]
    return f"""\
serving {", ".join(models)} at {url}  (press Ctrl-C to stop)
key: {key_text}

for programs that use the OpenAI SDK:
  export OPENAI_BASE_URL={url} OPENAI_API_KEY={key_text}
the Anthropic SDK:
  export ANTHROPIC_BASE_URL={url.removesuffix("/v1")} ANTHROPIC_API_KEY={key_text}
the Google SDK:
  export GOOGLE_GEMINI_BASE_URL={url.removesuffix("/v1")} GEMINI_API_KEY={key_text}

  curl {url}/chat/completions -H "Authorization: Bearer {key_text}" \\
    -H "Content-Type: application/json" \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

token-level API, for workers and trainers:
  VLLM_API_KEY={key_text} evert evaluate env=identity models=vllm:{url}#{model}
"""


COMMAND = Command(ServeSettings, USAGE, _run, "model")
main, parse = COMMAND.main, COMMAND.parse
