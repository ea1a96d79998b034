"""An environment for verifiers 0.4, with an MCP tool."""

import verifiers.v1 as vf

PRICES = {"apple": 3, "pear": 5}


class Purchase(vf.TaskData):
    total: int


class Shop(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    @vf.tool
    def price(self, item: str) -> str:
        """The price of an item."""
        return f"costs {PRICES[item]}"


class Buy(vf.Task[Purchase]):
    @vf.reward
    async def right(self, trace):
        return float(trace.last_reply.strip() == str(self.data.total))

    @vf.metric
    async def calls(self, trace):
        return float(sum(message.role == "tool" for message in trace.messages))


class Purchases(vf.Taskset[Buy, vf.TasksetConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Shop(vf.SharedToolsetConfig())]

    def load(self):
        for number in range(40):
            item = ("apple", "pear")[number % 2]
            prompt = f"What do {number} of {item} cost? Ask for the price."
            yield Buy(Purchase(prompt=prompt, total=PRICES[item] * number), self.config.task)


__all__ = ["Purchases"]

if __name__ == "__main__":
    Shop.run()
