"""What fewer bits per expert cost, in the model's own words. Needs torch."""
