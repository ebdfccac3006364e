"""What libraries and failed requests report beside the lines of requests: on standard error, too,
and in the same form, one line of JSON each where JSON was asked for."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from moesaic.serve.request_record import LogFormat


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def log_messages(form: LogFormat) -> None:
    """For the whole process: warnings and errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _OneLine() if form == "json" else logging.Formatter("%(asctime)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
