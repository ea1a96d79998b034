"""A disk that fills up while a run is under way: one message, nothing lost, and it goes on.

The disk is a real one: a file system of a few megabytes in memory, in a mount namespace of its own,
which every user of Linux may have where the kernel allows it. It is made larger for the second try.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = (
    "env=identity device=cpu batch_size=1 group_size=2 eval_every=0 samples=1 save_every=2 steps=4"
)
SCRIPT = """
mount -t tmpfs -o size=$1 none $2 || exit 99
unset TINKER_API_KEY
train="$3 -m evert.trainers.cli train $4 log_path=$2/run"
$train > /dev/null 2> $5/first
echo $? >> $5/first
mount -o remount,size=400m $2
$train > $5/shown 2> $5/second
echo $? >> $5/second
cp $2/run/*.jsonl $2/run/run.json $5
ls -A $2/run > $5/left
"""


def can_mount() -> bool:
    """Whether this user may mount something for itself."""
    unshare = shutil.which("unshare")
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return unshare is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="no mount namespace here")
@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("64k", "cannot be written to: No space left on device"),  # its first step
        pytest.param("16m", "No space left on device", marks=pytest.mark.nightly),  # a checkpoint
    ],
)
def test_a_full_disk_is_one_message_and_the_same_command_goes_on(
    tmp_path: Path, size: str, said: str
) -> None:
    (disk := tmp_path / "disk").mkdir()
    arguments = [size, str(disk), sys.executable, SETTINGS, str(tmp_path)]
    subprocess.run(["unshare", "-rm", "sh", "-c", SCRIPT, "sh", *arguments], check=True)

    message, *_, status = (first := (tmp_path / "first").read_text()).splitlines()
    assert status == "1"
    assert message.startswith("error: ")
    assert said in message
    assert "Traceback" not in first
    assert "To resume: " in first
    assert (tmp_path / "second").read_text() == "0\n"
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    listed = (tmp_path / "checkpoints.jsonl").read_text().splitlines()
    assert [json.loads(line)["name"] for line in listed] == ["000002", "000004", "final"]
    assert not [name for name in (tmp_path / "left").read_text().split() if name.startswith(".")]
