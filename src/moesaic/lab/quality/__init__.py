"""The quality lost by storing experts in fewer bits. Needs torch."""
