"""Does the page show where each expert was and why, for engines of every kind and state?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from scripted_engine import WHY, Engine
from servers import until

BUNDLED = Engine("moesaic-20m", layers=8, experts=32, top_k=4, sequences=1, accelerated=False)
HUGE = Engine("huge", layers=94, experts=512, top_k=8, sequences=64, explained=False)


@pytest.fixture
def page(browser: Any, scripted: Any) -> Iterator[Any]:
    with browser.page() as made:
        yield made


def inside(page: Any, scripted: Any) -> None:
    page.go(f"{scripted.address}#inside")
    page.until("document.querySelector('.map canvas')?.width > 0")


def stepped(page: Any) -> None:
    page.until_text(".step", "Step ")


def ran(engine: Engine, kind: str) -> tuple[int, int]:
    """Layer and number of an expert that ran there in the first snapshot."""
    for layer in engine.snapshot(1)["layers"]:
        for expert in layer["experts"]:
            if expert["ran"] == kind:
                return layer["layer"], expert["expert"]
    raise AssertionError(f"none ran on {kind}")


def colours(page: Any, layer: int, expert: int) -> list[int]:
    """Of the middle of a cell."""
    found = page.js(f"""(() => {{
      const canvas = document.querySelector('.map canvas');
      const scale = canvas.width / canvas.clientWidth;
      const [left, width, height] = [30, (canvas.clientWidth - 30) / 128, canvas.clientHeight / 48];
      const [x, y] = [left + ({expert} + .4) * width, ({layer} + .4) * height];
      return [...canvas.getContext('2d').getImageData(x * scale, y * scale, 1, 1).data];
    }})()""")
    return list(found)


def test_the_map_says_where_each_expert_ran(page: Any, scripted: Any) -> None:
    scripted.pause_s = 60  # one snapshot
    inside(page, scripted)
    stepped(page)
    page.until("document.querySelector('.legend b').innerText !== '0'")
    page.js("new Promise(requestAnimationFrame)")
    shown = {kind: colours(page, *ran(scripted.engine, kind)) for kind in ("gpu", "cpu", "link")}
    assert len({tuple(each) for each in shown.values()}) == 3
    snapshot = scripted.engine.snapshot(1)
    for kind, text in (("gpu", "on the GPU"), ("cpu", "on the CPU"), ("link", "over the link")):
        count = sum(e["ran"] == kind for layer in snapshot["layers"] for e in layer["experts"])
        assert f"{count:,} ran {text}" in page.text(".map-card .legend")
    assert page.text(".inside-head").startswith(
        "Inside Qwen3-30B-A3B\n\n48 layers with 128 experts"
    )
    assert "NVIDIA RTX 4090" in page.text(".inside-head")
    assert page.problems == []


@pytest.mark.parametrize("kind", ["gpu", "cpu", "link"])
def test_a_click_says_why_and_what_else_was_possible(page: Any, scripted: Any, kind: str) -> None:
    scripted.pause_s = 60
    inside(page, scripted)
    stepped(page)
    layer, expert = ran(scripted.engine, kind)
    x, y = page.js(f"""(() => {{
      const box = document.querySelector('.map canvas').getBoundingClientRect();
      return [box.x + 30 + ({expert} + .5) * (box.width - 30) / 128,
              box.y + ({layer} + .5) * box.height / 48];
    }})()""")
    page.click_at(x, y)
    page.until_text(".panel h2", f"Layer {layer}, expert {expert}")
    assert page.text(".panel .why") == WHY[kind]
    taken = page.text(".panel .options .taken")
    assert taken.startswith({"gpu": "GPU", "cpu": "CPU", "link": "Link"}[kind])
    assert taken.endswith("µs")
    if kind != "gpu":
        assert "GPU\n–" in page.text(".panel .options")
    page.js("document.querySelector('.of-layer .tile:not([aria-pressed=true])').click()")
    page.until(f"!document.querySelector('.panel h2').innerText.endsWith(' {expert}')")


def test_the_map_works_by_keyboard(page: Any, scripted: Any) -> None:
    inside(page, scripted)
    stepped(page)
    page.js("document.querySelector('.map-field').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.press(key)
    assert page.text("#announcements").startswith("Layer 2, expert 1, ")
    page.press("End")
    page.press("Enter")
    page.until_text(".panel h2", "Layer 2, expert 127")
    assert page.unnamed() == []
    assert page.problems == []


def test_the_cards_show_times_hits_lanes_and_blocks(page: Any, scripted: Any) -> None:
    inside(page, scripted)
    stepped(page)
    page.until("document.querySelectorAll('.times .measured:not(.key)').length === 48")
    assert page.js("document.querySelectorAll('.times rect.predicted').length") == 48
    assert "predicted. The slowest is layer" in page.text(".times")
    page.until_text(".lanes", "%")
    for name, share in (("GPU", "61 %"), ("CPU", "83 %"), ("Link", "47 %")):
        page.until_text(".lanes", f"{name}\n{share}")
    assert "12 GB/s" in page.text(".lanes")
    page.until("document.querySelector('.hits .line.belady[d*=L]') !== null")
    hits = page.text(".hits .legend").replace("\n", " ")
    actual, lru, belady = (
        int(hits.partition(name)[0].split()[-2]) for name in ("this", "LRU", "Belady")
    )
    assert lru < actual < belady
    assert "295 of 512 blocks in use, 96 kept" in page.text(".kv")
    assert "request-0 (editor)" in page.text(".kv td")
    page.click(".times svg g:nth-child(5)")
    page.until_text(".panel h2", "Layer 4, ")
    assert page.problems == []


def test_a_bar_of_layers_and_a_paused_view_stay(page: Any, scripted: Any) -> None:
    inside(page, scripted)
    stepped(page)
    page.click(".map-card button")
    before = page.text(".step")
    seen = page.js("performance.now()")
    page.until(f"performance.now() > {seen} + 5 * {scripted.pause_s * 1000}")
    assert page.text(".step") == before
    page.click(".map-card button")
    page.until(f"document.querySelector('.step').innerText !== {before!r}")


@pytest.mark.parametrize("kind", ["perfetto", "routing"])
def test_the_next_steps_are_captured_with_one_click(page: Any, scripted: Any, kind: str) -> None:
    inside(page, scripted)
    stepped(page)
    page.js("HTMLAnchorElement.prototype.click = function () { window.name = this.download; }")
    page.click(f".capture .buttons button:nth-child({1 if kind == 'perfetto' else 2})")
    page.until_text(".capture [role=status]", "routing-32.moet was saved (400 bytes)")
    assert page.js("window.name") == "routing-32.moet"
    (asked,) = scripted.captures
    assert (asked["kind"], asked["steps"]) == (kind, 32)
    page.js("""(() => {
      const machine = document.getElementById("machine");
      machine.value = "dgx-spark";
      machine.dispatchEvent(new Event("change"));
    })()""")
    file = "routing-32.moet" if kind == "routing" else "moesaic-routing.moet"
    assert page.text(".command code") == (
        f"moesaic simulate --model qwen3-30b-a3b --machine dgx-spark --trace {file}"
    )


def test_without_an_accelerator_there_is_no_word_of_one(page: Any, scripted: Any) -> None:
    scripted.engine = BUNDLED
    inside(page, scripted)
    stepped(page)
    assert "no accelerator: the CPU computes all experts" in page.text(".inside-head")
    legend = page.text(".map-card .legend")
    assert "ran on the CPU" in legend
    assert "GPU" not in legend
    page.until_text(".hits", "A cache for 25 % of the experts would have had these")
    assert "this cache" not in page.text(".hits")
    page.click(".map-field")
    page.until_text(".panel", "Layer ")
    assert page.js("document.querySelector('.panel .options')") is None
    assert "memory" not in page.text(".panel")
    assert page.problems == []


def test_before_the_first_step_the_page_says_so(page: Any, scripted: Any) -> None:
    scripted.stepped = False
    inside(page, scripted)
    page.until_text(".kv", "0 of 512 blocks in use")
    assert page.text(".step") == "No step yet: send a message in the chat."
    assert "No step has been measured" in page.text(".times")
    assert "It begins with the first decode steps" in page.text(".hits")
    assert page.problems == []
    scripted.stepped = True
    stepped(page)


@pytest.mark.parametrize(
    ("status", "text"),
    [(404, "shows nothing of its engine"), (503, "The engine is away"), (500, "cannot be read")],
)
def test_an_engine_that_cannot_be_seen_is_named(
    page: Any, scripted: Any, status: int, text: str
) -> None:
    scripted.insight_status = status
    page.go(f"{scripted.address}#inside")
    page.until_text(".notice", text)
    assert page.js("document.querySelector('.cards').hidden")
    if status == 503:
        scripted.insight_status = 200
        stepped(page)
        page.until("document.querySelector('.notice').hidden")


def test_an_engine_that_is_lost_leaves_its_last_state(page: Any, scripted: Any) -> None:
    inside(page, scripted)
    stepped(page)
    scripted.lost = True
    page.until_text(".notice", "The engine is away, and what is shown is its last state")
    assert page.text(".step").startswith("Step ")
    scripted.lost = False
    page.until("document.querySelector('.notice').hidden")


def test_a_very_large_model_is_drawn_and_explained_layer_by_layer(page: Any, scripted: Any) -> None:
    scripted.engine, scripted.pause_s = HUGE, 0.5
    inside(page, scripted)
    stepped(page)
    took = page.js("""(async () => {
      const { Experts } = await import("./page/insight/experts.js");
      const { ExpertMap } = await import("./page/insight/map.js");
      const model = await (await fetch("insight/model")).json();
      const map = new ExpertMap(() => {}, () => {});
      document.querySelector(".map-card").append(map.element);
      map.update(new Experts(model, null), model);
      const begun = performance.now();
      map.paint();
      return performance.now() - begun;
    })()""")
    assert took < 400, "it is drawn twice a second"
    layer, _ = ran(HUGE, "cpu")
    page.js("document.querySelector('.map-field').focus()")
    page.click(f".times svg g:nth-child({layer + 1})")
    page.until_text(".panel .why", "in ")
    assert page.js("document.documentElement.scrollWidth <= innerWidth")
    assert page.problems == []


def test_the_stream_ends_with_the_view(page: Any, scripted: Any) -> None:
    until(lambda: scripted.watching == 0)
    inside(page, scripted)
    stepped(page)
    assert scripted.watching == 1
    page.click("#to-chat")
    until(lambda: scripted.watching == 0)
