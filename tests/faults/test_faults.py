"""Plays each row in the table of faults and compares the results with the table."""

import tempfile
from pathlib import Path

import pytest
from tests.faults import commands, records, workers
from tests.faults.scene import NOTHING, Fault, is_as, perform
from tests.faults.table import TABLE
from tests.kit import Patch


@pytest.fixture(autouse=True)
def _folders_are_our_own(tmp_path: Path, monkeypatch: Patch) -> None:
    """Use a separate temporary folder, so that concurrent tests' folders don't count."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("fault", TABLE, ids=str)
def test_trainer_agent_and_process_see_what_the_table_states(fault: Fault) -> None:
    seen = perform(fault)

    for who, was, expected in (
        ("trainer", seen.trainer, fault.trainer_sees),
        ("agent", seen.agent, fault.agent_sees),
        ("process", seen.process, fault.process_sees),
        ("process at the end", seen.at_last, NOTHING),
        ("loop", "; ".join(seen.complaints), ""),
    ):
        assert is_as(was, expected), f"{who}\n  saw      {was:.2000}\n  expected {expected}"


def test_the_tables_are_long_and_have_no_duplicates() -> None:
    pools = [*workers.DEEDS, *workers.PROGRAMS]
    for rows, least in ((TABLE, 120), (commands.TABLE, 60), (records.TABLE, 20), (pools, 15)):
        names = [str(row) for row in rows]
        assert len({*names}) == len(names) >= least, names[0]
