"""A program that uses the OpenAI SDK and sends the server a reward for each answer."""

import openai
from names import prompt

client = openai.OpenAI()
for number in range(2000, 2200):
    completion = client.chat.completions.create(model="first", messages=prompt(number))
    is_liked = "not" not in completion.choices[0].message.content
    feedback = {"id": completion.id, "reward": 0.5 * is_liked}
    client.post("/feedback", body=feedback, cast_to=object)
