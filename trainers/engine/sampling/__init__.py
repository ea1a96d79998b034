"""Samples from frozen weights, and scores tokens with them.

From the outside in:

    sampler.py        checks requests to sample and to score
    scheduler.py      serves many requests in one running batch
    running_batch.py  samples a token for each row of a batch
    drawing.py        draws tokens: random numbers, truncation, stops
    scoring.py        reads values from the logits of given tokens
    frozen.py         freezes a model to sample from it
    batches.py        decodes rows together over a key-value cache
    lean_batch.py     a batch that uses our own forward pass
    row_cache.py      that batch's keys and values, row by row
    stem.py           the common prefix of that batch's rows, stored once
    graphs.py         that batch's steps, captured as CUDA graphs
    generic_batch.py  a batch of any other model
    prefill.py        orders rows so that common prefixes are computed first, once
    prefix_cache.py   keys and values, looked up by their tokens
    memory.py         measures free memory, and the share that a sampler gets
"""
