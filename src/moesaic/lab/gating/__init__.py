"""What gates cost in quality: many thresholds measured in one run."""
