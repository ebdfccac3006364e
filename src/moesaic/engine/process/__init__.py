"""An engine in a process of its own: its messages, its caller's side, its own side, supervision."""
