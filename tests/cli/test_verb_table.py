"""Does the table of verbs tell what runs from what does not?"""

from __future__ import annotations

from pathlib import Path

from verb_table import makers, outcomes

from chat_models import talking


def test_what_is_no_model_does_not_run(tmp_path: Path) -> None:
    found = outcomes(tmp_path / "absent")
    assert list(found) == ["run", "chat", "bench", "plan", "eval"]
    assert all(said.startswith("NO: ") for said in found.values())


def test_a_model_runs_through_every_verb() -> None:
    assert set(outcomes(talking().folder).values()) == {"yes"}


def test_families_and_formats_are_in_it() -> None:
    assert {"mixtral", "gpt-oss", "format gptq", "format mxfp4", "GGUF Q8_0"} <= makers().keys()


def test_an_accelerator_is_asked_for_by_every_verb() -> None:
    said = outcomes(talking().folder, "nonsense")
    assert list(said) == ["run", "chat", "bench", "plan", "eval"]
    assert all(each.startswith("NO: ") for each in said.values())
