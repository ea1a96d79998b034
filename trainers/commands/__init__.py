"""The commands, one module each.

In reading order:

    init.py      ``evert init``: make a folder with an agent, tasks and a test
    train.py     ``evert train``: train an agent
    evaluate.py  ``evert evaluate``: compare models
    evaluate_all.py  ``evert evaluate tasks=all-offline``: compare them on every taskset
    play.py      ``evert play``: show one episode in the terminal, turn by turn
    serve.py     ``evert serve``: sample from weights over HTTP
    sweep.py     ``evert sweep``: search for the best settings
    report.py    ``evert report``: save the page of runs
    view.py      ``evert view``: show runs and their episodes in a browser, live
    rescore.py   ``evert rescore``: compute new rewards for recorded rollouts
    export.py    ``evert export``: write recorded conversations for other programs
    model.py     ``evert model import``: make a model ready to train
    model_check.py  ``evert model check``: what a model's chat format can do
    model_export.py  ``evert model export``: use trained weights elsewhere
    plan.py      ``evert engine plan``: estimate the memory that a model needs
    doctor.py    ``evert doctor``: say what is installed, and what evert would use
"""
