"""Does the page show Markdown as it is meant, and is a model's text never more than text?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_model import HOSTILE, MARKDOWN

A, B, C = "<span>a</span>", "<span>b</span>", "<span>c</span>"
DONE = '<input type="checkbox" disabled="" checked="" aria-label="done">'
TABLE = (
    '<div class="wide" tabindex="0" role="region" aria-label="Table"><table>'
    "<thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr>"
)
END = "</tr></tbody></table></div>"
RENDER = """(async () => {
  const { MarkdownView } = await import("./page/markdown/render.js");
  window.shown = (text) => {
    const box = document.createElement("div");
    new MarkdownView(box).update(text);
    return box;
  };
  return true;
})()"""


@pytest.fixture(scope="module")
def page(browser: Any, _scripted_server: Any) -> Iterator[Any]:
    with browser.page() as made:
        made.go(_scripted_server.address)
        made.js(RENDER)
        yield made


def shown(page: Any, text: str) -> str:
    """As HTML, without what is the same in all."""
    html = page.js(f"shown({json.dumps(text)}).innerHTML")
    return str(html).replace(' class="align-start"', "")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("*a* **b** ~~c~~", "<p><em>a</em> <strong>b</strong> <del>c</del></p>"),
        ("***a***", "<p><em><strong>a</strong></em></p>"),
        ("snake_case_name 5 * 3 * 2", "<p>snake_case_name 5 * 3 * 2</p>"),
        ("**not closed *but this*", "<p>**not closed <em>but this</em></p>"),
        ("one\ntwo\n\nthree", "<p>one<br>two</p><p>three</p>"),
        ("`a ``b`` *c*` ``x`y``", "<p><code>a ``b`` *c*</code> <code>x`y</code></p>"),
        ("\\*a\\* &amp; <b>", "<p>*a* &amp;amp; &lt;b&gt;</p>"),
        ("# One #\n## Two\n#none", "<h3>One</h3><h4>Two</h4><p>#none</p>"),
        ("a\n***\nb", "<p>a</p><hr><p>b</p>"),
        ("- a\n  - b\n- c", f"<ul><li>{A}<ul><li>{B}</li></ul></li><li>{C}</li></ul>"),
        ("3. a\n4. b", f'<ol start="3"><li>{A}</li><li>{B}</li></ol>'),
        ("- a\nb", "<ul><li><span>a<br>b</span></li></ul>"),
        ("- [x] a\n- b", f'<ul><li class="task">{DONE}{A}</li><li>{B}</li></ul>'),
        ("1. a\n\n   b\n\n2. c", f"<ol><li>{A}<p>b</p></li><li>{C}</li></ol>"),
        ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
        ("|a|b|\n|-|-|\n|1\\|2|`x|y`|", f"{TABLE}<td>1|2</td><td><code>x|y</code></td>{END}"),
        ("a | b\nc | d", "<p>a | b<br>c | d</p>"),
    ],
)  # fmt: skip
def test_markdown_is_shown_as_it_is_meant(page: Any, text: str, html: str) -> None:
    assert shown(page, text) == html


def test_code_keeps_its_text_while_it_is_written(page: Any) -> None:
    for end in ("", "\n```", "\n```\n"):
        text = f"```js\nif (a < b) {{\n  c()\n}}{end}"
        read = f"shown({json.dumps(text)}).querySelector('code').textContent"
        assert page.js(read) == "if (a < b) {\n  c()\n}"
    assert page.js("shown('~~~\\n```\\n~~~').querySelector('code').textContent") == "```"
    assert page.js("shown('```rust\\nx').querySelector('figcaption span').textContent") == "rust"


def test_only_safe_addresses_become_links(page: Any) -> None:
    found = page.js(
        f"[...shown({json.dumps(HOSTILE)}).querySelectorAll('a')]"
        ".map((a) => [a.getAttribute('href'), a.rel, a.target])"
    )
    assert [href for href, _, _ in found] == [
        "https://elsewhere.example/pixel.png",
        "https://good.example/a_(b)?c=1&d=%22",
        "https://angle.example/",
        "https://bare.example/x",
    ]
    assert all("noopener" in rel and target == "_blank" for _, rel, target in found)


def test_hostile_text_makes_no_other_elements_and_runs_nothing(page: Any) -> None:
    script = f"""(() => {{
      const box = shown({json.dumps(HOSTILE)});
      document.body.append(box);
      const nodes = [...box.querySelectorAll("*")];
      const attributes = nodes.flatMap((node) => [...node.attributes].map((each) => each.name));
      return {{ tags: [...new Set(nodes.map((node) => node.localName))].sort(),
                attributes: [...new Set(attributes)].sort(), text: box.textContent }};
    }})()"""
    found = page.js(script)
    assert not {"script", "img", "svg", "iframe", "style", "b", "i", "u"} & set(found["tags"])
    assert not [each for each in found["attributes"] if each.startswith("on") or each == "style"]
    assert "<script>window.hacked = 1</script>" in found["text"]
    assert "<svg onload=window.hacked=1>" in found["text"]
    assert page.js("window.hacked") is None
    assert page.problems == []


LONG = 20_000


@pytest.mark.parametrize(
    "text",
    [
        ">" * LONG, "- " * LONG, "[" * LONG, "**a" * LONG, "_*" * LONG, "`a``" * LONG,
        "https://" * LONG, "](" * LONG, "[a](" + " " * LONG, "*a **b " * LONG + "b** a*" * LONG,
        "|" * LONG + "\n" + "|-" * LONG, "a|b\n" * LONG, "#" + " #" * LONG, "- a\n" * LONG,
        "\n".join(" " * 2 * depth + "- a" for depth in range(300)),
    ],
    ids=lambda text: repr(text[:8]),
)  # fmt: skip
def test_no_text_takes_long_or_nests_without_end(page: Any, text: str) -> None:
    """What grows with the square of such a text takes minutes."""
    script = f"""(() => {{
      const begun = performance.now();
      let node = shown({json.dumps(text)});
      const took = performance.now() - begun;
      let depth = 0;
      for (const each of node.querySelectorAll("*")) {{
        let own = 0;
        for (let at = each; at !== node && own < 200; at = at.parentNode) own += 1;
        depth = Math.max(depth, own);
        if (performance.now() - begun > 15000) break;
      }}
      return [took, depth];
    }})()"""
    took_ms, depth = page.js(script)
    assert took_ms < 8000
    assert depth < 100


def test_a_growing_text_keeps_the_nodes_that_do_not_change(page: Any) -> None:
    script = f"""(async () => {{
      const {{ MarkdownView }} = await import("./page/markdown/render.js");
      const text = {json.dumps(MARKDOWN)};
      const [grown, whole] = [document.createElement("div"), document.createElement("div")];
      const view = new MarkdownView(grown);
      let first = null;
      let kept = true;
      for (let end = 0; end <= text.length; end += 1) {{
        view.update(text.slice(0, end));
        if (end === 120) first = grown.firstChild;
        if (end > 120) kept &&= grown.firstChild === first;
      }}
      new MarkdownView(whole).update(text);
      return [kept, grown.innerHTML === whole.innerHTML];
    }})()"""
    assert page.js(script) == [True, True]
