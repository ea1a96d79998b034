"""The page of runs and their episodes: ``evert view`` serves it live, ``evert report`` saves it.

In reading order:

    lines.py              converts a line of a run's files to an entry of the index
    incremental_index.py  the index, which quickly finds episodes in the files
    asking.py             the page's queries to the index
    tokens.py             counts a run's tokens, and computes their cost
    runs.py               a run folder's figures
    pieces.py             the text of each sampled token
    answers.py            the page's API: rows for the page, by name
    server.py             checks requests and answers them
    report_page.py        saves the page with its data as one file

The page is ``page.html``, ``view.js`` and ``view.css``. ``uplot.js`` and ``uplot.css`` are the
unchanged uPlot 1.6 (MIT, ``uplot-license.txt``), which draws the curves.
"""
