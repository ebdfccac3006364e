"""Does the store of responses keep the newest ones, within its limits?"""

from __future__ import annotations

import re

import pytest

from moesaic.serve.api_error import ApiError
from moesaic.serve.responses.store import ResponseStore, Stored

PADDING = 10_000  # characters of a response, beside which the rest is little


def stored(response_id: str, size: int = PADDING) -> Stored:
    said = {"role": "user", "content": "x" * (size // 2)}
    item = {"id": f"msg_{response_id}", "type": "message", "text": "y" * (size // 2)}
    return Stored({"id": response_id, "output": [item]}, (said,))


def kept(store: ResponseStore, ids: str) -> str:
    found = ""
    for each in ids:
        try:
            found += store.get(each).response["id"]
        except ApiError as error:
            if error.status != 404:
                raise
    items = "".join(each for each in ids if store.item(f"msg_{each}") is not None)
    return found if items == found else f"{found}, but items of {items}"


def test_the_oldest_make_room_by_number_and_by_bytes() -> None:
    few = ResponseStore(most=3)
    small = ResponseStore(most_bytes=3 * PADDING + PADDING // 2)
    for store in (few, small):
        for each in "abcde":
            store.add(stored(each))
        assert kept(store, "abcde") == "cde"


def test_a_large_one_takes_the_place_of_several_and_frees_it_again() -> None:
    store = ResponseStore(most_bytes=4 * PADDING + PADDING // 2)
    for each in "abcd":
        store.add(stored(each))
    store.add(stored("L", 2 * PADDING))
    assert kept(store, "abcdL") == "cdL"
    store.remove("L")
    for each in "ef":
        store.add(stored(each))
    assert kept(store, "cdLef") == "cdef", "what was removed counts no more"


def test_one_that_is_too_large_alone_costs_no_other_its_place() -> None:
    store = ResponseStore(most_bytes=2 * PADDING)
    store.add(stored("a"))
    store.add(stored("L", 3 * PADDING))
    assert kept(store, "aL") == "a"


def test_who_asks_for_a_lost_one_reads_what_is_kept() -> None:
    store = ResponseStore(most=7, most_bytes=5_000_000)
    with pytest.raises(ApiError, match=re.escape("the last 7 ")) as refusal:
        store.get("resp_1", "previous_response_id")
    assert "up to 5 MB together" in refusal.value.message
    assert refusal.value.param == "previous_response_id"
