"""Does every API give all of an answer whose format is damaged, the same in a stream as whole,
however the text is cut into tokens?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest
from family_templates import FAMILIES, answer
from scripted import InstantEngine, ScriptedServer, scripted_server
from servers import posted
from three_apis import NAMES, Said, api, streamed, whole

from moesaic.serve.arguments import arguments_object
from moesaic.serve.formats.detect import detect

DAMAGES = 16  # of each family
# Words that occur once, in every part of an answer.
_THOUGHT, _TEXT = "apple, bread: {cheese} <date>", 'elder "fig" [grape] honey'
_ARGUMENTS = {"path": 'iris/"juniper"\n<kale>', "lemon": "mint {nutmeg}", "olive": "pepper"}
_WORDS = re.compile(r"apple|bread|cheese|date|elder|fig|grape|honey|iris|juniper|kale|lemon"
                    r"|mint|nutmeg|olive|pepper")  # fmt: skip
_TAGS = re.compile(r"\s|</?think>")  # which are no part of a thought
_PIECES = ('"', "{", "}", "[", "]", "\\", "<", ">", "\n", ",", ":", "/", "|", "=", "</", "``")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def scripted(family: str) -> Iterator[ScriptedServer]:
    with scripted_server(family, kind=InstantEngine) as made:
        yield made


def _of_format(family: str) -> tuple[str, ...]:
    """Other special tokens are no text."""
    return detect(FAMILIES[family].template, None).keeps_special


def damaged(text: str, markers: tuple[str, ...], chance: Random) -> str:
    """A few characters gone, one put in, or a marker in the wrong place."""
    for _ in range(chance.randint(1, 2)):
        place = chance.randrange(len(text) + 1)
        gone = chance.choice((0, 0, 1, 3, 12))
        put = chance.choice(("", *_PIECES, chance.choice(markers)))
        text = text[:place] + put + text[place + gone :]
    return text


def cut(text: str, markers: tuple[str, ...], chance: Random) -> list[str]:
    """Anywhere but in a marker, which is one token."""
    pieces = []
    for part in re.split(f"({'|'.join(map(re.escape, markers))})", text):
        count = 0 if part in markers else 8
        edges = sorted({0, len(part), *(chance.randrange(len(part) + 1) for _ in range(count))})
        pieces += [part[a:b] for a, b in pairwise(edges)]
    return pieces


def written(text: str, ends: tuple[str, ...]) -> str:
    """What the model has written when a token ends its answer."""
    for end in ends:
        text = text.partition(end)[0]
    return text


def all_of(said: Said) -> str:
    return " ".join([said.text, said.thought, *(part for call in said.calls for part in call)])


def with_objects(said: Said) -> tuple[str, str, list[tuple[str, object]]]:
    """Arguments as the Messages API has them."""
    return said.text, said.thought, [(n, arguments_object(a)) for n, a in said.calls]


@pytest.mark.parametrize("seed", range(DAMAGES))
def test_nothing_is_lost(scripted: ScriptedServer, family: str, seed: int) -> None:
    chance, known = Random(f"{family} {seed}"), FAMILIES[family]
    good = answer(family, _THOUGHT, _TEXT, ("look", _ARGUMENTS))
    every = (*known.special, *known.added)
    markers = tuple(each for each in every if each not in known.ends and each in _of_format(family))
    text = damaged(good, markers, chance)
    scripted.engine.script = lambda prompt: text
    wanted = sorted(_WORDS.findall(written(text, known.ends)))
    found: list[Said] = []
    for name in NAMES:
        asked = api(name)
        for stream in (False, True):
            scripted.engine.split = lambda text: cut(text, every, chance)
            data = posted(f"{scripted.address}{asked.path}", {**asked.asked, "stream": stream})
            found.append(streamed(name, data) if stream else whole(name, data))
    for said in found:
        shown = _WORDS.findall(all_of(said).replace("\\n", " "))
        assert sorted(shown) == wanted, (text, said)
    chat, chat_stream, items, item_stream, blocks, block_stream = found
    assert chat == chat_stream == items == item_stream == block_stream, text
    if not chat.calls and family != "harmony":
        there = _TAGS.sub("", written(text, known.ends))
        assert _TAGS.sub("", chat.thought + chat.text) == there, "to the character"
    objects = [(name, json.loads(arguments)) for name, arguments in blocks.calls]
    assert (blocks.text, blocks.thought, objects) == with_objects(chat), text
