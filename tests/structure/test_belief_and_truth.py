"""Is belief derived from a description without the simulator that acts on the same one?"""

from __future__ import annotations

import ast
from pathlib import Path

from import_graph import graph_of, import_graph, reached
from sources import Source

TRUTH = "moesaic.machines"
# Besides the policies, which a rule about layers keeps apart from every machine.
BELIEF = ("moesaic.engine.described_belief", "moesaic.policies.belief", "moesaic.policies.costs")


def test_no_belief_rests_on_a_machine() -> None:
    graph = import_graph()
    for module in BELIEF:
        found = sorted(name for name in reached(graph, module) if name.startswith(TRUTH))
        assert not found, f"{module} leads to {found}: it reads the description alone"


def test_an_import_on_the_way_would_be_found() -> None:
    texts = {
        "engine/a.py": "def f():\n    from moesaic.hardware import b",
        "hardware/b.py": "from moesaic.machines.sim.physics import Physics",
        "machines/sim/physics.py": "",
    }
    graph = graph_of(Source(Path(path), text, ast.parse(text)) for path, text in texts.items())
    assert "moesaic.machines.sim.physics" in reached(graph, "moesaic.engine.a")
