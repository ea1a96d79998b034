"""The table of faults, ordered by who causes them."""

from tests.faults import behaving, groups, policies, raising, starving, trainers

TABLE = [
    *raising.FAULTS,
    *behaving.FAULTS,
    *policies.FAULTS,
    *trainers.FAULTS,
    *groups.FAULTS,
    *starving.FAULTS,
]
