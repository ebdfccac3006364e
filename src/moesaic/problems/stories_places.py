"""Wordings of stories about what is in a place: see stories_words.py for how they are written."""

_WORK = """
work_start: There are {n} {t} first.
work_packs: There are {n} times {m} {t}.
work_gain: {n} more come.
work_loss: {n} go away.
work_double: The number doubles.
work_triple: There are 3 times as many.
work_half: Half of them go away.
work_packs_in: {n} times {m} more come.
work_packs_out: {n} times {m} go away.
work_share: They are shared by {n}.
"""

_BUS = """
who: the bus, the train, the boat, the ferry, the tram, the ship
quick: yes
things: people, passengers, children, tourists
numbers: 10..90
start: <has/had/having> {n} {t} on board
start: <leaves/left/leaving> the first stop with {n} {t}
start: <carries/carried/carrying> {n} {t}
start: {n} {t} <sit/sat> on {A}
start: there <are/were> {n} {t} on {A}
packs: <carries/carried/carrying> {n} groups of {m} {t}
packs: {n} groups of {m} {t} <get/got> on {A}
gain: <picks/picked/picking> up {n} (more|other) {t} (at the {place}|at the next stop|near the \
{place})
gain: <takes/took/taking> {n} more {t} on board
gain: {n} (more|other) {t} <get/got> on (at the {place}|at the next stop|)
gain: {n} {t} <come/came> on board
gain: {n} {t} who <were/had been> waiting <step/stepped> in
loss: <drops/dropped/dropping> off {n} {t} (at the {place}|at the next stop|)
loss: <lets/let/letting> {n} {t} out (near the {place}|at a stop)
loss: {n} {t} <get/got> off (at the {place}|at the next stop|)
loss: {n} of the {t} <leave/left> {A}
loss: {n} {t} <step/stepped> out
half: <drops/dropped/dropping> off half of the {t} at the {place}
half: half of the {t} <get/got> off
packs_in: <picks/picked/picking> up {m} {t} at each of {n} stops
packs_in: {n} families of {m} <get/got> on
packs_out: <drops/dropped/dropping> off {m} {t} at each of {n} stops
packs_out: {n} groups of {m} {t} <get/got> off
ask: How many {t} <are/were> on {A} (<now/then>|then|in the end)
ask: How many {t} <is/was> {A} carrying then
ask: How many {t} <stay/stayed> on {A}
find: how many {t} <are/were> on {A} (<now/then>|in the end)
find: the number of {t} on {A} at the end
aside: {A} <is/was> {x} minutes late
aside: the driver <is/was> {x} years old
aside: a ticket <costs/cost> {x} dollars
aside: {A} <has/had> {x} windows
"""

_SHOP = """
who: the shop, the store, the stand, the shop on the corner
things: goods
numbers: 10..95
start: <has/had/having> {n} {t} for sale
start: <opens/opened/opening> with {n} {t}
start: <holds/held/holding> {n} {t}
start: there <are/were> {n} {t} on the shelves of {A}
start: {n} {t} <lie/lay> in {A}
packs: <has/had/having> {n} shelves with {m} {t} on each
packs: <orders/ordered/ordering> {n} {boxes} with {m} {t} in each
packs: there <are/were> {n} {boxes} with {m} {t} each in {A}
gain: <gets/got/getting> {n} (more|new) {t} (from a factory|from a truck|)
gain: <orders/ordered/ordering> {n} more {t} and <gets/got/getting> them at once
gain: <receives/received/receiving> {n} {t}
gain: a truck <brings/brought> {n} (more|new) {t}
gain: customers <bring/brought> back {n} {t}
gain: {B} <puts/put> {n} more {t} on the shelves
loss: <sells/sold/selling> {n} {t} (before noon|to {B}|to a school|)
loss: <sends/sent/sending> {n} {t} back
loss: <gives/gave/giving> {n} {t} to a school
loss: {n} {t} <are/were> sold (before noon|to a hotel|)
loss: {n} of the {t} <break/broke>
loss: {B} <buys/bought> {n} {t}
loss: customers <buy/bought> {n} of the {t}
half: <sells/sold/selling> half of the {t}
half: half of the {t} <are/were> sold
double: <doubles/doubled/doubling> the number of {t} in it
packs_in: <gets/got/getting> {n} {boxes} with {m} {t} each
packs_in: a truck <brings/brought> {n} {boxes}, each with {m} {t}
packs_out: <sells/sold/selling> {m} {t} a day for {n} days
packs_out: {n} customers <buy/bought> {m} {t} each
share: <puts/put/putting> all the {t} on {n} shelves, the same number on each => How many {t} \
<are/were> on one shelf => how many {t} <are/were> on each shelf
share: {B} <packs/packed> the {t} into {n} {boxes}, equally many in each => How many {t} \
<are/were> in each {box} => how many {t} one {box} <holds/held>
ask: How many {t} <does/did> {A} have (<now/then>|then|in the end)
ask: How many {t} <are/were> in {A} (<now/then>|then|at the end)
ask: How many {t} <remain/remained> in {A}
find: how many {t} <are/were> in {A} in the end
find: how many {t} {A} <has/had> then
aside: {A} <is/was> open for {x} hours a week
aside: {A} <sells/sold> {x} {u}
aside: {B} <is/was> {x} years old
aside: {x} people <wait/waited> outside
"""

_TANK = """
who: the tank, the barrel, the pool, the pond, the rain barrel
things: liters
numbers: 10..95
start: <holds/held/holding> {n} liters of water
start: <has/had/having> {n} liters of water in it
start: there <are/were> {n} liters of water in {A}
start: {n} liters of water <are/were> in {A}
packs: <is/was/being> filled with {n} buckets of {m} liters each
packs: {B} <fills/filled> {A} with {n} buckets of {m} liters each
packs: a pipe <fills/filled> {A} for {n} minutes with {m} liters a minute
gain: <gets/got/getting> {n} more liters from (the rain|a pipe|a hose)
gain: <takes/took/taking> in {n} liters during a storm
gain: the rain <adds/added> {n} liters
gain: {B} <pours/poured> in {n} (more|other) liters
gain: {n} liters of water <run/ran> in
loss: <loses/lost/losing> {n} liters (through a leak|in the heat|)
loss: {B} <takes/took> out {n} liters (for the garden|for the flowers|)
loss: {n} liters <are/were> used (for the plants|to wash a car)
loss: the horses <drink/drank> {n} liters
loss: {n} liters <leak/leaked> out
half: <loses/lost/losing> half of the water
half: half of the water <is/was> used
double: <gets/got/getting> as much water again as it <has/had>
packs_in: {B} <pours/poured> in {n} buckets of {m} liters each
packs_in: <gets/got/getting> {m} liters an hour for {n} hours
packs_out: <loses/lost/losing> {m} liters an hour for {n} hours
packs_out: {B} <fills/filled> {n} cans of {m} liters each from it
share: {B} <pours/poured> all the water into {n} cans, the same amount into each => How many \
liters <are/were> in one can => how many liters <are/were> in one can
ask: How many liters <are/were> in {A} (<now/then>|then|in the end)
ask: How much water <is/was> in {A} in the end, in liters,
ask: How many liters of water <does/did> {A} hold then
find: how many liters <are/were> in {A} (<now/then>|in the end)
find: how much water {A} <holds/held> then, in liters
aside: {A} <is/was> {x} years old
aside: {B} <works/worked> there for {x} minutes
aside: it <is/was> {x} degrees outside
work_start: There are {n} liters first.
work_packs: That is {n} times {m} liters.
work_gain: {n} liters come in.
work_loss: {n} liters go out.
work_double: The water doubles.
work_half: Half of the water goes out.
work_packs_in: {n} times {m} liters come in.
work_packs_out: {n} times {m} liters go out.
work_share: The water is shared by {n}.
"""

_VISITORS = """
who: the park, the museum, the zoo, the library, the gym, the camp, the school, the theater, the \
beach cafe
quick: yes
things: children, people, visitors, students, guests
numbers: 10..90
start: <has/had/having> {n} {t} in it
start: there <are/were> {n} {t} in {A}
start: {n} {t} <are/were> in {A}
packs: {n} groups of {m} {t} <are/were> in {A}
packs: {n} buses with {m} {t} each <arrive/arrived> at {A}, which <is/was> empty before
gain: <lets/let/letting> in {n} more {t}
gain: {n} more {t} <come/came> in
gain: {n} other {t} <arrive/arrived> (by bus|on foot|)
gain: {B} <brings/brought> {n} {t} along
gain: a group of {n} {t} <joins/joined> them
gain: another {n} {t} <walk/walked> in
loss: {n} {t} <go/went> (home|away)
loss: {n} of the {t} <leave/left> (because of the rain|for lunch|)
loss: {n} {t} <have/had> to go
loss: {B} <takes/took> {n} of the {t} home
loss: a group of {n} {t} <leaves/left>
half: half of the {t} <go/went> home
half: half of the {t} <leave/left>
double: the number of {t} in {A} <doubles/doubled>
triple: the number of {t} in {A} <triples/tripled>
packs_in: {n} groups of {m} {t} <come/came> in
packs_in: {n} vans <bring/brought> {m} more {t} each
packs_out: {n} cars <take/took> {m} {t} each home
packs_out: {n} groups of {m} {t} <leave/left>
share: the {t} in {A} <form/formed> {n} equal teams => How many {t} <are/were> in each team => \
how many {t} <are/were> in one team
share: {B} <puts/put> the {t} into {n} equal groups => How many {t} <are/were> in one group => \
how many {t} each group <has/had>
ask: How many {t} <are/were> in {A} (<now/then>|then|in the end)
ask: How many {t} <does/did> {A} have in it at the end
find: how many {t} <are/were> in {A} (<now/then>|in the end|then)
find: the number of {t} in {A} at the end
aside: {A} <is/was> {x} years old
aside: {A} <has/had> {x} doors and windows
aside: it <is/was> {x} degrees outside
aside: lunch <costs/cost> {x} dollars there
"""

_FARM = """
who: the yard, the meadow, the garden, the park
things: ducks, hens, geese, rabbits, goats, cats, pigeons, frogs, butterflies, crows, squirrels
numbers: 8..80
start: <has/had/having> {n} {t} in it
start: there <are/were> {n} {t} in {A}
start: {n} {t} <sit/sat> in {A}
start: {B} <sees/saw> {n} {t} in {A}
packs: there <are/were> {n} groups of {m} {t} in {A}
packs: {n} trees <stand/stood> in {A}, and {m} {t} <sit/sat> under each of them
gain: {n} more {t} <come/came> (from the forest|from the lake|)
gain: {n} other {t} <join/joined> them
gain: {B} <brings/brought> {n} more {t}
gain: another {n} {t} <appear/appeared>
gain: <gets/got/getting> {n} new {t}
loss: {n} {t} <go/went> away
loss: {n} of the {t} <leave/left> (because of a dog|at noon|)
loss: {n} {t} <move/moved> to another field
loss: a dog <scares/scared> away {n} of the {t}
loss: <loses/lost/losing> {n} of the {t} to a fox
half: half of the {t} <leave/left>
double: the number of {t} <doubles/doubled>
triple: the number of {t} <triples/tripled>
packs_in: {n} groups of {m} {t} <arrive/arrived>
packs_in: {n} farmers <bring/brought> {m} {t} each
packs_out: {n} farmers <take/took> {m} {t} each
packs_out: {m} {t} <leave/left> on each of {n} days
share: {B} <puts/put> the {t} into {n} pens, the same number into each => How many {t} \
<are/were> in each pen => how many {t} <are/were> in one pen
ask: How many {t} <are/were> in {A} (<now/then>|then|in the end)
ask: How many {t} can be seen in {A} after that
ask: How many {t} <does/did> {A} have in the end
find: how many {t} <are/were> in {A} (<now/then>|in the end|then)
find: how many {t} {A} <has/had> at the end
aside: {A} <is/was> {x} miles from the sea
aside: {B} <sees/saw> {x} {u} on a hill
aside: {B} <is/was> {x} years old
aside: there <are/were> {x} benches there
"""

_BALLOON = """
who: the balloon, the kite, the drone, the toy plane
quick: yes
things: meters
numbers: 10..95
start: <is/was/being> {n} meters above the ground
start: <flies/flew/flying> {n} meters above the ground
start: <hangs/hung/hanging> in the air at {n} meters
packs: <rises/rose/rising> from the ground for {n} minutes, {m} meters in each
packs: <climbs/climbed/climbing> {m} meters a minute from the ground for {n} minutes
gain: <rises/rose/rising> (by|another) {n} meters
gain: <climbs/climbed/climbing> {n} meters (more|higher)
gain: <goes/went/going> up {n} meters
gain: the wind <lifts/lifted> it by {n} meters
gain: {B} <lets/let> it rise {n} meters higher
loss: <sinks/sank/sinking> (by|) {n} meters
loss: <drops/dropped/dropping> (by|) {n} meters
loss: <comes/came/coming> down {n} meters
loss: {B} <pulls/pulled> it down by {n} meters
loss: cold air <pushes/pushed> it down {n} meters
double: <rises/rose/rising> until it <is/was> twice as high
half: <sinks/sank/sinking> to half of its height
packs_in: <rises/rose/rising> {m} meters a minute for {n} minutes
packs_in: <climbs/climbed/climbing> {m} meters in each of {n} seconds
packs_out: <sinks/sank/sinking> {m} meters a minute for {n} minutes
packs_out: <drops/dropped/dropping> {m} meters in each of {n} seconds
share: <comes/came/coming> down to the ground in {n} equal parts => How many meters <does/did> \
{A} sink in each part => how many meters {A} <sinks/sank> in each part
ask: How many meters above the ground <is/was> {A} (<now/then>|then|in the end)
ask: How high <is/was> {A} in the end, in meters,
find: how high {A} <is/was> (<now/then>|in the end), in meters
find: how many meters {A} <is/was> above the ground then
aside: {B} <watches/watched> it for {x} minutes
aside: {x} people <look/looked> up at it
aside: {A} <weighs/weighed> {x} pounds
work_start: It is {n} meters high first.
work_packs: It rises {n} times {m} meters.
work_gain: It rises {n} meters.
work_loss: It sinks {n} meters.
work_double: The height doubles.
work_half: Half of the height is left.
work_packs_in: It rises {n} times {m} meters.
work_packs_out: It sinks {n} times {m} meters.
work_share: The height is shared by {n}.
"""

FAMILIES = {
    "bus": _BUS + _WORK,
    "shop": _SHOP + _WORK,
    "tank": _TANK,
    "visitors": _VISITORS + _WORK,
    "animals": _FARM + _WORK,
    "balloon": _BALLOON,
}
