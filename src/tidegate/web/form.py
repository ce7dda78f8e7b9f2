"""Forms, as browsers send them."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.requests import Request

__all__ = ["form_of"]

_MOST_FIELDS = 20


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; none if it is not one. The guard has bounded its size."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return {}
    try:
        return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        return {}
