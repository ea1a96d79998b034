"""Scripts for a model that solves the first task of each agent in the gallery, call by call."""

import json
from typing import Any


def call(name: str, **arguments: Any) -> str:
    """Return a tool call in the format of the default renderer's model."""
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


NOTHING: dict[str, list[str]] = {
    name: [] for name in ("differential", "recommended_tests", "immediate_actions")
}
SCRIPTS = {
    "bank_support": [
        call("customer_balance"),
        call("final_result", support_advice="John, it is $123.45.", block_card=False, risk=1),
    ],
    "content_flow": ["1. What tides are", "Tides come and go.", "# Tides\nThey come and go."],
    "customer_service": [
        call("transfer_to_seat_booking_agent"),
        call("update_seat", confirmation_number="QX1000", new_seat="11E"),
        "You sit in 11E.",
    ],
    "deep_research": [
        json.dumps({"research_brief": "What makes the tide?"}),
        call("ConductResearch", research_topic="tide"),
        call("tavily_search", queries=["tide"]),
        "That is all.",
        "The Moon's gravity [1].",
        call("ResearchComplete"),
        "Tides come from the Moon's gravity, and to a lesser part from the Sun's.",
    ],
    "fix_with_aider": ["calc.py\n```\ndef add(a, b):\n    return a + b\n```\n"],
    "fix_with_claude_code": [
        call("Read", file_path="calc.py"),
        call("Edit", file_path="calc.py", old_string="a - b", new_string="a + b"),
        "Done.",
    ],
    "fix_with_codex": [
        call("exec_command", cmd="cat calc.py"),
        call("exec_command", cmd="sed -i 's/a - b/a + b/' calc.py"),
        "Done.",
    ],
    "medical_triage": [
        call("consult_specialist", specialty="general", question="A mild headache?"),
        call("final_result", diagnosis=["tension headache"], estimated_time_minutes=5, **NOTHING),
        call("final_result", specialty="general", final_status="resolved_by_specialist"),
    ],
    "mini_swe": [
        "I write it.\n" + call("bash", command="echo hello > hello.txt"),
        "I look at it.\n" + call("bash", command="cat hello.txt"),
        "Done.\n" + call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ],
    "react_search": [call("search", query="LangChain founded"), "It was in October 2022."],
    "reflection": [
        "It is Lyon.",
        json.dumps({"feedback": "It is another city.", "approved": False}),
        "Paris",
        json.dumps({"feedback": "", "approved": True}),
    ],
    "supervisor": [
        call("transfer_to_research_expert"),
        call("web_search", query="headcounts"),
        "Meta has 67317, Netflix 14000.",
        call("transfer_to_math_expert"),
        call("add", a=67317, b=14000),
        "It is 81317.",
        "Together they are 81,317.",
    ],
    "text_to_sql": [
        "I ask.\n<code>\n"
        "print(sql_engine('SELECT customer_name, max(price) FROM receipts'))\n</code>",
        "I know.\n<code>\nfinal_answer('Woodrow Wilson')\n</code>",
    ],
    "time_range": [
        call("get_current_time"),
        call(
            "final_result_TimeRangeBuilderSuccess",
            min_timestamp_with_offset="2021-05-08T00:00:00Z",
            max_timestamp_with_offset="2021-05-08T23:59:59Z",
            explanation="You mentioned a single day (2021-05-08). The entire day is used.",
        ),
    ],
    "translations": [
        call("translate_to_spanish", input="Good morning")
        + "\n"
        + call("translate_to_french", input="Good morning"),
        "Buenos días",
        "Bonjour",
        "Buenos días and Bonjour",
        "Buenos días\nBonjour",
    ],
}
"""Agent -> the replies to all its calls, in one list in the order in which the calls arrive."""
