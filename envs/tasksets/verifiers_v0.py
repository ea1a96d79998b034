"""Environments for verifiers before 0.4 ("v0"), returned by a package's ``load_environment``."""

# pyright: reportMissingImports=false

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import verifiers as vf

from evert.bridge.episode.agent import ENV_STOP, Outcome
from evert.envs.games import GameError

if TYPE_CHECKING:
    from evert.bridge.clients.client import AgentClient

REPLIES = {"EmptyModelResponseError", "InvalidModelResponseError"}
"""verifiers errors caused by the policy's reply. The episode ends, but keeps its reward."""


class V0Environment:
    """An environment with datasets and a rubric.

    Args:
        name: Name of the environment's package.
        options: Arguments for ``load_environment``.

    Raises:
        GameError: The environment requires a sandbox, or scores whole groups.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        with _signal_handlers_restored():
            self.env = vf.load_environment(name, **options)
        _check(name, self.env)
        held_out = self.env.build_eval_dataset()
        self.splits: Mapping[str, Sequence[Any]] = {
            "train": self.env.build_dataset() or (),
            **({} if held_out is None else {"eval": held_out}),
        }

    async def play(self, client: "AgentClient", split: str, number: int) -> Outcome:
        """Play one row of a dataset.

        Raises:
            RuntimeError: verifiers reported an error not caused by the policy's reply.
        """
        model = vf.OpenAIChatCompletionsClient(client.openai)
        options = self.env.sampling_args
        row = self.splits[split][number]
        output = await self.env.run_rollout(row, model, client.model, options)
        error = output["error"]
        if error and error["error"] not in REPLIES:
            raise RuntimeError(f"The verifiers rollout failed: {error['error_chain_repr']}")
        metrics = {key: float(value) for key, value in output["metrics"].items()}
        if condition := output["stop_condition"]:
            metrics[f"{ENV_STOP}{condition}"] = 1.0
        return Outcome(float(output["reward"]), metrics, truncated=bool(output["is_truncated"]))


@contextmanager
def _signal_handlers_restored() -> Iterator[None]:
    """Restore the signal handlers, which every verifiers environment replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _check(name: str, env: Any) -> None:
    parts = [env, *getattr(env, "envs", ())]
    kinds = {kind.__name__ for part in parts for kind in type(part).__mro__}
    if boxes := sorted(kind for kind in kinds if "Sandbox" in kind or kind == "BrowserEnv"):
        raise GameError(
            f"tasks=verifiers:{name} is a {type(env).__name__}, which requires a Prime Intellect "
            f"sandbox ({boxes[0]}); evert does not support these. Choose a different environment."
        )
    if any(part.requires_group_rollouts for part in parts):
        raise GameError(
            f"tasks=verifiers:{name} scores whole groups of rollouts, but evert plays rollouts "
            "individually. Use a rubric whose functions score a single rollout."
        )
