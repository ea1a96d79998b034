"""The program that the agent runs. It calls the model once and prints the answer."""

import json
import os
import sys
from urllib.request import Request, urlopen

prompt = f"Let's play a game. Say you are {os.environ['EVERT_TASK']}."
request = Request(
    f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
    json.dumps(
        {
            "model": os.environ["EVERT_MODEL"],
            "messages": [{"role": "user", "content": prompt}],
        }
    ).encode(),
    {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
    },
)
with urlopen(request) as response:
    completion = json.load(response)
sys.stdout.write(completion["choices"][0]["message"]["content"] or "")
