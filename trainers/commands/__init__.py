"""The commands: a page each.

In reading order:

    train.py     ``evert train``: a run
    evaluate.py  ``evert evaluate``: models beside each other
    evaluate_all.py  ``evert evaluate tasks=all-offline``: on every taskset
    serve.py     ``evert serve``: weights over HTTP
    sweep.py     ``evert sweep``: a search over settings
    report.py    ``evert report``: runs as a page
    view.py      ``evert view``: runs and their episodes in a browser, live
    rescore.py   ``evert rescore``: other rewards for rollouts on record
    export.py    ``evert export``: conversations on record, for supervised training
    model.py     ``evert model import``: a model from elsewhere, made ready to train
    plan.py      ``evert engine plan``: what a model takes in memory, before it is loaded
"""
