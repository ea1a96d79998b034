"""slime: ``--custom-generate-function-path slime_generate.generate``, using SGLang's token ids."""

import copy
from functools import cache

import aiohttp
from chat_agent import agent
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, sequences
from evert.bridge.tokens.bases import model_renderer


class AbortedError(Exception):
    """slime aborted this sample because it has enough samples."""


class Router(TokenCompleter):
    """slime's SGLang router as a token completer."""

    def __init__(self, args, session, sampling_params):
        self.url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
        self.session = session
        self.sampling_params = sampling_params

    async def __call__(self, model_input, stop, *, max_tokens=None):
        """Sample one reply."""
        params = {**self.sampling_params, "no_stop_trim": True, "skip_special_tokens": False}
        params["stop_token_ids" if stop and isinstance(stop[0], int) else "stop"] = list(stop)
        if max_tokens is not None:
            params["max_new_tokens"] = min(max_tokens, params["max_new_tokens"])
        asked = {"input_ids": model_input.to_ints(), "sampling_params": params}
        async with self.session.post(self.url, json={**asked, "return_logprob": True}) as answer:
            answer.raise_for_status()
            about = (await answer.json())["meta_info"]
        kind = about["finish_reason"]["type"]
        if kind == "abort":
            raise AbortedError
        logprobs, ids = zip(*[each[:2] for each in about["output_token_logprobs"]], strict=True)
        return TokensWithLogprobs(list(ids), list(logprobs), kind)


@cache
def renderer_of(checkpoint):
    """Return the renderer for a checkpoint, given by name or folder."""
    return model_renderer(checkpoint, None)


async def generate(args, sample, sampling_params):
    """Play a sample's task; return one sample per lineage."""
    env = ChatAgentEnv(agent, sample.metadata["task"], renderer=renderer_of(args.hf_checkpoint))
    async with aiohttp.ClientSession() as session:
        try:
            trajectory = await do_single_rollout(Router(args, session, sampling_params), env)
        except AbortedError:
            sample.status = type(sample).Status.ABORTED
            return sample
        finally:
            await env.close()
    played = []
    for sequence in sequences(trajectory):
        one = copy.deepcopy(sample)
        one.tokens = sequence.prompt_ids + sequence.response_ids
        one.response_length = len(sequence.response_ids)
        one.loss_mask = sequence.response_mask
        one.rollout_log_probs = sequence.response_logprobs
        one.reward = sum(turn.reward for turn in trajectory.transitions)
        one.status = type(sample).Status.COMPLETED
        played.append(one)
    return played[0] if len(played) == 1 else played
