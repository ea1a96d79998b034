"""The page of ``evert view``: runs and their episodes, live.

In reading order:

    lines.py    turns a line of a run's files into an entry of the index
    index.py    the index, which finds episodes in the files fast
    asking.py   the page's queries to the index
    runs.py     a run folder's figures
    pieces.py   sampled tokens as texts
    server.py   checks requests and answers them

The page is ``page.html``, ``view.js`` and ``view.css``. ``uplot.js`` and ``uplot.css`` are the
unchanged uPlot 1.6 (MIT, ``uplot-license.txt``), which draws the curves.
"""
