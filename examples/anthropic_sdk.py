"""Anthropic SDK: ``client.anthropic`` is an ``anthropic.AsyncAnthropic``."""

from game import TURNS, Game, play

TOOLS = [
    {
        "name": "check_guess",
        "description": "Check a guess.",
        "input_schema": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
        },
    }
]


async def agent(client, task):
    """Play the game with a hand-written tool loop: call the model, run tools, send results."""
    game = Game(task)
    messages = [{"role": "user", "content": game.rules}]
    for _ in range(TURNS + 1):
        message = await client.anthropic.messages.create(
            model=client.model, max_tokens=256, messages=messages, tools=TOOLS
        )
        if message.stop_reason != "tool_use":
            break
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": game.check(int(block.input["number"])),
            }
            for block in message.content
            if block.type == "tool_use"
        ]
        messages += [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": results},
        ]
    return game.reward


if __name__ == "__main__":
    play(agent)
