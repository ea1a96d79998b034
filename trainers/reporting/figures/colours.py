"""Colours for runs: the Okabe-Ito palette, which is safe for colour-blind readers."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
