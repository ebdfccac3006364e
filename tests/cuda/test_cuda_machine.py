"""Does a machine with a GPU say what the stock model says, wherever it computes an expert? Without
a GPU the CPU plays its part. Tolerance as in tests/parity: rounding of sums in another order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from cuda_runs import DEVICES, EVERY_LANE, NEEDS_GPU, SYSTEMS, late, note_reads

import stock
from made_up import in_turns
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import Timeline
from moesaic.core.routing import LayerRouting
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from random_plans import RandomBrain
from real_runs import PROMPT, Said, loaded, opened, running, say, settings, truth

FP32_TOLERANCE = 1e-4
HOW = settings("best-split", "two-speed", "impact", accelerator="cuda")
Names = tuple[str, str, str]


def assert_same(got: Said, wanted: Said) -> None:
    assert (got.logits - wanted.logits).abs().max() < FP32_TOLERANCE
    assert got.text == wanted.text


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "names"), in_turns(list(stock.FAMILIES), SYSTEMS))
def test_every_family_under_every_kind_of_system(name: str, names: Names, device: str) -> None:
    model, how = loaded(name), settings(*names, accelerator="cuda")
    belief, timeline = EVERY_LANE if device == "cpu" else None, Timeline()
    with running(
        model, how, model.slots(0.25), timeline=timeline, device=device, belief=belief
    ) as runner:
        assert_same(say(runner), truth(name))
        lanes = {span.lane for span in timeline.spans if span.kind != "dense"}
    if names[0] == "gpu-only":
        assert lanes >= {GPU, PCIE}
    elif device == "cpu":
        assert lanes >= {GPU, CPU}
    else:  # a real GPU's costs may speak for one side
        assert lanes & {GPU, CPU}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
@pytest.mark.parametrize("name", ["qwen2-moe", "deepseek-v2"])
def test_a_random_mix_that_changes_every_step(name: str, share: float, device: str) -> None:
    model = loaded(name)
    slots = model.slots(share)
    brain = RandomBrain(model.spec, slots, seed=slots)
    with running(model, HOW, slots, brain=brain, device=device) as runner:
        assert_same(say(runner), truth(name))


@pytest.mark.parametrize("device", DEVICES)
def test_no_slot_at_all(device: str) -> None:
    with running(loaded("olmoe"), HOW, 0, device=device) as runner:
        assert_same(say(runner), truth("olmoe"))


@pytest.mark.parametrize("name", ["qwen2-moe", "deepseek-v2", "mixtral"])
def test_everything_that_comes_late_is_waited_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no block is overwritten that may still be read."""
    streams, model = late(monkeypatch), loaded(name)
    slots = model.slots(0.3)
    brain = RandomBrain(model.spec, slots, seed=1)
    with running(model, HOW, slots, brain=brain) as runner:
        note_reads(runner.machine, streams, monkeypatch)
        assert_same(say(runner), truth(name))
    assert all(brain.done[kind] for kind in ("cpu", "gpu", "kept", "staged", "background"))
    assert streams.longest > 2


@pytest.mark.parametrize("names", SYSTEMS, ids="+".join)
def test_every_system_waits(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """More experts are streamed in a prompt's layer than there are staging slots."""
    streams, model = late(monkeypatch), loaded("qwen3-moe")
    how = settings(*names, accelerator="cuda")
    with running(model, how, model.spec.num_moe_layers) as runner:
        note_reads(runner.machine, streams, monkeypatch)
        assert_same(say(runner), truth("qwen3-moe"))


def in_pieces(runner: Runner) -> torch.Tensor:
    """Two sequences: one prompt in pieces beside the other's decoding."""
    rows = [runner.step(ForwardPass([Piece(0, PROMPT[:9])]))]
    for start in range(0, 20, 5):
        piece = Piece(1, PROMPT[start : start + 5])
        rows.append(runner.step(ForwardPass([Piece(0, [start]), piece])))
    return torch.cat(rows)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", stock.FAMILIES)
def test_a_prompt_in_pieces_beside_decoding(name: str, device: str) -> None:
    model, alone = loaded(name), settings("best-split", "lru", "none", accelerator="none")
    with running(model, alone, sequences=2) as runner:
        wanted = in_pieces(runner)
    with running(model, HOW, model.slots(0.3), sequences=2, device=device) as runner:
        got = in_pieces(runner)
    assert (got - wanted).abs().max() < FP32_TOLERANCE


def random_routing(name: str) -> list[LayerRouting]:
    spec, rng = loaded(name).spec, np.random.default_rng(3)
    found = []
    for layer in range(spec.num_moe_layers):
        ranked = np.stack([rng.permutation(spec.num_experts) for _ in range(6)])
        scores = np.sort(rng.random(ranked.shape, dtype=np.float32), axis=1)[:, ::-1].copy()
        chosen, weights = ranked[:, : spec.top_k].copy(), scores[:, : spec.top_k].copy()
        found.append(LayerRouting(layer, chosen, weights, ranked, scores))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mixtral", "deepseek-v2"])
def test_replayed_routing_takes_the_place_of_the_routers(name: str, device: str) -> None:
    model, routing = loaded(name), random_routing(name)
    alone, said = settings("best-split", "lru", "none", accelerator="none"), []
    for how, slots in ((alone, 0), (HOW, model.slots(0.3))):
        with running(model, how, slots, device=device) as runner:
            said.append(
                runner.step(ForwardPass([Piece(0, PROMPT[:6], True)], replay=routing.__getitem__))
            )
    assert (said[0] - said[1]).abs().max() < FP32_TOLERANCE
    own = truth(name).logits[:6]
    assert (said[0] - own).abs().max() > 0.01, "the routers chose the same"


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_says_where_its_time_went(device: str) -> None:
    model, timeline = loaded("olmoe"), Timeline()
    how = settings("hybrid", "mrs", "impact", accelerator="cuda")
    with running(
        model, how, model.slots(0.4), timeline=timeline, device=device, belief=EVERY_LANE
    ) as runner:
        say(runner, steps=3)
        times = runner.machine.times
        report = runner.report
    assert report is not None
    assert 0 < times.network_ns <= times.step_ns
    assert 0 < times.experts_ns <= times.step_ns
    assert [layer.layer for layer in report.layers] == list(range(model.spec.num_moe_layers))
    for lane in (GPU, CPU, PCIE):
        spans = sorted((s for s in timeline.spans if s.lane == lane), key=lambda s: s.start_ns)
        assert spans
        for before, after in pairwise(spans):
            assert before.end_ns <= after.start_ns, f"{lane} overlaps itself"


@NEEDS_GPU
@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("names", SYSTEMS, ids="+".join)
@pytest.mark.parametrize("name", stock.FAMILIES)
def test_bf16_is_as_close_as_the_cpus(name: str, names: Names, dtype: str) -> None:
    """With the GPU's own kernels where the CPU has native ones, else by PyTorch. The median error
    against the fp32 model, which flips of routers do not reach, may be 1.5 times the CPU's."""
    model = opened(stock.saved(name).folder, "bf16", dtype)
    alone, errors = settings("best-split", "lru", "none", accelerator="none"), []
    for how, slots in ((alone, 0), (settings(*names, accelerator="cuda"), model.slots(0.3))):
        with running(model, how, slots, device="cuda") as runner:
            seen = [runner.step(ForwardPass([Piece(0, PROMPT, all_logits=True)]))]
            seen += [
                runner.step(ForwardPass([Piece(0, [token])])) for token in truth(name).text[:-1]
            ]
        errors.append((torch.cat(seen).float() - truth(name).logits).abs().median())
    assert errors[1] < 1.5 * errors[0]
