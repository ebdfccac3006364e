"""Is the page readable on a phone and on a desktop, in dark and in light? Its pictures for the
documentation are made here: `python -m pytest tests/page --screenshots docs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

PHONE, SMALL_PHONE, TABLET, DESKTOP = (390, 844), (320, 568), (820, 1180), (1280, 800)
MOST_BYTES = 200_000
QUESTION = "Why do most experts of a Mixture-of-Experts model rest?"
CONTRAST = """((pairs) => {
  const probe = document.getElementById("colour-probe");
  const pen = document.createElement("canvas").getContext("2d");
  const light = (name) => {
    probe.style.color = `var(--${name})`;
    pen.fillStyle = getComputedStyle(probe).color;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((each) => {
      const share = each / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  return pairs.map(([one, other]) => {
    const [a, b] = [light(one), light(other)];
    return Math.max(a, b) / Math.min(a, b);
  });
})"""
TEXTS = [
    ("ink", "paper"), ("ink", "surface"), ("ink", "sunken"), ("ink", "accent-tint"),
    ("ink", "mistake-tint"), ("soft", "paper"), ("soft", "surface"), ("soft", "sunken"),
    ("accent", "paper"), ("accent", "surface"), ("on-accent", "accent"), ("mistake", "paper"),
]  # fmt: skip
SHAPES = [
    ("gpu", "elsewhere"), ("cpu", "elsewhere"), ("link", "elsewhere"), ("gpu", "resident"),
    ("accent", "surface"), ("cpu", "surface"), ("link", "surface"), ("strong-line", "surface"),
]  # fmt: skip


@pytest.fixture
def page(browser: Any, scripted: Any) -> Iterator[Any]:
    with browser.page() as made:
        made.scheme("light")
        made.go(scripted.address)
        made.until_text("#status", "ready")
        yield made


@pytest.fixture
def keep(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Any, str], None]:
    """Make a picture; it stays where `--screenshots` says."""
    folder = Path(request.config.getoption("--screenshots") or tmp_path)

    def make(page: Any, name: str) -> None:
        path = folder / f"page-{name}.png"
        page.screenshot(path)
        assert 5_000 < path.stat().st_size < MOST_BYTES

    return make


def ask(page: Any, text: str) -> None:
    page.js(
        f"document.getElementById('message').value = {text!r};"
        "document.getElementById('ask').requestSubmit()"
    )
    page.until("!document.getElementById('send').hidden && document.querySelector('.figures')")


def inside(page: Any) -> None:
    page.js("location.hash = '#inside'")
    page.until("document.querySelector('.map canvas')?.width > 0")
    page.until_text(".step", "Step ")
    page.until_text(".lanes", "%")


def overflowing(page: Any) -> list[str]:
    """What is wider than the window, but for what scrolls by itself."""
    found = page.js("""[...document.querySelectorAll("body *")].filter((each) => {
      const box = each.getBoundingClientRect();
      if (!box.width || box.right <= innerWidth + 1) return false;
      for (let at = each.parentElement; at; at = at.parentElement) {
        if (getComputedStyle(at).overflowX !== "visible" && at !== document.body) return false;
      }
      return true;
    }).map((each) => `${each.localName}.${each.className}`)""")
    return list(found)


LONG = [pytest.param(size, marks=pytest.mark.long) for size in (PHONE, TABLET)]


@pytest.mark.parametrize("size", [SMALL_PHONE, DESKTOP, *LONG], ids=str)
def test_nothing_is_wider_than_the_window(page: Any, size: tuple[int, int]) -> None:
    page.size(*size, phone=size[0] < 800)
    ask(page, "markdown")
    assert page.js("document.documentElement.scrollWidth <= innerWidth")
    assert overflowing(page) == []
    assert page.js("document.getElementById('send').getBoundingClientRect().bottom <= innerHeight")
    inside(page)
    assert page.js("document.documentElement.scrollWidth <= innerWidth")
    assert overflowing(page) == []
    page.js("document.getElementById('open-settings').click()")
    assert overflowing(page) == []


def test_what_a_finger_touches_is_large_enough(page: Any) -> None:
    page.size(*PHONE, phone=True)
    ask(page, "markdown")
    small = page.js("""[...document.querySelectorAll("button, .top nav a")].filter((each) => {
      const box = each.getBoundingClientRect();
      return box.width && box.height < 32;
    }).map((each) => each.outerHTML)""")
    assert small == []


def test_conversations_are_a_drawer_on_a_phone(page: Any) -> None:
    page.size(*PHONE, phone=True)
    ask(page, "first")
    shown = "getComputedStyle(document.getElementById('sidebar')).visibility === 'visible'"
    assert not page.js(shown)
    page.click("#menu")
    page.until(shown)
    assert page.js("document.getElementById('menu').getAttribute('aria-expanded')") == "true"
    page.press("Escape")
    page.until(f"!({shown})")
    page.click("#menu")
    page.until(shown)
    page.js("document.getElementById('new-chat').click()")
    page.until("!document.querySelector('.turn')")
    page.until(f"!({shown})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_shapes_stand_out(page: Any, scheme: str) -> None:
    """As WCAG 2 demands: 4.5 for text, 3 for what else must be seen."""
    page.scheme(scheme)
    for pairs, least in ((TEXTS, 4.5), (SHAPES, 3.0)):
        found = page.js(f"{CONTRAST}({[list(pair) for pair in pairs]})")
        weak = {
            pair: round(ratio, 2) for pair, ratio in zip(pairs, found, strict=True) if ratio < least
        }
        assert not weak


def test_colours_follow_the_system_and_the_switch(page: Any, scripted: Any) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.js(paper)
    page.scheme("dark")
    dark = page.js(paper)
    assert light != dark
    page.click("#theme")
    assert (
        page.js("document.getElementById('theme').getAttribute('aria-label')") == "Colours: light"
    )
    assert page.js(paper) == light
    page.go(scripted.address)
    assert page.js(paper) == light, "it is kept"
    page.click("#theme")
    assert page.js(paper) == dark
    page.click("#theme")
    page.scheme("light")
    assert page.js(paper) == light


def test_the_map_is_drawn_again_in_other_colours(page: Any, scripted: Any) -> None:
    scripted.pause_s = 60
    page.js("location.hash = '#inside'")
    page.until_text(".step", "Step ")
    corner = (
        "(() => { const c = document.querySelector('.map canvas');"
        " const pen = c.getContext('2d');"
        " return [...pen.getImageData(c.width - 4, c.height - 4, 1, 1).data].join() })()"
    )
    before = page.until(corner)
    page.scheme("dark")
    page.until(f"{corner} !== {before!r}")


def test_motion_is_spared_where_it_is_not_wanted(page: Any) -> None:
    assert page.js("getComputedStyle(document.getElementById('send')).transitionDuration") == "0s"


def test_pictures_for_the_documentation(
    page: Any, scripted: Any, keep: Callable[[Any, str], None]
) -> None:
    scripted.answers, scripted.token_s, scripted.pause_s = {QUESTION: "markdown"}, 0.05, 0.03
    page.size(1180, 760)
    ask(page, QUESTION)
    page.js("document.activeElement.blur()")
    keep(page, "chat")
    page.size(1180, 900)
    inside(page)
    page.until("(document.querySelector('.hits path.belady')?.getAttribute('d').length ?? 0) > 250")
    page.js("document.querySelector('.map-card button').click()")
    page.js("document.querySelector('.map-field').focus()")
    page.js("""[...document.querySelectorAll(".times svg g")].slice(20).some((bar) => {
      const { x, y } = bar.getBoundingClientRect();
      bar.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: x + 3, clientY: y }));
      const found = document.querySelector(".of-layer .tile.cpu");
      found?.click();
      return found;
    })""")
    page.js("document.querySelector('#inside-view').scrollTop = 0; document.activeElement.blur()")
    page.until_text(".panel .why", "It is in")
    keep(page, "inside")
    page.scheme("dark")
    page.js("document.querySelector('.capture').scrollIntoView({ block: 'end' })")
    keep(page, "inside-dark")
    page.size(*PHONE, phone=True)
    page.js("location.hash = '#chat'")
    page.js("document.getElementById('scroll').scrollTop = 0")
    keep(page, "phone-dark")


def test_every_state_has_a_look(page: Any, scripted: Any) -> None:
    """Failures and dialogs in both colours: nothing overflows, everything has a name."""
    for scheme, said in product(("light", "dark"), ("busy", "tool", "reason")):
        page.scheme(scheme)
        page.js("document.getElementById('new-chat').click()")
        page.js(
            f"document.getElementById('message').value = {said!r};"
            "document.getElementById('ask').requestSubmit()"
        )
        page.until("!document.getElementById('send').hidden && document.querySelector('.deeds')")
        assert overflowing(page) == []
        assert page.unnamed() == []
