"""Training a model: forward, backward, optimizer step.

From the outside in:

    trainer.py     a model, its accumulated gradient and its optimizer
    examples.py    its data, read and cut into micro-batches
    families.py    rows that begin alike, computed once
    passes.py      forward passes of the model in training
    losses.py      the losses
    provenance.py  which tokens were sampled, and recorded
"""
