"""evert's agents under other trainers, and other libraries' environments as agents.

In reading order:

    trl/        agents under TRL's trainers
    verl/       agents under verl's trainers
    verifiers/  verifiers' environments as agents, and agents as verifiers' environments
    harbor/     Harbor's trials as agents
"""
