"""Pydantic-AI's bank support: advises a customer, rates the risk and may block the card.

Source: pydantic/pydantic-ai, examples/pydantic_ai_examples/bank_support.py (MIT), used unchanged
from the pydantic-ai-examples package.

    evert train agent=bank_support:agent train_tasks=bank_support:TASKS on_agent_error=0
"""

import os

os.environ.setdefault("OPENAI_API_KEY", "unused")  # glue: the import requires it

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
    """One customer. Replaces the example's own class, which reads a global of its script."""

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
    """Return 0.5 for the correct card decision plus 0.5 for stating the balance when needed."""
    model = OpenAIChatModel(client.model, provider=OpenAIProvider(openai_client=client.openai))
    dependencies = SupportDependencies(customer_id=123, db=Database(task["balance"]))
    try:
        result = await support_agent.run(task["says"], deps=dependencies, model=model)
    except UnexpectedModelBehavior:  # the answer is malformed
        return 0.0
    told = task["block"] or str(task["balance"]) in result.output.support_advice
    return 0.5 * (result.output.block_card == task["block"]) + 0.5 * told
