"""REINFORCE with a baseline: trains the bundled base model through Gymnasium's API.

python examples/gymnasium_reinforce.py
"""

import asyncio

import gymnasium
import tinker

import evert


def datum(prompt, said, advantage):
    """Build the training datum for an action."""
    before = len(prompt) - 1
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints([*prompt, *said.tokens[:-1]]),
        loss_fn_inputs={
            "target_tokens": [0] * before + said.tokens,
            "logprobs": [0.0] * before + said.logprobs,
            "advantages": [0.0] * before + [advantage] * len(said.tokens),
        },
    )


async def train(steps, count=64):
    """Train for a number of steps and return each step's mean reward."""
    [model] = await evert.models("evert-tiny", ["player"], learning_rate=1e-3)
    envs = gymnasium.make_vec("evert/Identity-v0", count, level="tokens", autoreset_mode="SameStep")
    prompts, infos = envs.reset(seed=0)
    limit, curve = tinker.SamplingParams(max_tokens=16, stop=infos["stop"][0]), []
    for _ in range(steps):
        sampler = await model.sampler()
        asked = [sampler.sample_async(tinker.ModelInput.from_ints(p), 1, limit) for p in prompts]
        said = [answer.sequences[0] for answer in await asyncio.gather(*asked)]
        new_prompts, rewards, *_ = envs.step([each.tokens for each in said])
        advantages = (rewards - rewards.mean()).tolist()
        await model.step([*map(datum, prompts, said, advantages)], "importance_sampling")
        prompts = new_prompts
        curve.append(rewards.mean())
    envs.close()
    return curve


if __name__ == "__main__":
    with evert.embedded_engine(threads=1):  # remove this line to use the hosted service
        print(asyncio.run(train(steps=25)))  # -0.19, 0.09, 0.34, 0.31, 0.55, ..., 1.00
