"""A verifiers environment, which is also used as an evert agent."""

import verifiers.v1 as vf
from openai import AsyncOpenAI

from evert.verifiers import VerifiersAgent


class Sum(vf.TaskData):
    """Two numbers to add."""

    a: int
    b: int


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    """Scores the last answer."""

    @vf.reward(weight=2.0)
    async def right(self, trace):
        """Return whether the last answer contains the sum."""
        return float(str(self.data.a + self.data.b) in trace.last_reply)

    @vf.metric
    async def length(self, trace):
        """Return the length of the last answer."""
        return float(len(trace.last_reply))


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    """Three sums."""

    def load(self):
        """Yield the tasks."""
        for a in range(3):
            yield SumTask(Sum(prompt=f"What is {a} + 4?", a=a, b=4), self.config.task)


class Twice(vf.Harness[vf.HarnessConfig]):
    """A harness that asks twice."""

    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        """Play two turns against verifiers' endpoint."""
        messages = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            for more in ("Are you sure?", ""):
                reply = await client.chat.completions.create(model=ctx.model, messages=messages)
                messages.append(reply.choices[0].message.model_dump(exclude_none=True))
                messages.append({"role": "user", "content": more})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Sums", "Twice"]

ENVIRONMENT = {"taskset": {"id": "verifiers-sums"}, "agent": {"runtime": {"type": "subprocess"}}}
agent = VerifiersAgent(ENVIRONMENT)  # the env block of a verifiers config
TASKS = range(3)  # or agent.tasks(), the indices of all tasks in the taskset
