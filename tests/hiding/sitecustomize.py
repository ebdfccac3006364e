"""Python imports this when it starts, where `hiding.hide` has put its folder into PYTHONPATH."""

from hiding import hide

hide()
