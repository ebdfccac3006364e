"""The everyday words that fill templates, by slot: a template says {fruits} and gets one of these.

Countable things are listed by their plural; a slot named in the singular gives the same thing.
"""

from __future__ import annotations

from training.problems.grammar import singular


def _listed(text: str) -> tuple[str, ...]:
    return tuple(" ".join(word.split()) for word in text.split(","))


# Slot (plural) -> plurals. {thing} and {things} are one thing, {things2} is another one.
PLURALS: dict[str, tuple[str, ...]] = {
    "fruits": _listed(
        "apples, pears, plums, peaches, oranges, lemons, bananas, mangoes, figs, limes, melons, "
        "cherries, berries, grapes, apricots"
    ),
    "foods": _listed(
        "cookies, muffins, rolls, sandwiches, pies, pancakes, eggs, cupcakes, carrots, berries, "
        "potatoes, tomatoes, donuts, buns, waffles, nuts, cherries, plums"
    ),
    "cakes": _listed(
        "cookies, muffins, rolls, pies, pancakes, cupcakes, donuts, buns, waffles, cakes, "
        "pretzels, pizzas, brownies"
    ),
    "toys": _listed(
        "marbles, toy cars, dolls, kites, puzzles, balls, blocks, robots, yo-yos, toy trains, "
        "puppets, toy boats, teddy bears, drums, masks"
    ),
    "things": _listed(
        "stickers, marbles, shells, coins, stamps, beads, buttons, cards, pencils, ribbons, rocks, "
        "pens, crayons, badges, balloons, postcards, bottle caps, keys, candles, feathers, apples, "
        "pears, cookies, eggs, plums, books, magnets, erasers, bracelets, toy cars, flowers, photos"
    ),
    "goods": _listed(
        "notebooks, clocks, books, shirts, hats, mugs, lamps, plates, towels, bowls, scarves, "
        "jackets, bags, belts, games, umbrellas, candles, cups, pillows, ropes"
    ),
    "boxes": _listed("boxes, bags, baskets, jars, bowls, trays, crates, buckets, packs, cartons"),
    "animals": _listed(
        "cows, goats, hens, ducks, horses, pigs, rabbits, sheep, geese, dogs, cats, donkeys"
    ),
    "pets": _listed("dogs, cats, rabbits, hamsters, parrots, turtles, ponies, mice, goldfish"),
    "plants": _listed(
        "roses, tulips, daisies, lilies, trees, bushes, herbs, bean plants, sunflowers, ferns"
    ),
    "helpers": _listed("friends, cousins, neighbors, classmates, children, students, players"),
    "rides": _listed("buses, vans, boats, cars, wagons, trains, trucks"),
    "makers": _listed("machines, printers, ovens, robots, workers, bakers, painters"),
    "rooms": _listed("rooms, halls, classrooms, offices, tents, cabins"),
    "tools": _listed(
        "hammers, saws, ladders, shovels, rakes, drills, brushes, buckets, ropes, axes, hoses, "
        "flashlights"
    ),
    "vegetables": _listed(
        "carrots, onions, potatoes, tomatoes, beans, peas, cabbages, peppers, pumpkins, cucumbers, "
        "radishes, leeks, turnips"
    ),
    "presents": _listed(
        "watches, books, scarves, dolls, kites, lamps, cameras, balls, rings, puzzles, bikes, "
        "paintings, necklaces, games, drums, mirrors, tents, mugs"
    ),
    "beasts": _listed(
        "lions, tigers, bears, elephants, monkeys, zebras, giraffes, foxes, owls, snakes, camels, "
        "seals, penguins, crocodiles, parrots, turtles"
    ),
}

# Slot -> words without a number of their own.
SINGLES: dict[str, tuple[str, ...]] = {
    "color": _listed("red, blue, green, yellow, black, white, brown, purple, orange, pink, gray"),
    "coat_color": _listed("black, white, brown, gray, golden, red, orange"),
    "city": _listed(
        "Paris, London, Rome, Oslo, Lima, Cairo, Boston, Berlin, Madrid, Dublin, Tokyo, Vienna, "
        "Denver, Athens, Lisbon, Prague, Toronto, Nairobi, Chicago, Warsaw, Delhi, Havana, Quito"
    ),
    "place": _listed(
        "park, market, library, beach, museum, zoo, bakery, farm, school, station, lake, theater, "
        "garden, bank, harbor, forest, playground, pool, castle, post office"
    ),
    "job": _listed(
        "baker, teacher, doctor, farmer, painter, pilot, singer, driver, nurse, cook, writer, "
        "gardener, dentist, carpenter, tailor, plumber, barber, librarian"
    ),
    "shop": _listed(
        "toy store, bakery, market, bookstore, corner shop, school fair, flea market, gift shop"
    ),
    "weekday": _listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "month": _listed(
        "January, February, March, April, May, June, July, August, September, October, November, "
        "December"
    ),
    "dish": _listed(
        "soup, rice, bread, cheese, pasta, salad, pizza, fish, cake, stew, toast, pie, beans, curry"
    ),
    "drink": _listed("milk, tea, water, juice, coffee, lemonade, cocoa, soda"),
    "sport": _listed(
        "tennis, soccer, chess, hockey, golf, rugby, baseball, volleyball, basketball, badminton"
    ),
    "tune": _listed("piano, violin, flute, guitar, drums, trumpet, cello, harp, clarinet, banjo"),
    "subject": _listed("math, history, music, art, science, reading, geography, spelling, sports"),
    "clothing": _listed("coat, hat, scarf, sweater, shirt, jacket, cap, dress, vest, raincoat"),
    "relative": _listed("mother, father, aunt, uncle, sister, brother, grandmother, grandfather"),
    "elder": _listed("mother, father, aunt, uncle, grandmother, grandfather, teacher"),
    "weather": _listed("sunny, rainy, windy, cloudy, snowy, foggy, hot, cold, stormy"),
    "season": _listed("spring, summer, fall, winter"),
    "furniture": _listed("table, bed, chair, sofa, desk, shelf, bench, closet, stove, piano"),
    "at_home": _listed(
        "kitchen, bedroom, garage, attic, cellar, hall, bathroom, living room, dining room, "
        "playroom, pantry, office"
    ),
    "country": _listed(
        "Spain, Italy, France, Japan, Brazil, Egypt, Kenya, Canada, India, Norway, Peru, Greece, "
        "Mexico, Poland, Chile, Ghana, Sweden, Turkey, China, Ireland"
    ),
    "language": _listed(
        "Spanish, Italian, French, Japanese, German, Greek, Polish, Turkish, Chinese, Arabic, "
        "Swedish, Russian, Dutch, Korean"
    ),
    "hobby": _listed(
        "reading, painting, swimming, cooking, dancing, singing, fishing, drawing, skating, "
        "knitting, running, cycling, sailing, sewing, climbing"
    ),
    "chore": _listed(
        "wash the dishes, sweep the floor, feed the cat, water the plants, make the beds, "
        "set the table, take out the trash, clean the windows, fold the towels, cut the grass, "
        "walk the dog, dust the shelves"
    ),
    "feeling": _listed(
        "happy, sad, tired, hungry, angry, proud, bored, nervous, thirsty, excited, lonely, sleepy"
    ),
    "material": _listed("wood, glass, paper, stone, metal, clay, leather, wool, plastic, silver"),
    "body_part": _listed("arm, leg, knee, hand, foot, ear, head, back, finger, shoulder, elbow"),
    "pet_name": _listed(
        "Rex, Fluffy, Spot, Coco, Lucky, Snowy, Buddy, Rocky, Biscuit, Pepper, Ginger, Shadow, "
        "Sunny, Patch, Bubbles"
    ),
    "team": _listed("Lions, Tigers, Bears, Eagles, Sharks, Wolves, Hawks, Bulls, Panthers, Bees"),
    "event": _listed(
        "concert, wedding, picnic, party, parade, play, fair, race, dance, meeting, exam, dinner"
    ),
    "flavor": _listed("vanilla, chocolate, strawberry, lemon, mint, banana, cherry, coconut"),
    "street": _listed(
        "Oak Street, Hill Street, Park Road, Lake Road, River Street, Station Road, Mill Lane, "
        "King Street, Garden Street, Church Road, Bridge Street, Forest Lane"
    ),
    "floor": _listed("first, second, third, fourth, fifth, sixth, seventh, eighth"),
    "half_hour": _listed(
        "7:00, 7:30, 8:00, 8:30, 9:00, 9:30, 10:00, 10:30, 11:00, 11:30, 1:00, 1:30, 2:00, 2:30, "
        "3:00, 3:30, 4:00, 4:30, 5:00, 5:30, 6:00, 6:30"
    ),
    "errand": _listed(
        "buy bread, see a friend, borrow a book, post a letter, take pictures, have lunch, "
        "sell a bike, meet a cousin, get some flowers, ask for help, return a key, hear some music"
    ),
    "delay": _listed(
        "the bus was late, the road was closed, it was raining, the car did not start, "
        "the clock was wrong, the train was full, the bridge was broken, the snow was deep, "
        "the key was lost, a tire was flat"
    ),
    "quality": _listed(
        "old, new, heavy, tiny, dirty, clean, soft, broken, light, beautiful, cheap, strange"
    ),
    "woodland": _listed("hill, river, bridge, old tree, pond, fence, road, barn, cave, meadow"),
}

PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    slot: tuple((plural, singular(plural)) for plural in words) for slot, words in PLURALS.items()
}
ONE_OF: dict[str, str] = {singular(slot): slot for slot in PLURALS}
assert not ONE_OF.keys() & SINGLES.keys(), "a slot has two meanings"
