"""DIMMs that compute: how long their units take, what traffic occupies on channels, DIMMs and the
links between them, and what the units' arithmetic gives. docs/ndp.md states every rule."""
