"""What a training run is made of, whoever starts it.

In reading order:

    settings.py         every value of a run, one a command-line key
    episode_settings.py those of its episodes: an Env's options
    fields.py           settings that check themselves
    names.py            the names in them, checked before torch is imported
    recipes.py          the game that is named, and its recipe
    named_models.py     a model by name: a base, a run, an endpoint
    frozen_models.py    the models beside the policy, by name
    opponents.py        who plays the other seats, by name
    cookbook.py         the same as the Cookbook's ``Config``, and what else of it can be set
    engine_choice.py    the in-process engine or a service
    files.py            its files: written whole, read whatever became of them
    folder.py           what a run leaves behind, and who may work in it
    steps.py            its metrics by step
    origin.py           versions, machine, revision: what its figures come from
    resuming.py         taking up a run wherever it was stopped
    warm_up.py          supervised steps before RL, and what they are on
    failures.py         why episodes fail, and how it is said
    tally.py            how the episodes of each batch ended; the end of a run that only fails
    rollouts.py         how a run plays its groups: without the episodes that fail
    workers.py          the workers that play them, where asked for
    recorded.py         the rollouts of one that recorded them
    progress.py         what is shown meanwhile
    redaction.py        its logs and configuration, without the secrets that are known
    process.py          a run as a process of its own
    logs.py             ``evert.log``: curves of a loop of one's own, by name
    tracking.py         Weights & Biases and TensorBoard, where asked for
    summary.py          the figures, samples and table at the end
"""
