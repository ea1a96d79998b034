"""The CLI commands, one module each.

In reading order:

    init.py      ``evert init``: create a starter project with an agent, tasks and a test
    train.py     ``evert train``: train an agent
    evaluate.py  ``evert evaluate``: compare models
    evaluate_all.py  ``evert evaluate tasks=all-offline``: compare models on every offline taskset
    play.py      ``evert play``: play one episode in the terminal, turn by turn
    serve.py     ``evert serve``: serve a model over HTTP
    sweep.py     ``evert sweep``: search for the best settings
    report.py    ``evert report``: save runs as an HTML page
    view.py      ``evert view``: browse runs and their episodes live
    rescore.py   ``evert rescore``: compute new rewards for recorded rollouts
    export.py    ``evert export``: export recorded conversations to other formats
    model.py     ``evert model import``: import a model to train
    model_check.py  ``evert model check``: show what a model's chat format supports
    model_export.py  ``evert model export``: export trained weights
    plan.py      ``evert engine plan``: estimate the memory or cost of training
    doctor.py    ``evert doctor``: show what is installed, and what evert would use
"""
