"""Layouts from a profile: by a cut in expected load (TriMoE), or improved with the schedule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.offloading import IN_DRAM
from moesaic.policies.layout.base import Ints, Layout, Profile
from moesaic.policies.tri.baselines import GPU_CPU, GPU_NDP, GPU_ONLY
from moesaic.policies.tri.joint import improved_layout, with_copies, with_splits
from moesaic.policies.tri.layer import ALL_DEVICES, NO_DIMM
from moesaic.policies.tri.layout import offline_layout
from moesaic.policies.tri.machine import DimmIndices, believed_costs

DEVICES = {"all": ALL_DEVICES, "gpu": GPU_ONLY, "gpu-cpu": GPU_CPU, "gpu-ndp": GPU_NDP}


class Offline(Layout):
    improves = False
    localizes = False

    def __init__(
        self, layers: int, experts: int, devices: str = "all", copies: int = 0, splits: int = 0
    ) -> None:
        super().__init__(layers, experts)
        self.devices, self._copies, self._splits = DEVICES[devices], copies, splits

    def initial(self, profile: Profile, resident: NDArray[np.bool_]) -> Ints:
        costs = profile.belief.costs
        assert costs is not None, "a belief about every device"
        dimms = DimmIndices.of(costs.topology)
        placements = np.array(dimms.placements, dtype=np.int64)
        groups = np.array(dimms.splits, dtype=np.int64)
        found = super().initial(profile, resident)
        if not len(placements):
            return found
        if self._splits and not dimms.splits:
            raise ImpossibleSetting(
                f"a layout with splits={self._splits} needs a machine whose experts can be split: "
                "its description says over how many DIMMs, dimms.split = 2 for example"
            )
        tri = believed_costs(costs, **profile.belief.host_reads._asdict(), pipelined=True)
        loads = np.minimum(profile.loads, tri.tokens)
        for layer in range(self.layers):
            of_layer = np.ascontiguousarray(loads[:, layer])
            best = offline_layout(tri, of_layer, resident[layer], self.devices, self.localizes)
            if self.improves:
                best = improved_layout(tri, of_layer, best, self.devices, exchange=False)
            local = best.dimm != NO_DIMM
            self.copied[layer] = with_copies(best, of_layer, self._copies).striped & local
            found[layer] = np.where(local, placements[best.dimm], IN_DRAM)
            if self._splits:
                best = with_splits(best, of_layer, self._splits, dimms.span, dimms.count)
                split = best.span > 1
                found[layer, split] = groups[best.dimm[split] // dimms.span]
        return found


class Joint(Offline):
    improves = True


class Localized(Offline):
    localizes = True
