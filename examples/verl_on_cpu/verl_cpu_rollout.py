"""A rollout replica for verl that samples with evert's engine (``rollout.name=evert``)."""

# ruff: noqa: D102 (the methods are verl's)

from collections.abc import Iterable
from typing import Any

import ray
import tinker
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from evert.trainers.engine.clients.engine import Engine, EngineSettings
from evert.trainers.engine.clients.sampling_client import model_client

SERVER = "evert_server"


class Server:
    """A Ray actor that holds a Hugging Face model and a sampling client for it."""

    def __init__(self, path: str) -> None:
        torch.set_num_threads(1)
        self._path = path
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._engine = Engine(EngineSettings(device="cpu"))
        self._step = 0
        self._client = self._new_client()

    def _new_client(self) -> Any:
        return model_client(self._engine, self._path, self._model, self._tokenizer, self._step)

    async def load(self, state: dict[str, torch.Tensor], step: int | None) -> None:
        """Load new weights for sampling."""
        found = self._model.load_state_dict(state, strict=False)
        if found.unexpected_keys:
            raise ValueError(f"Unexpected keys in the state dict: {found.unexpected_keys}.")
        self._step = step or 0
        self._client = self._new_client()  # pending requests still use the old client

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """Sample one reply; same interface as verl's servers."""
        stop = sampling_params.get("stop_token_ids")
        if texts := sampling_params.get("stop"):
            stop = [*texts, *(self._tokenizer.decode([token]) for token in stop or ())]
        asked = tinker.SamplingParams(
            max_tokens=sampling_params["max_tokens"],
            temperature=sampling_params["temperature"],
            stop=stop,
        )
        prompt = tinker.ModelInput.from_ints(list(prompt_ids))
        [said] = (await self._client.sample_async(prompt, 1, asked)).sequences
        return TokenOutput(
            token_ids=list(said.tokens),
            log_probs=[float(each) for each in said.logprobs],
            stop_reason="completed",
            extra_fields={"global_steps": self._step},
        )

    async def nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing, since these methods are only needed for servers with a GPU."""

    wake_up = sleep = abort_all_requests = resume_generation = nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = nothing


class Replica(RolloutReplica):
    """Launches the only server in a run."""

    async def launch_servers(self) -> None:
        actor = ray.remote(Server).options(name=SERVER, num_cpus=0, max_concurrency=1000)
        self._server_handle = actor.remote(self.model_config.path)
        self._server_address = SERVER
        self.servers = [self._server_handle]


class Adapter(BaseRollout):
    """Sends new weights to the server after each step. Runs in the trainer's process."""

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(
        self, weights: Iterable[tuple[str, Any]], global_steps: int | None = None, **_: Any
    ) -> None:
        whole = (
            (name, each.full_tensor() if hasattr(each, "full_tensor") else each)
            for name, each in weights
        )
        state = {name: tensor.detach().float().clone() for name, tensor in whole}
        await ray.get_actor(SERVER).load.remote(state, global_steps)
