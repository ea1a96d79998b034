"""The context manager that replaces the Tinker SDK's clients with the engine's."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import tinker
import torch

from evert.bridge.tokens.bases import register_with_cookbook
from evert.trainers.engine.clients.engine import Engine, logger
from evert.trainers.engine.clients.rest_client import RestClient
from evert.trainers.engine.clients.service_client import ServiceClient
from evert.trainers.engine.clients.surface import TESTED, UNKNOWN
from evert.trainers.engine.common.installing import Swap, cpu_threads, swap_names
from evert.trainers.engine.common.network import allowed_hosts, no_network
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.engine.models.stand_ins import StandIns, lookups, tokenizers


@contextmanager
def embedded_engine(
    root: str | Path | None = None,
    *,
    device: str = "auto",
    seed: int = 0,
    full_parameter: bool | None = None,
    dtype: torch.dtype | str | None = None,
    gradient_checkpointing: bool | None = None,
    threads: int | None = None,
    allow_hosts: Collection[str] = (),
    stand_ins: Mapping[str, str] | None = None,
) -> Iterator[Engine]:
    """Inside the block, run Tinker's clients in this process and prevent network access.

    Args:
        root: Checkpoint folder (default: ``$EVERT_HOME``, or ``~/.cache/evert/checkpoints`` if
            the variable is not set).
        device: ``"cpu"``, ``"cuda"``, ``"mps"`` (Apple GPUs), or ``"auto"``, which picks CUDA if
            available, then MPS, then the CPU.
        seed: Seed for sampling and for initializing adapters. On a CPU, the same seed and requests
            reproduce the same tokens, up to rounding (see ``sampler.py``).
        full_parameter: Whether to train all weights (True) or a LoRA adapter (False). By default,
            models with fewer than 50 million parameters are fully trained, and larger ones get an
            adapter. The Cookbook's ``rank`` setting only applies to adapters.
        dtype: Data type of the weights, for example ``"bfloat16"``. The default is bfloat16 on
            CUDA if an adapter is trained, and float32 otherwise (see ``full_parameter``). Adapters
            are stored in float32, but applied in this type.
        gradient_checkpointing: Whether the backward pass recomputes each layer, which saves
            memory but takes a third more time. By default, layers are recomputed only if a pass
            wouldn't fit in memory otherwise.
        threads: Number of PyTorch CPU threads to use inside the block (None leaves it unchanged).
            With tiny models on a shared machine, 1 is often fastest: threads wait for one another.
        allow_hosts: Hosts that stay reachable inside the block, for example a tool server.
        stand_ins: Maps model name patterns to the models to use instead, for example
            ``{"Qwen/*": "evert-tiny"}`` (see ``stand_ins.py``). The first matching pattern wins.

    Yields:
        The engine.

    Raises:
        ModelNotFoundError: The device or dtype is unknown, or a stand-in is not on this machine.
    """
    folder = None if root is None else Path(root)
    settings = EngineSettings(folder, device, seed, full_parameter, dtype, gradient_checkpointing)
    with (
        no_network(allow_hosts),
        cpu_threads(threads),
        _in_use(Engine(settings, StandIns(stand_ins))) as engine,
    ):
        yield engine


@contextmanager
def _in_use(engine: Engine) -> Iterator[Engine]:
    register_with_cookbook()
    with swap_names(_swaps(engine)), tokenizers(engine.stand_ins):
        logger.info(
            "Using evert's embedded engine on %s. Checkpoints are saved to %s. Hosts that Python "
            "code in this process can still reach: %s.",
            engine.device,
            engine.store.root,
            ", ".join(sorted(allowed_hosts() or ())) or "none",
        )
        _warn_of_newer_sdk()
        try:
            yield engine
        finally:
            engine.close()


def _warn_of_newer_sdk() -> None:
    """Warn if the installed SDK is newer than the newest version evert was tested with."""
    installed, tested = (
        tuple(map(int, text.split(".")[:2])) for text in (version("tinker"), TESTED)
    )
    if installed > tested:
        news = ", ".join(UNKNOWN) or "none that affect the engine"
        logger.warning(
            "tinker %s is newer than %s, the newest version evert was tested with. Differences: "
            "%s. If something fails, run: pip install 'tinker<=%s.99'.",
            version("tinker"), TESTED, news, TESTED,
        )  # fmt: skip


def _swaps(engine: Engine) -> list[Swap]:
    # These must be classes, because code loaded inside the block may use them in annotations.
    names = {"ServiceClient": ServiceClient, "RestClient": RestClient}
    clients = [
        (name, getattr(tinker, name), type(name, (client,), {"engine": engine}))
        for name, client in names.items()
    ]
    return [*clients, *lookups(engine.stand_ins)]
