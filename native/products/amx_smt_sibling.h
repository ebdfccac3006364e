// Does another thread use this core? Two hardware threads of a core share its tile registers. Alone, a
// thread has enough of them to load a tile while its last value is still being multiplied; beside
// another one it has hardly more than the eight that instructions can name, and with all eight in use
// every load and product waits for the one before. Tiles that were not written since they were last
// configured take none: a product that uses four of them runs at full speed again.
#pragma once

namespace moesaic {

// Asked before a thread multiplies so many tiles; measured every now and then. Leaves tiles that have
// to be configured anew.
bool crowded(int products);

enum class Crowd : int { measured, none, some };
void assume(Crowd crowd);  // so that tests see both

}  // namespace moesaic
