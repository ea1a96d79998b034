"""SkyRL: a ``GeneratorInterface`` that runs agents on SkyRL's engines, using token ids."""

import asyncio

from chat_agent import agent
from skyrl.train.generators.base import GeneratorInterface
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, sequences


class Engines(TokenCompleter):
    """SkyRL's inference engines. Each episode has its own session, so its prefix stays cached."""

    def __init__(self, engines, sampling_params, session):
        self.engines = engines
        self.sampling_params = sampling_params
        self.session = session

    async def __call__(self, model_input, stop, *, max_tokens=None):
        """Sample one reply."""
        params = {**self.sampling_params, "logprobs": self.sampling_params.get("logprobs") or 1}
        params["stop_token_ids" if stop and isinstance(stop[0], int) else "stop"] = list(stop)
        if max_tokens is not None:
            params["max_tokens"] = min(max_tokens, params.get("max_tokens") or max_tokens)
        asked = {"prompt_token_ids": [model_input.to_ints()], "sampling_params": params}
        reply = await self.engines.generate({**asked, "session_ids": [self.session]})
        [ids], [kind] = reply["response_ids"], reply["stop_reasons"]
        return TokensWithLogprobs(ids, reply["response_logprobs"][0], kind)


class AgentGenerator(GeneratorInterface):
    """Return this from ``BasePPOExp.get_generator``. Tasks are passed in ``env_extras``."""

    def __init__(self, engines, tokenizer, renderer_name, model_name):
        self.engines = engines
        self.renderer = get_renderer(renderer_name, tokenizer, model_name=model_name)

    async def generate(self, input_batch, disable_tqdm=False):
        """Play each prompt's task; return each episode's last lineage."""
        params = input_batch.get("sampling_params") or {}
        tasks = [extras["task"] for extras in input_batch["env_extras"]]
        ids = [one.to_string() for one in input_batch["trajectory_ids"]]
        played = await asyncio.gather(
            *(self.play(task, params, session) for task, session in zip(tasks, ids, strict=True))
        )
        last = [lineages[-1] for lineages, _ in played]
        return {
            "prompt_token_ids": [one.prompt_ids for one in last],
            "response_ids": [one.response_ids for one in last],
            "loss_masks": [one.response_mask for one in last],
            "rollout_logprobs": [one.response_logprobs for one in last],
            "rewards": [reward for _, reward in played],
            "stop_reasons": ["stop"] * len(last),
            "rollout_metrics": {"lineages_left_out": sum(len(each) - 1 for each, _ in played)},
        }

    async def play(self, task, params, session):
        """Play an episode; return its lineages and reward."""
        env = ChatAgentEnv(agent, task, renderer=self.renderer)
        try:
            trajectory = await do_single_rollout(Engines(self.engines, params, session), env)
        finally:
            await env.close()
        return sequences(trajectory), sum(turn.reward for turn in trajectory.transitions)
