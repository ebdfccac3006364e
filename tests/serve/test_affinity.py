"""Does a conversation go to the replica whose cache has it, and does all else spread?"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moesaic.serve.replicas.affinity import MOST_AHEAD, MOST_LINKS, Affinity, Ticket
from moesaic.serve.replicas.conversation import PIECE_BYTES, Route, route_of

CHAT = "/v1/chat/completions"


def body(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


def said(*texts: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def chat(*texts: str, path: str = CHAT, **fields: object) -> Route:
    return route_of(path, body(messages=said(*texts), **fields))


def common(one: Route, other: Route) -> int:
    pairs = zip(one.links, other.links, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(map(len, (one[0], other[0]))))


def test_a_later_turn_begins_with_all_of_the_earlier() -> None:
    first, second = chat("a"), chat("a", "b", "c")
    assert second.links[: len(first.links)] == first.links
    assert common(chat("a", "b", "c"), chat("a", "b", "d")) == 2
    assert common(chat("a"), chat("b")) == 0
    assert common(chat("a", tools=[{"x": 1}]), chat("a", tools=[{"x": 2}])) == 0


def test_marks_and_forms_that_say_nothing_change_nothing() -> None:
    """Clients move a mark for the cache from message to message."""
    marked = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    in_parts = route_of(CHAT, body(messages=[{"role": "user", "content": marked}]))
    assert in_parts == chat("a")
    for number in "12":
        bill = {"type": "text", "text": f"x-anthropic-billing-header: {number}"}
        system = [bill, {"type": "text", "text": "Be brief."}]
        found = route_of("/v1/messages", body(system=system, messages=said("a")))
        assert found == route_of("/v1/messages", body(system="Be brief.", messages=said("a")))
    items = [{"type": "message", **said("a")[0]}]
    path = "/v1/responses"
    assert route_of(path, body(input=items)) == route_of(path, body(input="a")) == chat("a")


def test_a_text_that_grows_keeps_its_beginning() -> None:
    text = "".join(map(str, range(PIECE_BYTES)))
    short, longer = (route_of("/v1/completions", body(prompt=p)) for p in (text, text + "more" * 9))
    assert len(short.links) == len(text) // PIECE_BYTES > 1
    assert longer.links[: len(short.links)] == short.links
    ids = route_of("/v1/completions", body(prompt=[1, 2, 3]))
    assert len(ids.links) == 1


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b'{"messages": 3}', b"[" * 20_000])
def test_what_is_no_request_has_no_wishes(data: bytes) -> None:
    assert route_of(CHAT, data) == Route()


def test_what_is_stored_is_asked_of_the_replica_that_has_it() -> None:
    stored = "resp_ab12cd34_" + "0" * 32
    assert route_of(f"/v1/responses/{stored}/input_items", b"").replica == "ab12cd34"
    later = route_of("/v1/responses", body(input="b", previous_response_id=stored))
    assert later.replica == "ab12cd34"
    assert route_of("/v1/responses", body(input="b", previous_response_id="resp_0")).replica is None
    affinity = three()
    assert affinity.admit(Route(replica="c")).replica == "c"
    assert affinity.admit(Route(replica="gone")).replica in "ab"


def three() -> Affinity:
    made = Affinity()
    made.keep("abc")
    return made


def ended(ticket: Ticket) -> str:
    ticket.end()
    ticket.end()  # as often as it likes
    return ticket.replica


def test_conversations_stay_and_spread() -> None:
    affinity = three()
    at = {name: ended(affinity.admit(chat(name))) for name in "xyz"}
    assert sorted(at.values()) == ["a", "b", "c"]
    for turn in ("1", "2"):
        for name in "zxy":
            texts = [name, *(f"{name}{i}" for i in range(int(turn) * 2))]
            assert ended(affinity.admit(chat(*texts))) == at[name]


def test_a_replica_with_too_many_requests_is_left() -> None:
    affinity = three()
    home = affinity.admit(chat("x")).replica
    more = [affinity.admit(chat("x")).replica for _ in range(MOST_AHEAD + 1)]
    assert more[:-1] == [home] * MOST_AHEAD
    assert more[-1] != home, "it has one more than may be"


def test_requests_with_nothing_in_common_go_where_the_fewest_are() -> None:
    affinity = three()
    tickets = [affinity.admit(chat(str(number))) for number in range(9)]
    assert sorted(ticket.replica for ticket in tickets) == [*"aaabbbccc"]
    of_b = [ticket for ticket in tickets if ticket.replica == "b"]
    for ticket in of_b:
        ticket.end()
    assert affinity.admit(chat("new")).replica == "b"


def test_a_long_text_in_common_is_worth_the_same_replica() -> None:
    """Questions about one document, one after the other."""
    affinity, document = three(), "word " * PIECE_BYTES
    first = ended(affinity.admit(chat(f"{document} one?")))
    assert {ended(affinity.admit(chat(f"{document} {n}?"))) for n in range(4)} == {first}
    assert ended(affinity.admit(chat("other"))) != first


def test_a_lost_replica_is_forgotten_and_one_in_trouble_avoided() -> None:
    now = [0.0]
    affinity = Affinity(lambda: now[0])
    affinity.keep("ab")
    home = ended(affinity.admit(chat("x")))
    affinity.avoid(home)
    assert ended(affinity.admit(chat("y"))) != home
    affinity.avoid("none")
    for name in "ab":
        affinity.avoid(name)
    assert ended(affinity.admit(chat("x"))) == home, "none is left but those"
    now[0] = 60
    affinity.keep({"a", "b"} - {home})
    assert ended(affinity.admit(chat("x"))) != home


def test_what_is_remembered_is_bounded() -> None:
    affinity = Affinity()
    affinity.keep("a")
    for number in range(3):
        links = tuple(f"{number}/{i}".encode() for i in range(MOST_LINKS // 2 + 1))
        affinity.admit(Route(links)).end()
    assert affinity._replicas["a"].size == MOST_LINKS
