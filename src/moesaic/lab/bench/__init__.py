"""Running a model for its speed: cases, routing, floors, rows. Needs torch."""
