"""Trains a model: forward and backward passes, and optimizer steps.

Modules, from the outside in:

    trainer.py     a model with its accumulated gradient and optimizer
    examples.py    parses training data and splits it into micro-batches
    pass_budget.py computes how many tokens fit in memory in one pass
    families.py    groups rows with common prefixes, so that each prefix is computed once
    passes.py      forward passes for training
    losses.py      the losses
    provenance.py  keeps track of which tokens were sampled
"""
