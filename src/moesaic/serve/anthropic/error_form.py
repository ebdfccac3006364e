"""Errors in the form of the Messages API."""

from __future__ import annotations

from typing import Any

from moesaic.serve.api_error import ApiError

MESSAGES = "/v1/messages"  # paths that begin so
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    found = {"type": kind, "message": error.message}
    return {"type": "error", "error": found, "request_id": request_id}
