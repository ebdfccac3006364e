"""Do the two rows of the guide make a family run?"""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from test_documentation import ROOT, blocks

import stock
from moesaic import LLM, SamplingParams
from moesaic.core.errors import BadConfig
from moesaic.model_info import model_families
from moesaic.models.configs import families
from moesaic.models.configs.network_reader import read_architecture
from stock_text import STEPS, greedy, prompt

PAGE = ROOT / "docs" / "add-a-model-family.md"
NAME = "my_moe"
# Fields of Qwen3-MoE, whose arithmetic it has, that say which layers are routed.
NOT_ITS_OWN = ("decoder_sparse_step", "mlp_only_layers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(stock.saved("qwen3-moe").folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in NOT_ITS_OWN:
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": NAME}))
    return tmp_path


def test_its_rows_make_the_family_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadConfig, match=NAME):
        read_architecture(folder)
    tables: tuple[tuple[Any, Any], ...] = (
        (model_families.FAMILIES, model_families),
        (families.RUNNABLE, families),
    )
    for row, (table, module) in zip(blocks(PAGE, "python"), tables, strict=True):
        monkeypatch.setitem(table, NAME, table["mixtral"])  # so that it is taken out again
        exec(row, dict(vars(module)))
    _, expected = greedy(stock.saved("qwen3-moe").model, prompt(12))
    params = SamplingParams(max_tokens=STEPS, temperature=0.0, ignore_eos=True)
    with LLM(folder, dtype="fp32", threads=1, accelerator="none") as llm:
        (answer,) = llm.generate([prompt(12)], params)
    assert list(answer.tokens) == expected[:STEPS]


@pytest.mark.parametrize("row", [families.RunnableFamily, model_families.Family])
def test_it_names_every_field_of_a_row(row: type) -> None:
    """In the text, or as a keyword of the example."""
    page = PAGE.read_text()
    names = [field.name for field in fields(row)]
    assert [name for name in names if f"`{name}`" not in page and f" {name}=" not in page] == []
