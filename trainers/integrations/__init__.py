"""evert's agents under other trainers, and others' environments.

In reading order:

    trl/        TRL's trainers
    verl/       verl's trainers
    verifiers/  verifiers' environments as agents, and agents as such
    harbor/     Harbor's trials as agents
"""
