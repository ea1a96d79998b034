r"""Pydantic-AI's medical triage: an agent delegates to specialists and to a senior doctor.

Source: pydantic/pydantic-ai, examples/pydantic_ai_examples/medical_agent_delegation.py (MIT), used
unchanged from the pydantic-ai-examples package. All agents use gpt-5.2 and create their own
clients, and evert takes over their calls.

    evert train agent=medical_triage:agent train_tasks=medical_triage:TASKS \
        policy_names=gpt-5.2 on_agent_error=0
"""

import os

os.environ.setdefault("OPENAI_API_KEY", "unused")  # glue: the import requires it

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai_examples.medical_agent_delegation import MedicalTriageSystem, PatientInfo

TASKS = [
    {"complaint": "A mild headache since this morning.", "path": "resolved_by_specialist"},
    {"complaint": "Worst headache of my life, and blurry vision.", "path": "escalated"},
    {"complaint": "My heart stumbles when I climb stairs.", "path": "resolved_by_specialist"},
    {"complaint": "I fainted three times, and my left arm is weak.", "path": "escalated"},
]

# -- glue ----------------------------------------------------------------------------------------


async def agent(task):
    """Submit a patient's complaint; return 1.0 if it took the correct path."""
    patient = PatientInfo(patient_id="P001", age=64, known_conditions=[])
    try:
        outcome = await MedicalTriageSystem().handle_patient(task["complaint"], patient)
    except UnexpectedModelBehavior:  # the answer is malformed
        return 0.0
    return float(outcome["final_status"] == task["path"])
