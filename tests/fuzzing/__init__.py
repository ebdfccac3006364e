"""Files that mean harm: valid ones mutated, and valid headers over contents that lie."""
