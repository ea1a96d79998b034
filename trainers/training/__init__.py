"""One training run, from its settings to its figures.

In reading order:

    cookbook.py    turns the settings into the Cookbook's ``Config``
    workers.py     starts the workers that the settings ask for
    strategies.py  plays groups and leaves out failed episodes
    failing_batches.py  logs how each batch's episodes ended; ends a run if nearly all fail
    redaction.py   keeps known secrets out of logs and configuration
    tracking.py    logs to Weights & Biases and TensorBoard
    progress.py    shows the progress
    warm_up.py     supervised steps before RL, and their data
    held_out.py    plays held-out tasks before and after training
    preflight.py   checks and resolves the settings before the run starts
    first_steps.py warns about settings with which nothing can be learned
    resuming.py    resumes a run wherever it was stopped
    summary.py     writes figures, samples and the table at the end
"""
