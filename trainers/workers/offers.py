"""Makes this process's sampling clients available to groups in workers.

Embedded engine clients are served by a policy service, which is started for the first client. Once
a newer client exists, an old client is withdrawn as soon as no running group uses it. Tinker SDK
clients are pickled instead, because they can connect to their service from any machine.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import tinker

from evert.bridge.models.tinker_model import TinkerModel, open_weights
from evert.trainers.engine.clients.sampling_client import SamplingClient
from evert.trainers.engine.common.network import allowed_hosts
from evert.trainers.serving.service import PolicyService
from evert.trainers.workers.travel import Parcel, pack


class Offers:
    """Serves sampling clients to workers until they are no longer needed."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._service: PolicyService | None = None
        self._groups = Counter[SamplingClient]()
        """Number of running groups per policy client."""
        self._newest: SamplingClient | None = None

    @asynccontextmanager
    async def packed(self, task: Any) -> AsyncIterator[bytes]:
        """Pack a task for a worker, and serve its sampling clients inside the block."""
        client = task.sampling_client
        if isinstance(client, SamplingClient):
            self._newest = client
            self._groups[client] += 1
        try:
            opened = [(model, await open_weights(model)) for model in _frozen(task)]
            weights = tuple((model, it.client, it.context_length) for model, it in opened)
            hosts = allowed_hosts()
            near = None if hosts is None else hosts | {self._host}
            yield pack(Parcel(task, near, weights, logging.getLogger().level), self._stand_in)
        finally:
            if isinstance(client, SamplingClient):
                self._groups[client] -= 1
                self._withdraw()

    def close(self) -> None:
        """Stop the policy service."""
        if self._service is not None:
            self._service.close()

    def _stand_in(self, value: Any) -> Any:
        if not isinstance(value, SamplingClient):
            return None
        self._service = self._service or PolicyService(self._host)
        return self._service.offer(value)

    def _withdraw(self) -> None:
        over = [c for c, n in self._groups.items() if not n and c is not self._newest]
        for client in over:
            del self._groups[client]
            if self._service is not None:
                self._service.withdraw(client)


def _frozen(task: Any) -> list[TinkerModel]:
    if not hasattr(tinker.ServiceClient, "engine"):
        return []
    builder = task.env_group_builder
    models = getattr(builder, "options", {}).get("models") or {}
    judge = getattr(getattr(builder, "group_reward", None), "model", None)
    return [model for model in (*models.values(), judge) if isinstance(model, TinkerModel)]
