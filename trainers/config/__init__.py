"""What a user may say, checked.

In reading order:

    arguments.py      reading what it was given: ``key=value``, or values from Python
    command.py        a command whose arguments are the settings of one class
    fields.py         settings that check themselves
    names.py          the names in them, checked before torch is imported
    episode.py        those of its episodes: an Env's options
    recipes.py        the game that is named, and its recipe
    model_names.py    a model by name: a base, a run, an endpoint
    frozen_models.py  the models beside the policy, by name
    opponents.py      who plays the other seats, by name
    backend.py        the in-process engine or a service
    train.py          every value of a run, one a command-line key
    evaluate.py       what to evaluate: every value a command-line key
"""
