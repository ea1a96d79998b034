"""Runs evert's agents under other trainers, and Harbor's trials as agents.

In reading order:

    trl/        agents under TRL's trainers
    verl/       agents under verl's trainers
    verifiers/  agents as verifiers' environments
    harbor/     Harbor's trials as agents
"""
