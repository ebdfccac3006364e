"""From a config.json to a network as data, by the rules of its family."""
