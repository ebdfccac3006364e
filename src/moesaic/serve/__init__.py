"""The HTTP server before an engine in a process of its own: `moesaic serve`."""
