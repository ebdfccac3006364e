"""Does the native conductor carry out a brain's plans: every pair once, from the right weights?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep
from weakref import ref

import numpy as np
import pytest
import torch

pytest.importorskip("moesaic.machines.captured._conductor")

import pretended_gpu
from pretended_gpu import EXPERTS, LAYERS, TOP_K, Scene

from moesaic.core.native_brain import NativeBrain
from moesaic.machines.captured.conductor import Limits
from moesaic.policies.brain import Brain
from moesaic.policies.brain.c_functions import native_brain
from moesaic.policies.policy_set import PolicySet

COPIED = Limits(copy_from=2, look_ahead_to=1)
STREAMED = Limits(copy_from=2, look_ahead_to=1, stream_ahead=2)
SYSTEMS = [
    ("hybrid", "mrs", "impact"),
    ("best-split", "lru", "next-layer"),
    ("gpu-only", "lfu", "none"),
    ("static-experts", "pinned", "none"),
]


def random_choice(rng: np.random.Generator, tokens: int) -> np.ndarray:
    draw = [
        [rng.choice(EXPERTS, TOP_K, replace=False) for _ in range(tokens)] for _ in range(LAYERS)
    ]
    return np.array(draw, dtype=np.int64)


@pytest.mark.parametrize(
    ("tokens", "limits"), [(1, Limits()), (4, Limits()), (4, COPIED), (4, STREAMED)]
)
@pytest.mark.parametrize("names", SYSTEMS)
def test_every_pair_is_computed_once_from_its_own_block(
    names: tuple[str, str, str], tokens: int, limits: Limits
) -> None:
    schedule, cache, prefetch = names
    policies = PolicySet.of(schedule=schedule, cache=cache, prefetch=prefetch)
    scene = Scene(policies, 9, tokens, copy_ns=30_000, limits=limits, staging=3)
    rng = np.random.default_rng(4)
    cpu_layers = 0
    for number in range(12):
        chosen = random_choice(rng, tokens)
        scene.step(number, chosen)
        for layer in range(LAYERS):
            at = number * LAYERS + layer
            on_gpu, ids = scene.on_gpu[at], chosen[layer].ravel()
            used_cpu = len(on_gpu) < tokens * TOP_K
            on_cpu = scene.cpu.layers[cpu_layers] if used_cpu else {}
            cpu_layers += used_cpu
            for pair, expert in enumerate(ids.tolist()):
                block = scene.store[layer * EXPERTS + expert].numpy().tobytes()
                assert (pair in on_gpu) != (expert in on_cpu)
                assert (on_gpu[pair] if pair in on_gpu else on_cpu[expert]) == block
                assert scene.shares[at][pair] == (0.5 if pair in on_gpu else 0)
    assert cpu_layers == len(scene.cpu.layers)
    assert len(scene.conductor.times) == LAYERS


def test_long_steps_compute_what_is_there_while_the_rest_arrives() -> None:
    """Every expert that is demanded has a copy to wait for, in the order of the copies; what does
    not fit the staging slots is read in place."""
    policies = PolicySet.of(schedule="gpu-only", cache="pinned", prefetch="none")
    scene = Scene(policies, 9, 4, copy_ns=300_000, limits=COPIED, staging=2)
    chosen = np.array([[[0, 4], [1, 5], [2, 6], [2, 7]]] * LAYERS, dtype=np.int64)
    for number in range(3):
        scene.step(number, chosen)
        for layer in range(LAYERS):
            at = number * LAYERS + layer
            there, waits = scene.there[at], scene.waits[at]
            assert there == 3
            assert not any(waits[:there])
            copied = [ticket for ticket in waits[there:] if ticket]
            assert len(copied) == 2
            assert copied == sorted(copied)
            assert len(scene.on_gpu[at]) == 8
    assert scene.conductor.bytes_moved == 3 * LAYERS * 4 * 256
    assert sum(t.background for t in scene.conductor.times) == 0


def test_the_next_layers_experts_are_copied_meanwhile() -> None:
    """What had most tokens the last time comes first, is computed on the GPU from a staging slot,
    and leaves no trace."""
    policies = PolicySet.of(schedule="gpu-only", cache="pinned", prefetch="none")
    scene = Scene(policies, 9, 4, copy_ns=1_000, limits=STREAMED, staging=6)
    chosen = np.array([[[0, 6], [1, 6], [2, 6], [2, 7]]] * LAYERS, dtype=np.int64)
    for number in range(2):
        scene.step(number, chosen)
    times = scene.conductor.times
    assert [t.background for t in times] == [2, 2, 0]
    assert [t.transfers for t in times] == [2, 0, 0]
    for layer in range(LAYERS):
        for pair, block in scene.on_gpu[LAYERS + layer].items():
            expert = int(chosen[layer].ravel()[pair])
            assert block == scene.store[layer * EXPERTS + expert].numpy().tobytes()
    assert sum(slot >= 0 for slot in scene.conductor.slots()) == 9


def test_copies_of_a_failed_layer_are_forgotten() -> None:
    """Nothing that was not copied is found in a slot, and a GPU that waits for it goes on."""
    policies = PolicySet.of(schedule="hybrid", cache="lru", prefetch="none")
    scene = Scene(policies, 9, 4, copy_ns=1_000, limits=COPIED)
    rng = np.random.default_rng(7)
    for number in range(20):
        scene.step(number, random_choice(rng, 4))
    scene.cpu.fails = True
    with pytest.raises(RuntimeError, match="a worker has died"):
        scene.steps([random_choice(rng, 4) for _ in range(40)])
    for index, slot in enumerate(scene.conductor.slots()):
        if slot >= 0:
            assert torch.equal(scene.slab[slot], scene.store[index])


def test_between_steps_the_gpu_can_be_let_through() -> None:
    scene, rng = Scene(PolicySet.of(), slots=4), np.random.default_rng(8)
    scene.step(0, random_choice(rng, 1))
    scene.conductor.release()
    assert int(scene.mailbox["planned"][0]) > LAYERS
    assert int(scene.mailbox["summed"][0]) > LAYERS
    assert int(scene.mailbox["table"][0]) == 0
    scene.step(1, random_choice(rng, 1))
    assert len(scene.on_gpu) == 2 * LAYERS


def test_long_steps_are_planned_before_their_hidden_states_are_there() -> None:
    """The CPU begins when they are; its sum comes back as bf16 (1), in other steps as fp32 (0)."""
    policies = PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none")
    scene = Scene(policies, slots=1, tokens=4)
    scene.hidden_late_s = 0.005
    chosen = np.full((LAYERS, 4, TOP_K), [[5, 6]], dtype=np.int64)
    scene.step(0, chosen, is_long=True)
    assert scene.submitted == [0, 1, 2]
    scene.step(1, chosen)
    assert scene.cpu.out_types == [1] * LAYERS + [0] * LAYERS


def test_the_link_does_not_wait_for_hidden_states() -> None:
    """What a plan demands is copied meanwhile, and the CPU's time begins when it can."""
    policies = PolicySet.of(schedule="hybrid", cache="lru", prefetch="none")
    scene, rng = Scene(policies, 9, 4, limits=COPIED), np.random.default_rng(3)
    scene.hidden_late_s, both = 0.02, 0
    for number in range(4):
        scene.step(number, random_choice(rng, 4), is_long=True)
        for layer, times in enumerate(scene.conductor.times):
            at = number * LAYERS + layer
            wanted = max(scene.waits[at], default=0)
            assert scene.arrived[at] >= wanted
            both += bool(times.on_cpu and wanted)
            assert not times.on_cpu or times.cpu_begun > times.planned
    assert both


def test_hidden_states_that_do_not_come_are_an_error() -> None:
    policies = PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none")
    scene = Scene(policies, slots=1, watchdog_ns=50_000_000)
    scene.conductor.begin(0, 1, is_long=True)
    scene.mailbox["ids"].numpy()[:] = [[5, 6]]
    scene.mailbox["routed"][0] = 1
    with pytest.raises(RuntimeError, match="hidden states of MoE layer 0 do not arrive"):
        scene.conductor.finish()
    assert int(scene.mailbox["summed"][0]) > LAYERS


def test_batches_of_different_sizes_have_tables_of_their_own() -> None:
    policies = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="impact")
    scene, rng = Scene(policies, slots=9, tokens=4, copy_ns=30_000), np.random.default_rng(5)
    for number, tokens in enumerate((4, 1, 2, 4, 3, 1)):
        chosen = random_choice(rng, tokens)
        scene.step(number, chosen)
        for layer in range(LAYERS):
            on_gpu = scene.on_gpu[number * LAYERS + layer]
            for pair, block in on_gpu.items():
                expert = int(chosen[layer].ravel()[pair])
                assert block == scene.store[layer * EXPERTS + expert].numpy().tobytes()


def test_slots_are_handed_over_and_back() -> None:
    """Another body rearranges them in between; what it put there is found, what it evicted not."""
    policies = PolicySet.of(schedule="gpu-only", cache="lru", prefetch="none")
    scene, rng = Scene(policies, slots=6, copy_ns=200_000), np.random.default_rng(6)
    for number in range(8):
        scene.step(number, random_choice(rng, 1))
    slots = scene.conductor.slots()
    assert len(slots) == LAYERS * EXPERTS
    for index, slot in enumerate(slots):
        if slot >= 0:
            assert torch.equal(scene.slab[slot], scene.store[index])
    moved = [-1] * len(slots)
    for slot, index in enumerate((1, 3, 8, 9, 20)):  # one slot stays free
        moved[index] = slot
        scene.slab[slot] = scene.store[index]
    scene.conductor.load_slots(moved)
    assert scene.conductor.slots() == moved
    chosen = np.array([[[1, 3]], [[0, 1]], [[4, 5]]], dtype=np.int64)
    scene.step(8, chosen)
    assert [t.hits for t in scene.conductor.times] == [2, 2, 1]
    resident = scene.conductor.decisions[-LAYERS].resident
    assert [i for i, there in enumerate(resident) if there] == [1, 3, 8, 9, 20]
    assert sum(scene.conductor.decisions[-LAYERS].held) == 5


@pytest.mark.parametrize("slots", [[6], [7, 7], [-2]])
def test_slots_that_cannot_be_are_refused(slots: list[int]) -> None:
    scene = Scene(PolicySet.of(), slots=6)
    asked = slots + [-1] * (LAYERS * EXPERTS - len(slots))
    with pytest.raises(RuntimeError, match="a slot is not free"):
        scene.conductor.load_slots(asked)
    with pytest.raises(RuntimeError, match="other experts"):
        scene.conductor.load_slots(asked[1:])


def test_background_copies_arrive_and_are_used() -> None:
    """Always the same experts, most of them not resident at first: soon all are."""
    policies = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="impact")
    scene = Scene(policies, slots=6, copy_ns=1_000)
    chosen = np.array([[[6, 7]]] * LAYERS, dtype=np.int64)
    for number in range(30):
        scene.step(number, chosen)
    times = scene.conductor.times
    assert [t.hits for t in times] == [2, 2, 2]
    assert [t.on_gpu for t in times] == [2, 2, 2]
    assert scene.conductor.bytes_moved >= 6 * 256


def test_few_background_copies_are_under_way() -> None:
    """Of slow ones the brain sees two at most, whatever it asks for. How many that is depends on
    how long the CPU took, so a busy machine may need more steps until it asks for three."""
    policies = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="impact")
    scene, rng = Scene(policies, slots=9, copy_ns=2_000_000), np.random.default_rng(9)
    asked = 0
    for number in range(400):
        scene.step(number, random_choice(rng, 1))
        asked = max(asked, *(t.background for t in scene.conductor.times))
        if number >= 20 and asked > 2:
            break
    flights = [len(each.flights) // 3 for each in scene.conductor.decisions]
    assert asked > 2
    assert max(flights) == 2


def test_memory_that_copies_write_to_outlives_its_owner() -> None:
    """Slow copies are under way when everything but the conductor is forgotten."""
    policies = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="impact")
    scene, rng = Scene(policies, slots=9, copy_ns=2_000_000), np.random.default_rng(9)
    for number in range(20):
        scene.step(number, random_choice(rng, 1))
    conductor, slab, store = scene.conductor, ref(scene.slab), ref(scene.store)
    del scene
    assert slab() is not None
    assert store() is not None
    conductor.close()
    del conductor
    assert slab() is None
    assert store() is None


def test_a_gpu_that_does_not_come_is_an_error_and_the_last_one() -> None:
    scene = Scene(PolicySet.of(), slots=4, watchdog_ns=50_000_000)
    scene.conductor.begin(0, 1)
    with pytest.raises(RuntimeError, match="has not reached MoE layer 0 after 50 ms"):
        scene.conductor.finish()
    assert int(scene.mailbox["planned"][0]) > LAYERS  # a waiting GPU goes on
    with pytest.raises(RuntimeError, match="has not reached"):
        scene.conductor.begin(1, 1)


def test_a_failing_worker_is_an_error_and_releases_the_gpu() -> None:
    scene = Scene(PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none"), slots=1)
    scene.cpu.fails = True
    with pytest.raises(RuntimeError, match="a worker has died"):
        scene.step(0, np.full((LAYERS, 1, TOP_K), [[5, 6]], dtype=np.int64))
    assert int(scene.mailbox["summed"][0]) > LAYERS


def test_the_gpu_is_not_kept_waiting_for_a_sum_of_nothing() -> None:
    """Looking ahead takes longer than the GPU's experts: with none on the CPU it need not wait."""
    scene = Scene(PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none"), slots=6)
    held = np.full((LAYERS, 1, TOP_K), [[0, 1]], dtype=np.int64)
    elsewhere = np.full((LAYERS, 1, TOP_K), [[5, 6]], dtype=np.int64)
    scene.step(0, held)
    assert all(t.on_cpu == 0 and t.summed == t.planned for t in scene.conductor.times)
    scene.step(1, elsewhere)
    assert all(t.on_cpu == TOP_K and t.summed >= t.looked_ahead for t in scene.conductor.times)


def test_a_worker_tells_the_gpu_itself() -> None:
    """The conductor's thread may be busy when the CPU's experts are done."""
    scene = Scene(PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none"), slots=6)
    scene.cpu.ends_at = 1234
    scene.step(0, np.full((LAYERS, 1, TOP_K), [[5, 6]], dtype=np.int64))
    assert [t.summed for t in scene.conductor.times] == [1234] * LAYERS
    assert scene.cpu.flags == [1, 2, 3]


def test_scores_that_are_not_numbers_are_an_error() -> None:
    """A router's kernel that finds no best expert names one beyond the last."""
    scene = Scene(PolicySet.of(), slots=4)
    chosen = np.full((LAYERS, 1, TOP_K), [[5, 6]], dtype=np.int64)
    chosen[0, 0, 1] = EXPERTS
    scene.conductor.begin(0, 1)
    scene.mailbox["ids"].numpy()[:] = chosen[0]
    scene.mailbox["routed"][0] = 1
    with pytest.raises(RuntimeError, match="MoE layer 0 chose no expert"):
        scene.conductor.finish()


def test_after_a_failure_slots_hold_only_what_was_there() -> None:
    """The plan had experts read into slots; it is not known whether that happened."""
    scene = Scene(PolicySet.of(schedule="hybrid", cache="lru", prefetch="none"), slots=3)
    before = [slot >= 0 for slot in scene.conductor.slots()]
    scene.cpu.fails = True
    with pytest.raises(RuntimeError, match="a worker has died"):
        scene.step(0, np.full((LAYERS, 1, TOP_K), [[5, 6]], dtype=np.int64))
    after = [slot >= 0 for slot in scene.conductor.slots()]
    assert all(was for was, still in zip(before, after, strict=True) if still)
    scene.conductor.load_slots(scene.conductor.slots())  # and every other slot is free


def test_a_step_that_cannot_begin_leaves_the_flags_of_another() -> None:
    """Else the GPU would wait for ever for flags that were raised already."""
    scene = Scene(PolicySet.of(), slots=4, watchdog_ns=300_000_000)
    flags = [scene.mailbox[name] for name in ("routed", "planned", "summed")]
    scene.conductor.begin(0, 1)
    scene.mailbox["ids"].numpy()[:] = [[5, 6]]
    scene.mailbox["routed"][0] = 1
    scene._await("summed", 1)
    with pytest.raises(RuntimeError, match="under way"):
        scene.conductor.begin(1, 1)
    assert [int(flag[0]) for flag in flags] == [1, 1, 1]
    for wait in (scene.conductor.finish, lambda: scene.conductor.begin(1, 1)):
        with pytest.raises(RuntimeError, match="has not reached MoE layer 1"):
            wait()
        assert all(int(flag[0]) > LAYERS for flag in flags[1:])


def test_slots_are_handed_over_when_the_step_under_way_has_ended() -> None:
    """Its caller may have been interrupted before waiting for it."""
    scene, begun = Scene(PolicySet.of(), slots=4), Event()
    route = scene._route

    def slowly(layer: int, ids: np.ndarray) -> None:
        begun.set()
        sleep(0.02)
        route(layer, ids)

    scene._route = slowly  # type: ignore[method-assign]
    chosen = np.full((LAYERS, 1, TOP_K), [[5, 6]], dtype=np.int64)
    with ThreadPoolExecutor(1) as gpu:
        step = gpu.submit(scene.step, 0, chosen)
        begun.wait()
        scene.conductor.slots()
        assert len(scene.conductor.work) == LAYERS
        step.result()


def test_a_conductor_can_be_stopped_in_the_middle_of_a_step() -> None:
    scene = Scene(PolicySet.of(), slots=4)
    scene.conductor.begin(0, 1)
    mailbox = scene.mailbox
    del scene.conductor
    assert int(mailbox["summed"][0]) > LAYERS


def test_records_of_another_layout_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a conductor meets them that was built before the records changed."""

    def of_another_layout(brain: Brain, tokens: int, ranks: int) -> NativeBrain:
        brain.state.layout += 1
        return native_brain(brain, tokens, ranks)

    monkeypatch.setattr(pretended_gpu, "native_brain", of_another_layout)
    with pytest.raises(RuntimeError, match="built for another layout of the brain's records"):
        Scene(PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none"), 9)
