"""LiteLLM. evert takes over calls to the policy's model name, so no client is needed."""

import json
import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # don't download prices on import

import litellm
from game import TURNS, Game, play

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "check_guess",
            "description": "Check a guess.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "integer"}},
                "required": ["number"],
            },
        },
    }
]


async def agent(client, task):
    """Play the game with a hand-written tool loop: call the model, run tools, send results."""
    game = Game(task)
    messages = [{"role": "user", "content": game.rules}]
    for _ in range(TURNS + 1):
        response = await litellm.acompletion(
            model=f"openai/{client.model}", messages=messages, tools=TOOLS, api_key="unused"
        )
        message = response.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message)
        for call in message.tool_calls:
            number = json.loads(call.function.arguments)["number"]
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": game.check(int(number))}
            )
    return game.reward


if __name__ == "__main__":
    play(agent)
