"""Serve weights until Ctrl-C: ``evert serve model=runs/NAME`` (``serving/service.py``)."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chz

from evert.bridge.errors import EvertError
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.backend import threads_of
from evert.trainers.config.command import Command
from evert.trainers.config.fields import Dtype, device, port, setting, size, trust
from evert.trainers.config.model_names import (
    OR_RUN,
    ModelNameError,
    NamedWeights,
    check_weights,
    find_model,
    is_here,
)

USAGE = """\
Usage: evert serve model=NAME [key=value ...]

  evert serve model=runs/NAME              the last weights of a run
  evert serve model=runs/NAME@20 port=8000
  evert serve model=evert-tiny host=0.0.0.0

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
        "127.0.0.1", "interface to listen on; 0.0.0.0: other machines can connect, by plain HTTP"
    )
    port: int = port("0: a free one")
    api_key_env: str = setting(
        "VLLM_API_KEY", "environment variable with the key that clients send; not set: a random key"
    )
    trust_remote_code: bool = trust()
    device: str = device("cpu, cuda or auto")
    threads: int | None = size(None, "CPU threads; None: 1 for a shipped base")
    dtype: Dtype = setting(
        "auto", "type of the weights; auto: bfloat16 on CUDA for models trained with an adapter"
    )
    seed: int = setting(0, "seed for requests that have none")


def _run(settings: ServeSettings) -> None:
    with serving(settings) as said:
        print(said, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("\nStopped.")


@contextmanager
def serving(settings: ServeSettings) -> Iterator[str]:
    """Serve inside the block; yield the text that tells users how to connect."""
    found = _weights(settings.model)

    import tinker

    from evert.trainers.engine.embedded import embedded_engine
    from evert.trainers.serving.service import PolicyService

    base = found.base_model or ""
    with (
        trusting_code(settings.trust_remote_code),
        embedded_engine(
            found.checkpoints,
            device=settings.device,
            dtype=settings.dtype,
            seed=settings.seed,
            threads=threads_of(settings.threads, base),
        ),
    ):
        make: Any = tinker.ServiceClient().create_sampling_client
        client = make(found.model_path, None if found.model_path else base)
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
            served = service.offer(client, settings.name or Path(settings.model).name)
            yield _message(service.url, served.model, key and settings.api_key_env, service.key)


def _weights(name: str) -> NamedWeights:
    found = check_weights(find_model(name, is_local=True), f"model={name}", "served", OR_RUN)
    if not is_here(found.base_model or ""):
        raise ModelNameError(
            f"model={name} is no shipped base, no folder, and not in the local Hugging Face cache. "
            f"Check the name, or download it first: hf download {name}."
        )
    return found


def _message(url: str, model: str, variable: str | None, key: str) -> str:
    """Return address, key and examples; a key from the environment is not shown."""
    shown = f"${variable}" if variable else key
    return f"""\
serving {model} at {url}  (Ctrl-C stops it)
key: {shown}

  curl {url}/completions -H "Authorization: Bearer {shown}" -H "Content-Type: application/json" \\
    -d '{{"model": "{model}", "prompt": "Hello", "max_tokens": 16, "return_token_ids": true}}'

  VLLM_API_KEY={shown} evert evaluate env=identity models=vllm:{url}#{model}
"""


COMMAND = Command(ServeSettings, USAGE, _run, "model")
main, parse = COMMAND.main, COMMAND.parse
