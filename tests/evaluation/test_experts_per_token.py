"""With fewer experts per token: does the engine compute what the stock model does with so many?"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stock
from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from stock_text import prompt

MACHINES: dict[str, dict[str, Any]] = {
    "cpu": {},
    "emulated": {"accelerator": "emulated", "cache_ratio": 0.25, "checked": True},
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("family", ["olmoe", "qwen3-moe", "deepseek-v2", "glm-4.5"])
def test_text_is_the_stock_models_with_as_many(family: str, machine: str) -> None:
    narrow = stock.make(family, num_experts_per_tok=2)
    ids = torch.tensor([prompt(20)])
    with torch.inference_mode():
        mask = torch.ones_like(ids)
        made = narrow.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=12)
    params = SamplingParams(max_tokens=12, temperature=0.0)
    texts = {}
    for count in (2, None):
        options = MACHINES[machine] | {"threads": 1, "experts_per_token": count}
        with LLM(stock.saved(family).folder, dtype="fp32", **options) as llm:
            (answer,) = llm.generate([prompt(20)], params)
            assert llm.model.spec.top_k == (
                count or stock.saved(family).model.config.num_experts_per_tok
            )
        texts[count] = list(answer.tokens)
    assert texts[2] == made[0, 20:].tolist()
    assert texts[2] != texts[None], "the comparison would say nothing"


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (6, "6 experts per token were asked for; .* was trained with 5: ask for 1 to 5"),
        (0, "experts_per_token is 0; it must be at least 1"),
    ],
)
def test_more_than_trained_or_none_is_refused(count: int, message: str) -> None:
    with pytest.raises(ImpossibleSetting, match=message):
        LLM(stock.saved("olmoe").folder, experts_per_token=count)
