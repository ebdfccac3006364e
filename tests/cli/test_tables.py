"""Do tables print what they are given?"""

from __future__ import annotations

import pytest

from moesaic.cli.shared.output import print_table


def test_brackets_are_text_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(
        "models in [red]", ("name [b]", "path"), [("[bold]x[/bold]", "/m/[v2]"), ("y\\", 1)]
    )
    shown = capsys.readouterr().out
    for text in ("models in [red]", "name [b]", "[bold]x[/bold]", "/m/[v2]", "y\\"):
        assert text in shown
