"""What several commands share: options, output, pictures."""
