"""What several verbs share: options, output, pictures."""
