"""Expert arithmetic: what a device does with one expert's weights. Needs torch; knows no model."""
