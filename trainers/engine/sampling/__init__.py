"""Sampling and scoring with frozen weights.

From the outside in:

    sampler.py        frozen weights, asked for replies and log-probabilities
    scheduler.py      many requests, one running batch
    running_batch.py  the rows of one batch, and drawing for them
    drawing.py        drawing tokens, stops
    scoring.py        what is asked of given tokens
    frozen.py         weights ready to sample from
    batches.py        rows decoded together over a cache
    lean_batch.py     those of a model of our own
    row_cache.py      their keys and values, row by row
    stem.py           what its rows begin with, held once
    generic_batch.py  those of any other
    prefill.py        what rows share is computed once
    prefix_cache.py   keys and values, found by their tokens
    memory.py         how much memory there is, and what fits
"""
