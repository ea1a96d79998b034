"""``embedded_engine`` replaces the Tinker SDK's clients with the engine's inside a block."""

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
    """Serve Tinker's clients from this process inside the block, and refuse the network.

    Args:
        root: Folder of the checkpoints; None for ``$EVERT_HOME``, or ``~/.cache/evert/checkpoints``
            if that is not set.
        device: ``"cpu"``, ``"cuda"``, ``"mps"`` (Apple's GPU), or ``"auto"``: CUDA if present,
            else MPS if present, else the CPU.
        seed: Seed of sampling and of new adapters. On a CPU, the same seed and the same requests
            give the same tokens, up to rounding (``sampler.py``).
        full_parameter: Train every weight (True) or a LoRA adapter (False). None: every weight of
            a model below 50 million parameters, an adapter for a larger model. The ``rank`` that
            the Cookbook asks for applies to adapters only.
        dtype: Type of the weights, for example ``"bfloat16"``. None: bfloat16 on CUDA unless
            every weight is trained (see ``full_parameter``), else float32. Adapters are stored in
            float32, and multiplied in this type.
        gradient_checkpointing: Whether the backward pass recomputes each layer, which saves
            memory but takes a third more time. None: only if a pass would not fit otherwise.
        threads: Number of PyTorch's CPU threads inside the block; None leaves it unchanged. 1 is
            often fastest for a tiny model on a shared machine, where threads wait for one another.
        allow_hosts: Hosts that stay reachable inside the block, for example a tool's server.
        stand_ins: Maps patterns of model names to the models to use instead, for example
            ``{"Qwen/*": "evert-tiny"}`` (``stand_ins.py``). The first pattern that matches wins.

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
            "evert's embedded engine is in use on %s; checkpoints go to %s. Other machines that "
            "Python code of this process can reach: %s.",
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
    """Warn if the SDK is newer than the versions that evert was tested with."""
    installed, tested = (
        tuple(map(int, text.split(".")[:2])) for text in (version("tinker"), TESTED)
    )
    if installed > tested:
        news = ", ".join(UNKNOWN) or "nothing that the engine serves"
        logger.warning(
            "tinker %s is newer than %s, the newest that evert was tested with. Differences: "
            "%s. If something fails: pip install 'tinker<=%s.99'.",
            version("tinker"), TESTED, news, TESTED,
        )  # fmt: skip


def _swaps(engine: Engine) -> list[Swap]:
    # Classes, not functions: code loaded inside the block may use the names in annotations.
    names = {"ServiceClient": ServiceClient, "RestClient": RestClient}
    clients = [
        (name, getattr(tinker, name), type(name, (client,), {"engine": engine}))
        for name, client in names.items()
    ]
    return [*clients, *lookups(engine.stand_ins)]
