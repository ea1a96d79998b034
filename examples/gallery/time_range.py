"""Pydantic-AI's time range agent, which parses a time range or explains why it can't.

Source: pydantic/pydantic-ai, examples/pydantic_ai_examples/evals/agent.py (MIT), used unchanged
from the pydantic-ai-examples package. The tasks are the cases in its datasets/time_range_v2.yaml.

    evert train agent=time_range:agent train_tasks=time_range:TASKS on_agent_error=0
"""

import os
from datetime import datetime
from pathlib import Path

os.environ.setdefault("OPENAI_API_KEY", "unused")  # glue: the import requires it

import yaml
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_examples.evals import agent as example
from scoring import closeness

CASES = Path(example.__file__).parent / "datasets" / "time_range_v2.yaml"
TASKS = yaml.safe_load(CASES.read_text())["cases"]

# -- glue ----------------------------------------------------------------------------------------


async def agent(client, task):
    """Send a request; return how close the answer's fields are to the expected values."""
    model = OpenAIChatModel(client.model, provider=OpenAIProvider(openai_client=client.openai))
    inputs = {**task["inputs"], "now": datetime.fromisoformat(task["inputs"]["now"])}
    try:
        with example.time_range_agent.override(model=model):
            answer = (await example.infer_time_range(inputs)).model_dump(mode="json")
    except UnexpectedModelBehavior:  # the answer is malformed
        return 0.0
    expected = task["expected_output"]
    return sum(closeness(answer.get(key), expected[key]) for key in expected) / len(expected)
