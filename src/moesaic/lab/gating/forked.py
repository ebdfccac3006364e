"""Greedy answers under many rules at once.

Two thresholds lead to the same text until a token's confidence lies between them. So rules that
have decided alike share one sequence; where some accept a token and others do not, its KV cache is
copied and the two groups go on apart. Every token is computed as the engine would compute it under
that rule (a test compares them), and the prompt is read once for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.confidence import Confidence
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.gating import confidence_of
from moesaic.engine.loading import LoadedModel
from moesaic.engine.request import Request
from moesaic.engine.sampling.sampled import Sampled
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.lab.evaluation.items import Question
from moesaic.lab.gating.rules import Rule, full_rule
from moesaic.lab.gating.tally import Outcome
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.model_info.kv_blocks import blocks_of
from moesaic.policies.gate.base import Gate, GateStep
from moesaic.policies.gate.reuse import ROUTE_AGAIN


class AsAsked(Gate):
    """A gate with as many experts per token as the study sets before a pass, and as much reuse.
    `reuse`: whether any of its rules reuses anything."""

    def __init__(self, top_k: int, reuse: str = ROUTE_AGAIN) -> None:
        super().__init__(top_k)
        self.counts: NDArray[np.int64] | None = None
        self.reuse = reuse
        self.kept: tuple[str, ...] = ()

    def ask(self, counts: NDArray[np.int64] | None, kept: tuple[str, ...] = ()) -> None:
        """Set the counts of the next pass; `kept` is of every sequence."""
        self.counts, self.kept = counts, kept

    def reuses(self, step: GateStep) -> tuple[str, ...]:
        return self.kept

    def experts_per_token(self, step: GateStep) -> NDArray[np.int64] | None:
        return self.counts


class ForkedDecoding:
    """`follow`: every branch reads the full model's answer instead of writing its own, and the
    divergence of its distributions from the full model's is added up."""

    def __init__(self, model: LoadedModel, rules: Iterable[Rule], follow: bool = False) -> None:
        self._model, self._runner, self._follow = model, model.runner, follow
        full = full_rule(model.spec.top_k)
        self.rules = tuple(dict.fromkeys([full, *(full if r.full else r for r in rules)]))
        reused = (rule.reuse for rule in self.rules if rule.reuse != ROUTE_AGAIN)
        self._gate = AsAsked(model.spec.top_k, next(reused, ROUTE_AGAIN))
        capacity = model.plan.capacity
        whole = capacity.kv_blocks // blocks_of(capacity.length)
        self._slots = min(capacity.sequences, whole)
        if self._slots < len(self.rules):
            raise ImpossibleSetting(
                f"{len(self.rules)} thresholds are compared, each with a KV cache of its own in "
                f"the worst case, and there is memory for {self._slots} sequences: allow shorter "
                "ones (--max-model-len), or compare fewer"
            )
        self._free = list(range(self._slots))
        self._branches: list[Branch] = []
        self._sampler = Sampler()

    def run(
        self, questions: Sequence[Question], advance: Callable[[int], None] = lambda done: None
    ) -> Iterator[Outcome]:
        """Every rule's outcome of every question; `advance(1)` after each question."""
        self._model.batcher.forget()
        own, name = self._runner.gate, self._runner.gate_name
        self._runner.use_gate(self._gate, "as asked")
        waiting = iter(questions)
        try:
            while True:
                # No branch may ever be without a slot.
                open_subjects = {branch.subject for branch in self._branches}
                while (len(open_subjects) + 1) * len(self.rules) <= self._slots:
                    question = next(waiting, None)
                    if question is None:
                        break
                    yield from self._begin(question)
                    open_subjects = {branch.subject for branch in self._branches}
                if not self._branches:
                    return
                yield from self._step()
                left = {branch.subject for branch in self._branches}
                advance(len(open_subjects - left))
        finally:
            self._runner.use_gate(own, name)
            for slot in range(self._slots):
                self._runner.free_slot(slot)

    def _begin(self, question: Question) -> Iterator[Outcome]:
        """Read the prompt with all experts; one branch per little model, and the full one."""
        subject, slot = Subject(question), self._free.pop()
        self._gate.ask(None)
        piece = self._model.settings.step_tokens
        for start in range(0, len(question.prompt), piece):
            tokens = question.prompt[start : start + piece]
            logits = self._runner.step(ForwardPass([Piece(slot, tokens, prompt=True)]))
        groups: dict[int, list[Rule]] = {}
        for rule in self.rules:  # the full one is first
            groups.setdefault(rule.k if not rule.full else -1, []).append(rule)
        root = Branch(subject, self.rules, self._request(question), slot)
        self._accept(root, logits)
        if root.request.finish_reason is not None:
            yield from self._end(root)
            return
        for number, rules in enumerate(groups.values()):
            if number:
                self._branches.append(self._fork(root, tuple(rules)))
        root.rules = tuple(groups[-1])
        self._branches.append(root)

    def _step(self) -> Iterator[Outcome]:
        """One pass of all branches."""
        self._branches.sort(key=lambda branch: not branch.full)  # what others are compared with
        branches = list(self._branches)
        top_k = self._model.spec.top_k
        counts = np.array([branch.experts or top_k for branch in branches], dtype=np.int64)
        kept = tuple(branch.reuse for branch in branches)
        self._gate.ask(None if (counts == top_k).all() else counts, kept)
        logits = self._runner.step(ForwardPass([self._input(branch) for branch in branches]))
        confidence = confidence_of(logits)
        for row, branch in enumerate(branches):
            if branch.experts is None or self._divide(branch, row, confidence.rows([row])):
                branch.big = False
                branch.decoded += 1
                self._accept(branch, logits[row : row + 1])
                if branch.request.finish_reason is not None:
                    self._branches.remove(branch)
                    yield from self._end(branch)

    def _divide(self, branch: Branch, row: int, confidence: Confidence) -> bool:
        """Whether some of the branch's rules keep the little pass, of which it is the row `row`;
        the others go on as branches of their own, which run the token again, each in its way."""
        keep = tuple(rule for rule in branch.rules if rule.stands(confidence)[0])
        ways: dict[str, list[Rule]] = {}
        for rule in branch.rules:
            if rule not in keep:
                ways.setdefault(rule.reuse, []).append(rule)
        groups = [keep] if keep else []
        groups += [tuple(rules) for rules in ways.values()]
        branch.rules = groups[0]
        others = [self._fork(branch, rules) for rules in groups[1:]]
        self._branches += others
        for other in others if keep else [branch, *others]:
            self._runner.evict(other.slot, row)
            other.big, other.fallbacks = True, other.fallbacks + 1
        return bool(keep)

    def _fork(self, branch: Branch, rules: tuple[Rule, ...]) -> Branch:
        slot = self._free.pop()
        self._runner.copy_slot(branch.slot, slot)
        request = self._request(branch.subject.question)
        for sampled in branch.request.sampled:
            request.accept(sampled)
        return Branch(
            branch.subject, rules, request, slot, decoded=branch.decoded,
            fallbacks=branch.fallbacks, divergence=branch.divergence,
        )  # fmt: skip

    def _accept(self, branch: Branch, logits: torch.Tensor) -> None:
        """The next token of the branch, from logits [1, vocabulary]."""
        subject, position = branch.subject, len(branch.request.sampled)
        (token,) = self._sampler.sample(logits, [branch.request.sampling])
        if branch.full:
            subject.tokens.append(token.token)
        elif self._follow:
            token = Sampled(subject.tokens[position])
        if self._follow:
            self._compare(branch, position, logits)
        branch.request.accept(token)

    def _compare(self, branch: Branch, position: int, logits: torch.Tensor) -> None:
        found = logits[0].double().log_softmax(-1)
        if branch.full:
            branch.subject.expected.append(found)
            return
        expected = branch.subject.expected[position]
        branch.divergence += max(float((expected.exp() * (expected - found)).sum()), 0.0)

    def _end(self, branch: Branch) -> list[Outcome]:
        self._runner.free_slot(branch.slot)
        self._free.append(branch.slot)
        return outcomes(branch)

    def _request(self, question: Question) -> Request:
        params = SamplingParams(max_tokens=question.max_tokens, temperature=0.0, stop=question.stop)
        return self._model.input_processor.request(question.prompt, params)

    def _input(self, branch: Branch) -> Piece:
        token = branch.request.sampled[-1].token
        return Piece(branch.slot, [token], prompt=False, attempt=int(branch.big))


# A text being written under several rules that have decided alike so far.


@dataclass(slots=True, eq=False)
class Subject:
    """A question, and what the full model says to it: shared by all branches."""

    question: Question
    tokens: list[int] = field(default_factory=list)  # of the full model's answer
    # log-probabilities of every token's successor, [vocabulary] each; only where divergence is
    # measured. They are dropped with the question.
    expected: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Branch:
    subject: Subject
    rules: tuple[Rule, ...]
    request: Request
    slot: int  # of the KV cache
    big: bool = False  # the last token runs with all experts next
    decoded: int = 0  # tokens that stood
    fallbacks: int = 0
    divergence: float = 0.0  # summed over decoded tokens

    @property
    def full(self) -> bool:
        return self.rules[0].full

    @property
    def reuse(self) -> str:
        """The reuse of the next pass. The rules of a branch whose token runs again agree on it."""
        return self.rules[0].reuse if self.big else ROUTE_AGAIN

    @property
    def experts(self) -> int | None:
        """The number of experts of the next pass; None: all."""
        return None if self.big or self.full else self.rules[0].k


def outcomes(branch: Branch) -> list[Outcome]:
    """The outcomes of a finished branch."""
    question, said = branch.subject.question, branch.request.completion()
    text = said.text or ""
    right = question.judge(text).right
    return [
        Outcome(
            question.item,
            question.group,
            rule,
            right,
            text,
            said.tokens,
            branch.decoded,
            branch.fallbacks,
            branch.divergence,
        )
        for rule in branch.rules
    ]
