"""The settings that a user gives, read and checked.

In reading order:

    arguments.py      read settings: ``key=value`` texts, or values from Python
    command.py        a command whose arguments are the settings of one class
    fields.py         fields that check their values
    demonstrations.py conversations to learn from, in several forms
    early_checks.py   import and check what settings name, before importing torch
    episode.py        settings of an episode: an Env's options
    recipes.py        the game that the settings name, and its recipe
    model_names.py    a model by name: a base, a run, an endpoint
    frozen_models.py  frozen models beside the policy, by name
    opponents.py      the players of the other seats, by name
    prices.py         the cost of a run on the hosted service
    backend.py        the choice between the in-process engine and a service
    train.py          settings of a training run
    options.py        the settings of train.py as a TypedDict, for type checkers
    evaluate.py       settings of an evaluation
    plan.py           the objects that an evaluation's settings name
"""
