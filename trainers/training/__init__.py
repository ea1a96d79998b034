"""One training run, from its settings to its figures.

In reading order:

    cookbook.py    the same as the Cookbook's ``Config``, and what else of it can be set
    workers.py     the workers that play them, where asked for
    strategies.py  how a run plays its groups: without the episodes that fail
    batch_log.py   how the episodes of each batch ended; the end of a run that only fails
    redaction.py   its logs and configuration, without the secrets that are known
    tracking.py    Weights & Biases and TensorBoard, where asked for
    progress.py    what is shown meanwhile
    warm_up.py     supervised steps before RL, and what they are on
    held_out.py    playing held-out tasks before and after training
    preflight.py   a run's settings, resolved once; what would stop it is found first
    resuming.py    taking up a run wherever it was stopped
    summary.py     the figures, samples and table at the end
"""
