"""Are items of stored responses found by their names, and only those that are stored?"""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.serve.responses.store import ResponseStore, Stored


def stored(response_id: str) -> Stored:
    item = {"id": f"msg_{response_id}", "type": "message", "text": "y"}
    return Stored({"id": response_id, "output": [item]}, ())


def test_items_are_found_without_looking_through_the_store() -> None:
    """A request may refer to as many items as its body has room for."""
    store, looked = ResponseStore(), 0

    class Counted(list[dict[str, str]]):
        def __iter__(self) -> Iterator[dict[str, str]]:
            nonlocal looked
            looked += 1
            return super().__iter__()

    for number in range(100):
        each = stored(str(number))
        each.response["output"] = Counted(each.response["output"])
        store.add(each)
    before = looked
    found = [store.item(f"msg_{number % 100}") for number in range(10_000)]
    assert {each["id"] for each in found if each is not None} == {f"msg_{n}" for n in range(100)}
    assert store.item("msg_other") is None
    assert looked == before


def test_of_two_items_with_one_name_the_newer_is_found() -> None:
    store = ResponseStore()
    first, second = stored("a"), stored("b")
    second.response["output"][0]["id"] = "msg_a"
    store.add(first)
    store.add(second)
    assert store.item("msg_a") is second.response["output"][0]
    store.remove("a")
    assert store.item("msg_a") is second.response["output"][0]
    store.remove("b")
    assert store.item("msg_a") is None


def test_an_item_goes_with_its_response() -> None:
    store = ResponseStore(most=2)
    for each in "abc":
        store.add(stored(each))
    assert [store.item(f"msg_{each}") is not None for each in "abc"] == [False, True, True]
