"""Keep secrets known to this process out of a run's logs, trackers and ``code.diff``.

Log messages and the Cookbook's config are redacted when they are created. Our own files are
redacted when they are written (``RunFolder.write``).
"""

import logging
import shutil
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evert.bridge.redaction import redacted, redacted_tree


@contextmanager
def redacting() -> Iterator[None]:
    """Redact secrets in logs and in the Cookbook's config inside the block."""
    from tinker_cookbook.utils import ml_log as cookbook

    ml_log: Any = cookbook
    make_record, dump = logging.getLogRecordFactory(), ml_log.dump_config
    code = ml_log.code_state
    # with this, code.diff shows the changes in this folder instead of the Cookbook's folder
    folder = types.ModuleType("the working folder")
    folder.__path__ = [str(Path.cwd())]

    def record_of(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return _without_secrets(make_record(*args, **kwargs))

    def dump_config(config: Any) -> Any:
        return redacted_tree(dump(config))

    def code_state() -> str:
        try:
            return redacted(code([folder])) if shutil.which("git") else ""
        except UnicodeDecodeError:  # git outputs the raw bytes of files
            return "### the working folder: its changes are not included, as they are not UTF-8\n"

    logging.setLogRecordFactory(record_of)
    ml_log.dump_config, ml_log.code_state = dump_config, code_state
    try:
        yield
    finally:
        logging.setLogRecordFactory(make_record)
        ml_log.dump_config, ml_log.code_state = dump, code


def _without_secrets(record: logging.LogRecord) -> logging.LogRecord:
    with suppress(Exception):  # logging itself reports invalid arguments
        message = record.getMessage()
        if (clean := redacted(message)) is not message:
            record.msg, record.args = clean, ()
    if record.exc_info and record.exc_info[0] is not None:
        text = "".join(traceback.format_exception(*record.exc_info))
        record.exc_text = redacted(text).rstrip("\n")
    return record
