"""Wordings of stories about what one person has: see stories_words.py for how they are written."""

_WORK = """
work_start: {A} starts with {n} {t}.
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

_HAVING = """
numbers: 6..90
start: <has/had/having> {n} {t}
start: <owns/owned/owning> {n} {t}
start: <starts/started/starting> with {n} {t}
start: <keeps/kept/keeping> {n} {t} in a {box}
start: <counts/counted/counting> {n} {t} in {p} {box}
start: there <are/were> {n} {t} in {A}'s {box}
start: {A}'s {box} <holds/held> {n} {t}
start: {n} {t} <belong/belonged> to {A}
packs: <has/had/having> {n} {boxes} with {m} {t} in each
packs: <buys/bought/buying> {n} {boxes} of {t}, each with {m} {t} in it
packs: {A} <owns/owned> {n} {boxes}, and every {box} <holds/held> {m} {t}
packs: there <are/were> {n} {boxes} with {m} {t} each on {A}'s table
packs: each of {A}'s {n} {boxes} <holds/held> {m} {t}
gain: <gets/got/getting> {n} more {t} from {B}
gain: <gets/got/getting> {n} (new|more) {t} for {p} birthday
gain: <buys/bought/buying> {n} (more|new) {t} at the {shop}
gain: <picks/picked/picking> up {n} more {t} at the {place}
gain: <receives/received/receiving> {n} {t} (from {p} {relative}|in the mail|as a present)
gain: <takes/took/taking> {n} (more|extra) {t} home from the {place}
gain: <accepts/accepted/accepting> {n} {t} that {B} <does/did> not need
gain: {B} <gives/gave> {o} {n} (more|other) {t}
gain: {p} {relative} <brings/brought> {o} {n} more {t}
gain: {B} <adds/added> {n} {t} to what {A} <has/had>
gain: another {n} {t} <are/were> given to {o} by {B}
gain: {n} more {t} <arrive/arrived> for {o}
loss: <gives/gave/giving> {n} {t} to {B}
loss: <gives/gave/giving> away {n} {t}
loss: <hands/handed/handing> {n} of the {t} to {p} {relative}
loss: <sells/sold/selling> {n} {t} at the {shop}
loss: <leaves/left/leaving> {n} {t} at the {place}
loss: <lends/lent/lending> {n} {t} to {B}
loss: <sends/sent/sending> {n} {t} to (a cousin|{B}|{p} {relative}|the school fair)
loss: <drops/dropped/dropping> {n} {t} into the lake
loss: <puts/put/putting> {n} of the {t} aside for {B}
loss: {n} of {p} {t} <get/got> lost (at the {place}|on the way home)
loss: {B} <takes/took> {n} of the {t} away
loss: {n} of the {t} <are/were> given to {B}
double: <gets/got/getting> as many {t} again as {s} already <has/had>
double: <doubles/doubled/doubling> the number of {p} {t}
double: {p} {relative} <doubles/doubled> the number of {t} that {A} <has/had>
triple: <triples/tripled/tripling> the number of {p} {t}
half: <gives/gave/giving> half of {p} {t} to {B}
half: <loses/lost/losing> half of {p} {t}
half: {B} <takes/took> half of the {t}
packs_in: <buys/bought/buying> {n} {boxes} with {m} {t} (each|in each)
packs_in: <gets/got/getting> {n} {boxes} of {m} {t} each from {p} {relative}
packs_in: {n} {helpers} <give/gave> {o} {m} {t} each
packs_in: {B} <brings/brought> {o} {n} {boxes}, each with {m} {t}
packs_out: <gives/gave/giving> {m} {t} to each of {n} {helpers}
packs_out: <fills/filled/filling> {n} {boxes} with {m} {t} each and <sends/sent/sending> them away
packs_out: {n} {helpers} <take/took> {m} {t} each
share: <shares/shared/sharing> all the {t} equally among {n} {helpers} => How many {t} \
<does/did> each one get => how many {t} each one <gets/got>
share: <divides/divided/dividing> the {t} into {n} equal piles => How many {t} <are/were> in \
each pile => how many {t} <are/were> in one pile
share: <puts/put/putting> all the {t} into {n} {boxes}, the same number into each => How many \
{t} <are/were> in one {box} => how many {t} each {box} <holds/held>
share: {n} {helpers} <share/shared> the {t} equally => How many {t} <does/did> each of them get \
=> how many {t} each of them <gets/got>
ask: How many {t} <does/did> {who} have (<now/then>|in the end|at the end|after all this)
ask: How many {t} <is/was> that for {A} in the end
ask: What <is/was> the number of {t} that {who} <has/had> at the end
find: how many {t} {who} <has/had> (<now/then>|in the end|after all this)
find: the number of {t} that {who} <has/had> in the end
aside: {A} <is/was> {x} years old
aside: {B} <has/had> {x} {t}
aside: {A} <has/had> {x} {u}
aside: {B} <is/was> {x} years old
aside: the way to school <takes/took> {x} minutes
aside: {A} <lives/lived> at number {x} in {p} street
"""

_COLLECTION = """
things: stickers, marbles, shells, stamps, beads, buttons, cards, pencils, rocks, pens, crayons, \
badges, postcards, bottle caps, keys, feathers, magnets, erasers, bracelets, toy cars, photos, \
comics, acorns, ribbons
gain: <finds/found/finding> {n} (more|other) {t} (near the {place}|under a bed|in a drawer|on a \
walk)
gain: <wins/won/winning> {n} {t} (in a game|at a fair|from {B})
gain: <trades/traded/trading> a book for {n} {t}
gain: <discovers/discovered/discovering> {n} {t} in an old {box}
loss: <loses/lost/losing> {n} {t} (on the bus|at the {place}|in a game)
loss: <throws/threw/throwing> away {n} (old|broken) {t}
loss: <trades/traded/trading> {n} {t} for a kite
loss: a dog <runs/ran> off with {n} {t}
"""

_FOOD = """
things: cookies, muffins, rolls, pancakes, cupcakes, donuts, buns, waffles, plums, cherries, \
pears, apples, nuts, eggs, carrots, tomatoes, sandwiches, peaches, lemons, potatoes
start: <puts/put/putting> {n} {t} on a plate
start: <takes/took/taking> {n} {t} to a picnic
gain: <puts/put/putting> {n} more {t} on the table
gain: <carries/carried/carrying> {n} more {t} in from the kitchen
gain: a neighbor <brings/brought> {n} (fresh|more) {t}
loss: <eats/ate/eating> {n} {t} (for lunch|for breakfast|with {B}|at the {place})
loss: <serves/served/serving> {n} {t} to {p} guests
loss: <feeds/fed/feeding> {n} {t} to the ducks
loss: {p} family <eats/ate> {n} of the {t}
loss: {n} {t} <go/went> bad
loss: a bird <steals/stole> {n} of the {t}
half: {p} guests <eat/ate> half of the {t}
"""

_MONEY = """
things: dollars
numbers: 8..95
start: <has/had/having> {n} dollars (in {p} purse|in {p} pocket|in the bank|at home)
start: <starts/started/starting> the week with {n} dollars
start: there <are/were> {n} dollars in {A}'s (purse|piggy bank|wallet)
packs: <works/worked/working> {n} hours for {m} dollars an hour
packs: <saves/saved/saving> {m} dollars a week for {n} weeks
packs: <sells/sold/selling> {n} (lamps|chairs|paintings|old books) for {m} dollars each
gain: <earns/earned/earning> {n} dollars (by walking dogs|by washing cars|in the garden|at the \
{shop})
gain: <gets/got/getting> {n} dollars from {p} {relative}
gain: <finds/found/finding> {n} dollars in an old coat
gain: <sells/sold/selling> (a clock|a game|an old bike|a lamp) for {n} dollars
gain: <wins/won/winning> a prize of {n} dollars
gain: {B} <pays/paid> back {n} dollars to {o}
gain: {p} {relative} <gives/gave> {o} {n} dollars
gain: {n} dollars <are/were> paid to {o} for {p} help
loss: <spends/spent/spending> {n} dollars (on food|on a shirt|at the {shop}|for lunch|on a ticket)
loss: <pays/paid/paying> {n} dollars for (a book|a meal|a hat|the bus|a new cup)
loss: <lends/lent/lending> {n} dollars to {B}
loss: <gives/gave/giving> {n} dollars to (charity|{B}|{p} {relative})
loss: <buys/bought/buying> (a game|a scarf|a bag|some fruit|a present) for {n} dollars
loss: a ticket <costs/cost> {o} {n} dollars
loss: {n} dollars <go/went> to the shoe shop for repairs
double: {p} {relative} <doubles/doubled> the money
double: <doubles/doubled/doubling> {p} money in a sale of old books
half: <spends/spent/spending> half of {p} money (on a trip|at the {shop}|on books)
half: <gives/gave/giving> half of the money to {B}
packs_in: <works/worked/working> {n} hours for {m} dollars an hour
packs_in: <earns/earned/earning> {m} dollars a day for {n} days
packs_in: {n} neighbors <pay/paid> {o} {m} dollars each
packs_out: <buys/bought/buying> {n} (shirts|plants|tickets|mugs|books) for {m} dollars each
packs_out: <pays/paid/paying> {m} dollars a day for {n} days at a camp
packs_out: <gives/gave/giving> {m} dollars to each of {n} {helpers}
share: <shares/shared/sharing> all the money equally among {n} {helpers} => How many dollars \
<does/did> each one get => how many dollars each one <gets/got>
share: <spends/spent/spending> the same part of the money on each of {n} days until nothing \
<is/was> left => How many dollars <does/did> {who} spend a day => how many dollars {A} \
<spends/spent> a day
ask: How many dollars <does/did> {who} have (<now/then>|left|in the end)
ask: How much money <does/did> {who} have then, in dollars,
ask: What <is/was> the number of dollars that {who} <has/had> at the end
find: how many dollars {who} <has/had> (left|in the end|<now/then>)
find: how much money {who} <has/had> then, in dollars
aside: {A} <is/was> {x} years old
aside: {B} <has/had> {x} dollars
aside: the shop <is/was> open for {x} days
aside: the line at the counter <is/was> {x} people long
work_start: {A} starts with {n} dollars.
work_packs: That is {n} times {m} dollars.
work_gain: {n} dollars come in.
work_loss: {n} dollars are spent.
work_double: The money doubles.
work_half: Half of the money goes away.
work_packs_in: {n} times {m} dollars come in.
work_packs_out: {n} times {m} dollars are spent.
work_share: It is shared by {n}.
"""

_HOMEWORK = """
things: pages, stories, chapters, letters, poems, articles
numbers: 15..95
start: <has/had/having> {n} {t} to read
start: <has/had/having> {n} {t} left to read
start: <must/had to/having to> read {n} {t} for school
packs: <has/had/having> {n} books with {m} {t} each to read
packs: there <are/were> {n} folders with {m} {t} in each for {A} to read
gain: <gets/got/getting> {n} more {t} (from {p} teacher|as homework|for the weekend)
gain: <adds/added/adding> {n} {t} to {p} list
gain: {p} teacher <adds/added> {n} {t}
gain: {B} <asks/asked> {o} to read {n} more {t}
gain: {n} extra {t} <are/were> put on {p} desk
loss: <reads/read/reading> {n} {t} (before lunch|in bed|on the train|at the library|with {B})
loss: <finishes/finished/finishing> {n} {t}
loss: <gets/got/getting> through {n} {t} (in one hour|after school)
loss: <skips/skipped/skipping> {n} {t} that {s} already <knows/knew>
loss: {p} teacher <takes/took> {n} {t} off the list
loss: {n} {t} <are/were> done by noon
half: <reads/read/reading> half of the {t} that <are/were> left
half: {p} teacher <takes/took> half of the {t} off the list
packs_in: <gets/got/getting> {n} (booklets|folders|sheets) with {m} {t} each
packs_in: {n} teachers <give/gave> {o} {m} more {t} each
packs_out: <reads/read/reading> {m} {t} a day for {n} days
packs_out: <reads/read/reading> {m} {t} in each of {n} hours
share: <plans/planned/planning> to read the same number of {t} on each of {n} days until all \
<are/were> done => How many {t} <does/did> {who} have to read a day => how many {t} {A} \
<has/had> to read a day
share: <splits/split/splitting> the {t} that <are/were> left equally over {n} days => How many \
{t} <are/were> there for one day => how many {t} there <are/were> for one day
ask: How many {t} <does/did> {who} (still have|have left|still need) to read
ask: How many {t} <are/were> still to be read by {A}
ask: How many {t} <are/were> left for {A} in the end
find: how many {t} {who} still <has/had> to read
find: how many {t} <are/were> left for {A}
aside: the library <has/had> {x} chairs
aside: {B} <has/had> {x} {t} left
aside: {A} <reads/read> for {x} minutes every day
work_start: {A} has {n} {t} to read.
work_packs: There are {n} times {m} {t}.
work_gain: {n} more come.
work_loss: {n} are done.
work_half: Half of them are done.
work_packs_in: {n} times {m} more come.
work_packs_out: {n} times {m} are done.
work_share: They are shared by {n}.
"""

_ROAD = """
things: miles
numbers: 8..90
start: <is/was/being> {n} miles (away|) from home
start: <stands/stood/standing> on a road {n} miles from home
start: <stops/stopped/stopping> {n} miles from home
packs: <rides/rode/riding> away from home for {n} hours at {m} miles an hour
packs: <drives/drove/driving> {m} miles a day away from home for {n} days
gain: <drives/drove/driving> {n} miles farther away from home
gain: <goes/went/going> on for {n} miles, away from home
gain: <rides/rode/riding> another {n} miles in the direction away from home
gain: <gets/got/getting> {n} miles farther from home by train
gain: a bus <takes/took> {o} {n} miles farther away from home
loss: <drives/drove/driving> {n} miles back toward home
loss: <turns/turned/turning> around and <rides/rode/riding> {n} miles toward home
loss: <comes/came/coming> {n} miles closer to home
loss: <walks/walked/walking> back {n} miles on the road home
loss: a bus <brings/brought> {o} {n} miles back toward home
double: <goes/went/going> on until {s} <is/was> twice as far from home
half: <goes/went/going> back half of the way home
packs_in: <drives/drove/driving> {n} hours away from home at {m} miles an hour
packs_in: <goes/went/going> {m} miles farther from home on each of {n} days
packs_out: <rides/rode/riding> back toward home for {n} hours at {m} miles an hour
packs_out: <comes/came/coming> {m} miles closer to home on each of {n} days
share: <goes/went/going> back home in {n} equal parts => How many miles long <is/was> each part \
=> how many miles long each part <is/was>
share: <rides/rode/riding> home in {n} hours, with the same number of miles in every hour => How \
many miles <does/did> {who} ride in one hour => how many miles {A} <rides/rode> in one hour
ask: How many miles from home <is/was> {who} (<now/then>|then|in the end)
ask: How far from home <is/was> {who} in the end, in miles,
ask: How many miles <is/was> it back home for {A}
find: how many miles from home {who} <is/was> (<now/then>|in the end)
find: how far from home {who} <is/was> then, in miles
aside: {A} <is/was> {x} years old
aside: {A}'s bag <weighs/weighed> {x} pounds
aside: {B} <waits/waited> at home for {x} minutes
aside: it <is/was> {x} degrees outside
work_start: {A} is {n} miles from home.
work_packs: The way is {n} times {m} miles.
work_gain: {n} more miles.
work_loss: {n} miles back.
work_double: The way doubles.
work_half: Half of the way back.
work_packs_in: {n} times {m} more miles.
work_packs_out: {n} times {m} miles back.
work_share: The way is shared by {n}.
"""

_POINTS = """
quick: yes
things: points
numbers: 8..95
start: <has/had/having> {n} points in a game
start: <begins/began/beginning> a round with {n} points
start: <leads/led/leading> a game with {n} points
packs: <hits/hit/hitting> a target {n} times for {m} points each
packs: <wins/won/winning> {n} rounds with {m} points each
gain: <wins/won/winning> {n} points (in the next round|for a good card|with one throw|against {B})
gain: <scores/scored/scoring> {n} more points
gain: <earns/earned/earning> a bonus of {n} points
gain: {B} <hands/handed> {n} points over to {o}
gain: a lucky throw <brings/brought> {o} {n} points
gain: {n} points <are/were> added to {p} score
loss: <loses/lost/losing> {n} points (in the next round|for a mistake|against {B}|to {B})
loss: <pays/paid/paying> {n} points for a hint
loss: <gives/gave/giving> up {n} points for a new card
loss: a mistake <costs/cost> {o} {n} points
loss: {n} points <are/were> taken from {o}
double: <draws/drew/drawing> a card that <doubles/doubled> {p} points
double: <doubles/doubled/doubling> {p} points
triple: a golden card <triples/tripled> {p} points
half: <loses/lost/losing> half of {p} points
half: a bad card <takes/took> half of {p} points
packs_in: <wins/won/winning> {n} rounds with {m} points each
packs_in: <hits/hit/hitting> the target {n} times for {m} points each time
packs_out: <makes/made/making> {n} mistakes and <loses/lost/losing> {m} points for each
packs_out: <buys/bought/buying> {n} hints for {m} points each
ask: How many points <does/did> {who} have (<now/then>|in the end|at the end of the game)
ask: What <is/was> {A}'s score in the end
ask: With how many points <does/did> {who} end the game
find: how many points {who} <has/had> in the end
find: {A}'s score at the end
aside: {B} <has/had> {x} points
aside: the game <lasts/lasted> {x} minutes
aside: {A} <is/was> {x} years old
aside: {x} people <watch/watched> the game
work_start: {A} starts with {n} points.
work_packs: That is {n} times {m} points.
work_gain: {n} points are won.
work_loss: {n} points are lost.
work_double: The points double.
work_triple: There are 3 times as many.
work_half: Half of the points are lost.
work_packs_in: {n} times {m} points are won.
work_packs_out: {n} times {m} points are lost.
"""

FAMILIES = {
    "collection": _HAVING + _COLLECTION + _WORK,
    "food": _HAVING + _FOOD + _WORK,
    "money": _MONEY,
    "reading": _HOMEWORK,
    "road": _ROAD,
    "points": _POINTS,
}
