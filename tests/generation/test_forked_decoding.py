"""Many thresholds in one run: every rule's text must be the engine's own under that gate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_llms import greedy, llm, prompts

import stock
from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.evaluation.items import Question, Verdict
from moesaic.lab.gating.forked import ForkedDecoding
from moesaic.lab.gating.rules import Rule, full_rule
from moesaic.lab.gating.tally import Outcome, Tally, tallies

NAME, TOP_K, TOKENS = "olmoe", 5, 10
RULES = (
    Rule(2, 0.0), Rule(2, 0.08), Rule(2, 0.1), Rule(2, 0.1, "margin"), Rule(2, 0.05, "entropy"),
    Rule(1, 0.1), Rule(4, 0.1), Rule(2, 0.1, reuse="experts"), Rule(2, 0.1, reuse="routing"),
    Rule(2, 1.0, reuse="experts"),
)  # fmt: skip


def questions() -> list[Question]:
    return [
        Question("t", str(number), prompt, TOKENS, lambda text: Verdict(True))
        for number, prompt in enumerate(prompts())
    ]


def studied(follow: bool = False, **options: Any) -> list[Outcome]:
    settings: dict[str, Any] = {
        "dtype": "fp32",
        "max_sequences": 20,
        "max_step_tokens": 20,
        "max_model_len": 64,
    }
    with llm(stock.saved(NAME).folder, **(settings | options)) as model:
        return list(ForkedDecoding(model.model, RULES, follow).run(questions()))


def test_every_rule_writes_what_the_engine_writes_with_that_gate() -> None:
    found = studied()
    assert len(found) == (len(RULES) + 1) * len(prompts())
    texts = set()
    for rule in (full_rule(TOP_K), *RULES):
        mine = sorted((o for o in found if o.rule == rule), key=lambda o: int(o.item))
        with llm(stock.saved(NAME).folder, dtype="fp32", gate=rule.gate) as model:
            said = model.generate(prompts(), greedy(TOKENS))
            stats = model.stats()
        assert [list(o.tokens) for o in mine] == [list(one.tokens) for one in said], rule
        assert sum(o.fallbacks for o in mine) == stats.rerun_tokens
        assert sum(o.decoded for o in mine) == sum(len(one.tokens) - 1 for one in said)
        texts.add(str([o.tokens for o in mine]))
    assert len(texts) > 4, "rules that all lead to one text compare nothing"


def test_following_reads_the_full_models_text_and_adds_up_divergence() -> None:
    found = studied(follow=True)
    whole = {o.item: o.tokens for o in found if o.rule.full}
    assert all(o.tokens == whole[o.item] for o in found)
    assert all(o.divergence == 0 for o in found if o.rule.full)
    assert all(o.divergence > 0 for o in found if not o.rule.gamma and not o.rule.full)
    item = "1"
    mine = next(o for o in found if o.item == item and o.rule == Rule(2, 0.0))
    assert mine.divergence == pytest.approx(by_engine(prompts()[1], whole[item]), rel=1e-3)


def test_a_forked_branch_keeps_the_divergence_of_what_it_shared() -> None:
    """Alone, a rule's sequence is never divided."""
    together = studied(follow=True)
    room: dict[str, Any] = {"max_sequences": 2, "max_step_tokens": 20, "max_model_len": 64}
    with llm(stock.saved(NAME).folder, dtype="fp32", **room) as model:
        for rule in (Rule(2, 0.08), Rule(2, 0.1)):
            alone = list(ForkedDecoding(model.model, [rule], True).run(questions()))
            for one in (each for each in alone if each.rule == rule):
                other = next(o for o in together if (o.item, o.rule) == (one.item, rule))
                assert other.divergence == pytest.approx(one.divergence, rel=1e-3, abs=1e-9)


def by_engine(prompt: list[int], answer: tuple[int, ...]) -> float:
    """KL(full || little) over the answer but its first token, read token by token."""
    from moesaic.machines.real.forward_pass import ForwardPass, Piece

    logits = []
    for gate in ("full", "little:k=2"):
        with llm(stock.saved(NAME).folder, dtype="fp32", gate=gate, max_step_tokens=32) as model:
            runner = model.model.runner
            runner.step(ForwardPass([Piece(0, prompt, prompt=True)]))
            rows = [
                runner.step(ForwardPass([Piece(0, [token], prompt=False)])).clone()
                for token in answer[:-1]
            ]
        logits.append(torch.cat(rows).double().log_softmax(-1))
    full, little = logits
    return float((full.exp() * (full - little)).sum())


def test_more_rules_than_sequences_are_refused() -> None:
    with pytest.raises(ImpossibleSetting, match="memory for 3 sequences"):
        studied(max_sequences=3)


def tally(*right: bool) -> Tally:
    made = Tally()
    for number, each in enumerate(right):
        made.add(Outcome(str(number), "", Rule(2, 0.5), each, "", (), 4, 1, 0.4))
    return made


def test_losses_are_of_the_same_questions() -> None:
    full, ours = tally(True, True, True, False), tally(True, False, True, True)
    assert ours.accuracy == full.accuracy == 0.75
    mean, low, high = ours.loss_interval(full)
    assert mean == 0
    assert low < 0 < high
    assert tally(False, True, True, False).loss_interval(full)[0] == 0.25
    assert ours.fallback_ratio == 0.25
    assert ours.divergence == pytest.approx(0.1)


def test_tallies_are_by_rule() -> None:
    found = tallies(studied())
    assert set(found) == {full_rule(TOP_K), *RULES}
    assert {each.asked for each in found.values()} == {len(prompts())}
