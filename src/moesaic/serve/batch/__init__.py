"""A file of requests to a file of answers, without a server: `moesaic batch`."""
