// Whether the core's other hardware thread (the SMT sibling) is active. Two hardware threads share the
// physical tile registers. Alone, a thread has enough of them for register renaming: it can load a tile
// while the tile's previous value is still being multiplied. Next to an active sibling it has hardly more
// than the eight architectural ones, and with all eight in use every load and product waits for the one
// before. Tiles that were not written since they were last configured take no physical register: a product
// that uses four tiles runs at full speed again.
#pragma once

namespace moesaic {

// Called before a thread multiplies `products` tiles; measures anew after some thousand products. The
// tile configuration is lost.
bool smt_sibling_active(int products);

enum class SmtSibling : int { measured, idle, active };
void override_smt_sibling(SmtSibling state);  // for tests, which compare both

}  // namespace moesaic
