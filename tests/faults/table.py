"""The table: all rows, by who does wrong."""

from tests.faults import behaving, groups, policies, raising, starving, trainers

TABLE = [
    *raising.FAULTS,
    *behaving.FAULTS,
    *policies.FAULTS,
    *trainers.FAULTS,
    *groups.FAULTS,
    *starving.FAULTS,
]
