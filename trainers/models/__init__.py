"""Several models in training, side by side on one base.

    opening.py    ``evert.models``: makes them
    model.py      ``Model``: rolls out, measures, learns
    scoring.py    conversations and log-probabilities, without a ``Datum`` in sight
    errors.py     what is wrong with what these were given

All of it is written against Tinker's public clients: the embedded engine and the service are alike.
"""
