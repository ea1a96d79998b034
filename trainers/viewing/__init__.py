"""The page of ``evert view``: runs and their episodes, live.

In reading order:

    lines.py    a line of a run's files, as an entry of the index
    index.py    the index: what stands in the files, found again fast
    asking.py   what is asked of it
    runs.py     a run folder's figures
    pieces.py   sampled tokens as texts
    server.py   who may ask, and the answers

The page is ``page.html``, ``view.js`` and ``view.css``. ``uplot.js`` and ``uplot.css`` are uPlot
1.6 as it was published (MIT, ``uplot-license.txt``); it draws the curves.
"""
