"""Are the sampling fields of a model's generation_config.json honoured, shown and overridden?"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from command import only_answer, refused, run

import small_tokenizers
from chat_models import talking
from moesaic.core.errors import BadTokenizer
from moesaic.engine.llm import LLM
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.bundled_model import default_model
from moesaic.models.text.generation_config import sampling_defaults

SEEDED = ("-p", "The router", "--seed", 5, "-n", 12, "--dtype", "fp32", "--threads", 1)
ASKED: dict[str, Any] = {"temperature": 0.3, "top_k": 4, "repetition_penalty": 1.2}


def configured(folder: Path, **fields: Any) -> Path:
    shutil.copytree(talking().folder, folder, dirs_exist_ok=True)
    small_tokenizers.write(folder / "generation_config.json", fields)
    return folder


def tokens(folder: Path, *words: object) -> list[int]:
    found: list[int] = only_answer(folder, *SEEDED, *words)["tokens"]
    return found


def test_what_is_not_asked_for_comes_from_the_file(tmp_path: Path) -> None:
    folder = configured(tmp_path, **ASKED, do_sample=True, eos_token_id=2)
    options = ("--temperature", 0.3, "--top-k", 4, "--repetition-penalty", 1.2)
    expected = tokens(talking().folder, *options)
    assert tokens(folder) == expected
    assert tokens(talking().folder) != expected
    plain = ("--temperature", 1, "--top-k", 0, "--repetition-penalty", 1)
    assert tokens(folder, *plain) == tokens(talking().folder)
    said = run("run", folder, *SEEDED, "--top-k", 7).err
    assert "sampling: temperature 0.3, repetition_penalty 1.2, as the model's generation" in said
    assert "sampling:" not in run("run", talking().folder, *SEEDED).err


def test_the_library_honours_it_where_no_parameters_are_given(tmp_path: Path) -> None:
    folder = configured(tmp_path, do_sample=False, temperature=0.9)
    greedy = SamplingParams(temperature=0.0)
    with LLM(folder, dtype="fp32", threads=1, max_model_len=24) as model:
        (asked,) = model.generate("The router", greedy)
        assert model.generate("The router")[0].tokens == asked.tokens
        assert model.generate(["The router"] * 2)[1].tokens == asked.tokens
        drawn = model.generate("The router", SamplingParams(seed=5))[0].tokens
        assert drawn != asked.tokens, "what is given counts as it is"


def test_fields_are_read_as_the_stock_implementation_reads_them(tmp_path: Path) -> None:
    assert sampling_defaults(configured(tmp_path, **ASKED, top_p=None)) == ASKED
    asked = configured(tmp_path, do_sample=False, **ASKED)
    assert sampling_defaults(asked) == {"temperature": 0.0, "repetition_penalty": 1.2}
    assert sampling_defaults(talking().folder) == {}
    assert sampling_defaults(default_model()) == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"top_k": "many"}, "top_k: expected a number"), ({"top_p": 7}, "top_p is 7; it must lie")],
)
def test_a_mistake_in_the_file_names_it(
    tmp_path: Path,
    fields: dict[str, Any],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = configured(tmp_path, **fields)
    said = refused(monkeypatch, capsys, "run", folder, *SEEDED)
    assert words in said
    assert "generation_config.json" in said
    with pytest.raises(BadTokenizer, match="generation_config"):
        LLM(folder)
