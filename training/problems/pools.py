"""What lists and comparisons are made of: names of people, places, animals, things.

`the` says whether a sentence puts an article before the word ("the lamp", but "Monday").
"""

from __future__ import annotations

from typing import NamedTuple

from training.problems.names import PEOPLE
from training.problems.words import PAIRS, SINGLES


class Pool(NamedTuple):
    the: bool
    words: tuple[str, ...]

    def subject(self, word: str) -> str:
        return f"the {word}" if self.the else word

    def subjects(self, words: list[str]) -> list[str]:
        return [f"the {word}" for word in words] if self.the else words


def _listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(word.split()) for word in text.split(","))


def _colored(noun: str) -> Pool:
    return Pool(True, tuple(f"{color} {noun}" for color in SINGLES["color"]))


def _one_of(slot: str) -> Pool:
    return Pool(True, tuple(one for _, one in PAIRS[slot]))


_NAMED = {
    "people": tuple(person.name for person in PEOPLE),
    "weekdays": SINGLES["weekday"],
    "months": SINGLES["month"],
    "cities": SINGLES["city"],
    "towns": _listed(
        "Ashford, Milton, Elmwood, Brookside, Fairview, Oakdale, Riverton, Greenville, Kingston, "
        "Lakewood, Clayton, Dover, Harwick, Linden, Norwood, Stonebridge, Weston, Yarrow"
    ),
    "mountains": _listed(
        "Eagle Peak, Mount Olin, Bear Top, Gray Horn, Mount Vesta, Wolf Ridge, Mount Tarn, "
        "Snow Peak, Iron Hill, Mount Alba, Goat Rock, Mount Dorn"
    ),
    "streets": _listed(
        "Mill Street, Park Road, Oak Street, Hill Road, Lake Street, Church Road, Rose Street, "
        "Bridge Road, School Street, Garden Road, King Street, River Road"
    ),
    "teams": _listed(
        "Lions, Tigers, Bears, Hawks, Sharks, Wolves, Foxes, Eagles, Comets, Rockets, Giants, "
        "Pirates, Dragons, Knights"
    ),
    "subjects": SINGLES["subject"],
    "colors": SINGLES["color"],
    "drinks": SINGLES["drink"],
    "dishes": _listed("soup, rice, bread, cheese, pasta, salad, pizza, fish, cake, stew, pie"),
    "groceries": _listed(
        "bread, milk, eggs, butter, cheese, rice, flour, sugar, apples, onions, honey, salt, tea, "
        "beans, carrots, soap, yogurt, jam, lemons, pasta, oats, nuts"
    ),
    "songs": _listed(
        "Blue Moon, Rainy Day, Old River, Golden Sun, Sweet Home, Night Train, Slow Dance, "
        "Wild Rose, Little Star, Long Road, Paper Boat, Silver Bell, Open Door, Last Snow"
    ),
    "chores": _listed(
        "sweep, cook, iron, shop, rest, paint, read, bake, dust, write, swim, mow, knit, pack, dig"
    ),
    "rooms": _listed("kitchen, hall, attic, cellar, bedroom, bathroom, garage, office, library"),
    "flavors": _listed("vanilla, lemon, mint, cherry, banana, mango, coffee, honey, ginger, plum"),
    "planets": _listed("Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune"),
    "codes": _listed("K7, B2, M4, R9, T3, D8, F5, H6, L1, P2, S8, W4, X9, Z3, C6, G1"),
}
_COMMON = {
    "rivers": "Alder, Bramble, Cobalt, Drava, Ember, Fenn, Gull, Heron, Isel, Kestrel, Lune, Marl",
    "beasts": "cat, dog, horse, cow, goat, hen, duck, pig, fox, bear, wolf, lion, tiger, zebra, "
    "rabbit, mouse, frog, snake, owl, eagle, monkey, camel, turtle, donkey, goose, sheep",
    "luggage": "box, bag, basket, suitcase, chest, sack, crate, backpack, parcel, barrel, bucket",
    "rides": "car, bus, train, boat, truck, bike, van, taxi, tractor, tram, scooter",
    "buildings": "school, museum, church, tower, hotel, library, castle, bank, theater, barn, mill",
    "places": "park, market, library, beach, museum, zoo, bakery, farm, school, lake, theater, "
    "bank, harbor, forest, pool, castle",
    "waters": "lake, river, pond, well, canal, harbor, pool, bay",
    "plants": "rose, tulip, daisy, lily, oak, bush, fern, pine, birch, sunflower, vine, cactus",
    "sounds": "drum, bell, train, radio, siren, whistle, piano, trumpet, hammer, motor, clock",
    "events": "concert, movie, play, lesson, game, party, meeting, show, picnic, race, dinner",
    "stuff": "table, door, desk, shelf, bench, mirror, window, rug, picture, poster, curtain, bed",
    "toys": "doll, kite, puzzle, ball, robot, drum, puppet, marble, kazoo, top, train, mask",
    "tools": "hammer, saw, drill, shovel, rake, wrench, ladder, axe, brush, chisel, pump, rope",
    "clothes": "coat, hat, scarf, sweater, shirt, jacket, cap, dress, vest, belt, skirt, glove",
    "fruit": "apple, pear, lemon, banana, grape, cherry, fig, melon, mango, kiwi, apricot, papaya",
}
POOLS: dict[str, Pool] = {
    **{name: Pool(False, words) for name, words in _NAMED.items()},
    **{name: Pool(True, _listed(words)) for name, words in _COMMON.items()},
    **{f"colored {noun}": _colored(noun) for noun in ("rope", "book", "box", "bead", "car")},
    "goods": _one_of("goods"),
}
