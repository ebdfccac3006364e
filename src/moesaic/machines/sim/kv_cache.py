"""Where the KV cache lies, and what reading it takes where that is main memory.

TriMoE has it in host DIMMs, and attention on the GPU. A layer's keys and values are then read over
PCIe, behind the copies of the layer before and beside its CPU's reads: which tokens a sequence has
is known. Without that, the CPU computes what attention does with earlier tokens, where they lie."""

from __future__ import annotations

from collections.abc import Mapping

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.step import Step
from moesaic.core.units import GB, NS_PER_S, ns_from_us
from moesaic.machines.sim.lane import Draws, Lane, Task
from moesaic.machines.sim.ndp.draws import DimmDraws
from moesaic.machines.sim.physics import Physics

IN_GPU_MEMORY, READ_OVER_PCIE, ON_CPU = "gpu", "main", "main-cpu"
KV_CACHES = {
    IN_GPU_MEMORY: "in GPU memory",
    READ_OVER_PCIE: "in main memory; the GPU reads a layer's over PCIe, one layer ahead",
    ON_CPU: "in main memory; the CPU computes attention to earlier tokens where they lie",
}


class KvCache:
    """Of one machine; `place` is one of KV_CACHES. It is the GPU's attention that this is about:
    where the CPU has a layer's attention, its time is with everything included."""

    def __init__(
        self, place: str, physics: Physics, lanes: Mapping[str, Lane], dimms: DimmDraws | None
    ) -> None:
        self._place, self._physics, self._dimms = place, physics, dimms
        self._lanes = lanes
        self._ns, self._draws = 0, Draws()
        self._reading: Task | None = None

    def begin(self, step: Step) -> None:
        """A step whose sequences have these contexts."""
        size = 0 if self._place == IN_GPU_MEMORY else self._physics.kv_bytes(step)
        if not size:
            self._ns = 0
        elif self._place == ON_CPU:
            self._ns = self._physics.kv_on_cpu_ns(step)
            self._draws = () if self._dimms is None else self._dimms.stream(CPU, size, self._ns)
        elif self._dimms is not None:
            self._ns, self._draws = self._dimms.stream_over_pcie(size)
        else:
            pcie = self._physics.machine.pcie
            self._ns = ns_from_us(pcie.latency_us)
            self._ns += round(size / (pcie.bandwidth_gb_s * GB) * NS_PER_S)

    def seen_by(self, device: str, step: Step) -> Step:
        """What a device's attention has to do of a step."""
        if device != GPU or self._place != ON_CPU:
            return step
        return Step.of((each.new_tokens, 0) for each in step.sequences)

    def read_ahead(self) -> None:
        """What the next layer's attention needs, behind what PCIe has to do before."""
        if self._place == READ_OVER_PCIE and self._ns and self._reading is None:
            self._reading = self._submit(PCIE)

    def wanted(self, device: str) -> Task | None:
        """What attention on a device that begins now waits for."""
        if device == GPU:
            self.read_ahead()
        found, self._reading = self._reading, None
        return found

    def rest(self, device: str) -> Task | None:
        """What is left to the CPU when the GPU has finished."""
        if device != GPU or self._place != ON_CPU or not self._ns:
            return None
        return self._submit(CPU)

    def _submit(self, lane: str) -> Task:
        task = Task("kv", self._ns)
        task.draws = self._draws
        self._lanes[lane].submit(task)
        return task
