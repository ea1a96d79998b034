"""Parsing and validating user settings.

In reading order:

    arguments.py      parse settings from ``key=value`` strings or Python values
    command.py        commands whose arguments map to a settings class
    fields.py         settings fields with validation
    demonstrations.py conversations to learn from, in several formats
    early_checks.py   import and check agents, tasks and files before importing torch
    episode.py        episode settings, which become the Env's options
    recipes.py        look up the game and its recipe
    model_names.py    look up models by name: base models, runs and endpoints
    frozen_models.py  frozen models that answer some of the agent's calls
    opponents.py      opponents that play the other seats
    prices.py         the cost of a run on the hosted service
    backend.py        choose between the in-process engine and a service
    train.py          settings of a training run
    options.py        the settings in train.py as a TypedDict, for type checkers
    evaluate.py       settings of an evaluation
    plan.py           the objects an evaluation needs, created from its settings
"""
