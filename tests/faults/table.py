"""The table: all rows, by who does wrong."""

from tests.faults import raising

TABLE = [*raising.FAULTS]
