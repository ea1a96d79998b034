"""An agent, its tasks, and a judge that scores recorded conversations."""

import re

TASKS, TEST = range(1000), range(1000, 1032)


def prompt(number):
    return [{"role": "user", "content": f"Let's play a game. Say you are {number}."}]


def is_right(number, text):
    return float(text in (f"I am {number}.", f"I'm {number}."))


async def agent(client, number):
    completion = await client.chat.completions.create(messages=prompt(number))
    return is_right(number, completion.choices[0].message.content)


def judge(record):
    """Return the reward for a recorded conversation."""
    [question] = record.asked(0)
    return is_right(re.search(r"\d+", question["content"])[0], record.text)
