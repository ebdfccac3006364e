"""Says so when other programs would disturb a measurement."""

from __future__ import annotations

import os

import click

_NOTICEABLE = 0.5  # of a core, over the last minute


def warn_if_busy() -> None:
    load = os.getloadavg()[0]
    if load > _NOTICEABLE:
        click.echo(
            f"this machine was busy in the last minute (load average {load:.1f}): other "
            "running programs disturb the times measured now",
            err=True,
        )
