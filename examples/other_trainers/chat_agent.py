"""An agent for any trainer. The client is either evert's or OpenAI's ``AsyncOpenAI``."""

from game import TURNS, Game


async def agent(client, task):
    """Play the game as a plain chat, without tools."""
    game = Game(task)
    messages = [{"role": "user", "content": f"{game.rules} Answer with the number alone."}]
    for _ in range(TURNS):
        completion = await client.chat.completions.create(model="policy", messages=messages)
        answer = completion.choices[0].message.content or ""
        feedback = game.check(int(answer)) if answer.isdecimal() else "That is no number"
        if game.found:
            break
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": feedback},
        ]
    return game.reward
