"""Learned compression: one model writes a short code for a text, and another model decodes it."""

import asyncio
import random

from tinker_cookbook.utils.ml_log import JsonLogger

import evert


async def main(log, seed=0, steps=40):
    comp, rec = await evert.models("evert-tiny", ("compressor", "reconstructor"), rank=32)
    comp.learning_rate, rec.learning_rate = 1e-3, 3e-3
    rng = random.Random(seed)

    def texts(count):
        return [f"I am {n}. Yes, I am {n}." for n in rng.sample(range(1000, 10000), count)]

    async def compress(client, text):
        asked = [{"role": "user", "content": f"You are told: {text} Who are you?"}]
        reply = await client.chat.completions.create(messages=asked)
        code, length = reply.choices[0].message.content, reply.usage.completion_tokens
        told, untold = await rec.logprobs([f"Code: {code}", "Code: "], [text, text])
        lessons.append((f"Code: {code}", text))
        gains.append(float(told.sum() - untold.sum()))
        return gains[-1] - 0.2 * length  # nats gained by using the code, minus a cost per token

    for _ in range(20):  # teach the reconstructor what texts look like, without codes
        await rec.sft([("Code: ", text) for text in texts(32)])
    for step in range(steps):
        lessons, gains = [("Code: ", text) for text in texts(16)], []
        batch = await comp.rollout(compress, texts(8), group_size=8, max_tokens=48, seed=step)
        await asyncio.gather(comp.step(batch, loss="ppo"), rec.sft(lessons))
        reward, gain = float(batch.rewards.mean()), sum(gains) / len(gains)
        log.log_metrics({"compressor/reward": reward, "reconstructor/gain": gain}, step)


if __name__ == "__main__":
    with evert.embedded_engine(full_parameter=False, threads=1):
        asyncio.run(main(JsonLogger("runs/compression")))
