"""Pydantic-AI's bank support: advice, a risk, and whether to block the card, with a balance tool.

Source: pydantic/pydantic-ai, examples/pydantic_ai_examples/bank_support.py (MIT); unchanged, from
the package pydantic-ai-examples.

    evert train agent=bank_support:agent train_tasks=bank_support:TASKS on_agent_error=0
"""

import os

os.environ.setdefault("OPENAI_API_KEY", "unused")  # glue: the agent names its model when imported

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_examples.bank_support import SupportDependencies, support_agent

TASKS = [
    {"says": "What is my balance?", "balance": 123.45, "block": False},
    {"says": "I just lost my card!", "balance": 20.00, "block": True},
    {"says": "Can I afford a bicycle for 700 dollars?", "balance": 512.30, "block": False},
    {"says": "Somebody else is paying with my card.", "balance": 77.01, "block": True},
]


class Database:
    """The data of the one customer. The example's own class reads a global of its script."""

    def __init__(self, balance):
        self.balance = balance

    async def customer_name(self, *, id):
        """Return the customer's name."""
        return "John"

    async def customer_balance(self, *, id):
        """Return the account's balance."""
        return self.balance


# -- glue ----------------------------------------------------------------------------------------


async def agent(client, task):
    """Play a question; return 0.5 for the right card decision, 0.5 for the balance if needed."""
    model = OpenAIChatModel(client.model, provider=OpenAIProvider(openai_client=client.openai))
    dependencies = SupportDependencies(customer_id=123, db=Database(task["balance"]))
    try:
        result = await support_agent.run(task["says"], deps=dependencies, model=model)
    except UnexpectedModelBehavior:  # the answer is malformed
        return 0.0
    told = task["block"] or str(task["balance"]) in result.output.support_advice
    return 0.5 * (result.output.block_card == task["block"]) + 0.5 * told
