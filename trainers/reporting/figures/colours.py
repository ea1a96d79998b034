"""The colours of runs: Okabe and Ito's, which people who do not see all colours can tell apart."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
