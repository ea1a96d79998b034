"""A single training run, from its settings to its results.

In reading order:

    cookbook.py    converts the settings to the Cookbook's ``Config``
    workers.py     starts rollout workers
    strategies.py  plays groups and drops failed episodes
    failing_batches.py  logs how episodes ended, and stops the run if nearly all of them fail
    redaction.py   keeps secrets out of logs and configs
    tracking.py    logs to Weights & Biases and TensorBoard
    progress.py    displays the progress
    warm_up.py     supervised training before RL, and its data
    held_out.py    evaluates on held-out tasks before and after training
    preflight.py   validates the settings and creates all objects before the run starts
    first_steps.py warns about settings that prevent learning
    resuming.py    resumes a run, no matter where it was stopped
    summary.py     writes plots, samples and the final table
"""
