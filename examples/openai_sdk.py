"""OpenAI SDK: ``client.openai`` is an ``openai.AsyncOpenAI``."""

from game import TURNS, Game, next_guess, play


async def agent(client, task):
    """Play the game as a plain chat, without tools."""
    game = Game(task)
    messages = [{"role": "user", "content": f"{game.rules} Answer with the number alone."}]
    for _ in range(TURNS):
        completion = await client.openai.chat.completions.create(
            model=client.model, messages=messages
        )
        answer = completion.choices[0].message.content or ""
        feedback = game.check(int(answer)) if answer.isdecimal() else "That is no number"
        if game.found:
            break
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": feedback},
        ]
    return game.reward


def model(prompt):
    """Act as a model that answers with just the number."""
    return str(next_guess(prompt))


if __name__ == "__main__":
    play(agent, model)
