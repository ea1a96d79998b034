"""Every figure of the project: data in, PNG out.

What each draws:

    curves.py    a run's rewards; several games' over seeds
    panels.py    the figures of a report's page
    bars.py      scores with their intervals
    sweep.py     a sweep's runs, from value to value
"""
