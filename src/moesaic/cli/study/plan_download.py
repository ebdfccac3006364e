"""What fetching a planned model would take, from the hub's own listing."""

from __future__ import annotations

from typing import Any

from moesaic.core.errors import CannotFetch
from moesaic.core.units import GB
from moesaic.model_info.hub.hub_id import HubId


def download(hub_id: HubId) -> dict[str, Any]:
    """Sizes in bytes, and the same in words; a plan is of use without them."""
    from moesaic.model_info.hub.listing import SPARE, free_bytes, read_listing

    try:
        listing = read_listing(hub_id)
    except CannotFetch as error:
        return {"words": f"What fetching it would take is not known: {error}"}
    free, missing = free_bytes(), listing.missing_bytes
    fits = missing + SPARE <= free
    room = "which is enough" if fits else "which is not enough"
    return {
        "commit": listing.commit,
        "files": len(listing.sizes),
        "bytes": listing.bytes,
        "missing_bytes": missing,
        "free_bytes": free,
        "fits": fits,
        "words": f"To fetch: {listing}; the disk has {free / GB:.1f} GB free, {room}.",
    }
