"""Integrations with other trainers and with Harbor.

In reading order:

    trl/        train agents with TRL
    verl/       train agents with verl
    verifiers/  use agents as verifiers environments
    harbor/     use Harbor trials as agents
"""
