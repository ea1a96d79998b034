r"""smolagents' text-to-SQL: a code agent that answers questions about a table.

Source: huggingface/smolagents, examples/text_to_sql.py (Apache-2.0), rebuilt with sqlite3 because
the script is not part of the package and connects to a model on import. The table, tool and agent
are the same.

    evert train agent=text_to_sql:agent train_tasks=text_to_sql:TASKS \
        policy_names=gpt-4o on_agent_error=0
"""

import sqlite3

from scoring import closeness
from smolagents import CodeAgent, LogLevel, OpenAIModel, tool

ROWS = [
    (1, "Alan Payne", 12.06, 1.20),
    (2, "Alex Mason", 23.86, 0.24),
    (3, "Woodrow Wilson", 53.43, 5.43),
    (4, "Margaret James", 21.11, 1.00),
]
TASKS = [
    {"question": "Which client got the most expensive receipt?", "answer": "Woodrow Wilson"},
    {"question": "Which client tipped least?", "answer": "Alex Mason"},
    {"question": "Which client paid less than 15?", "answer": "Alan Payne"},
    {"question": "Which client has the last receipt?", "answer": "Margaret James"},
]

# -- the agent, rebuilt --------------------------------------------------------------------------

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE receipts (receipt_id INT, customer_name TEXT, price REAL, tip REAL)")
database.executemany("INSERT INTO receipts VALUES (?, ?, ?, ?)", ROWS)


@tool
def sql_engine(query: str) -> str:
    """Run SQL on the table 'receipts'; the result as text.

    Its columns are receipt_id (INTEGER), customer_name (TEXT), price and tip (REAL).

    Args:
        query: Correct SQL.
    """
    return "".join(f"\n{row}" for row in database.execute(query).fetchall())


def coder(model):
    """Return the agent from the example."""
    return CodeAgent(tools=[sql_engine], model=model, max_steps=3, verbosity_level=LogLevel.OFF)


# -- glue ----------------------------------------------------------------------------------------


def agent(task):
    """Ask a question; return how close the answer is to the expected one."""
    model = OpenAIModel("gpt-4o", api_key="unused")
    return closeness(coder(model).run(task["question"]), task["answer"])
