"""Does routing that other programs have recorded become a trace, and not a real one by itself?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import refused, run, run_json

import stock
from moesaic.workloads.block import RoutingBlock, join
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.source import open_trace

GUIDE = Path(__file__).parents[2] / "docs" / "import-traces.md"
# Two documents of one and two tokens, two layers, top-2 of eight experts.
EXPERTS = [[[0, 7], [2, 1]], [[1, 2], [0, 3]], [[3, 0], [1, 0]]]


def imported(file: Path, *words: object) -> tuple[TraceHeader, RoutingBlock]:
    output = file.with_suffix(".moet")
    run("trace", "import", file, "-o", output, *words)
    trace = open_trace(output)
    return trace.header, join(list(trace.blocks()))


@contextmanager
def hooks_as_before(model: torch.nn.Module) -> Iterator[None]:
    """Other tests use the same model, which has hooks of its own once it has returned what its
    routers say."""
    before = {module: dict(module._forward_hooks) for module in model.modules()}
    try:
        yield
    finally:
        for module, hooks in before.items():
            module._forward_hooks.clear()
            module._forward_hooks.update(hooks)


def test_the_hook_of_the_guide_records_a_transformers_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's lines around a real (small, random) model; the experts are those that its own
    router logits say."""
    (hook,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(hook.strip().splitlines()) < 19
    model = stock.saved("olmoe").model
    inputs = {"input_ids": torch.tensor([[5, 11, 17, 3, 29]])}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"model": model, "inputs": inputs}
    with hooks_as_before(model):
        exec(hook.replace("max_new_tokens=64", "max_new_tokens=6, do_sample=False"), names)
    header, block = imported(tmp_path / "routing.npz", "--origin", "real", "--model", "tiny")
    config = model.config
    assert (header.origin, header.model, header.top_k) == (
        "real",
        "tiny",
        config.num_experts_per_tok,
    )
    assert block.phases.tolist() == [0] * 5 + [1] * 5
    with torch.no_grad():
        logits = model(**inputs, output_router_logits=True).router_logits
    for layer, scores in enumerate(logits):
        chosen = scores.softmax(-1).topk(header.top_k)
        assert block.experts[:5, layer].tolist() == chosen.indices.tolist()
    assert block.weights is not None
    assert np.isfinite(block.weights).all()


def test_the_hook_puts_the_best_expert_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Routers of GLM-4.5 and DeepSeek-V3 return their choice unsorted; and a model whose routers
    are not found gets words instead of arrays of nothing."""
    (hook,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    hook = hook.replace("max_new_tokens=64", "max_new_tokens=6, do_sample=False")
    inputs = {"input_ids": torch.tensor([[5, 11, 17, 3, 29]])}
    monkeypatch.chdir(tmp_path)
    model = stock.saved("glm-4.5").model
    with hooks_as_before(model):
        exec(hook, {"model": model, "inputs": inputs})
    _, block = imported(tmp_path / "routing.npz")
    assert block.weights is not None
    assert (np.diff(block.weights.astype(float), axis=-1) <= 0).all()
    with pytest.raises(AssertionError, match="have another name"):
        exec(hook, {"model": torch.nn.Linear(1, 1), "inputs": inputs})


def response(prompt: Any, *answers: Any) -> dict[str, Any]:
    choices = [{"text": "x", "routed_experts": answer} for answer in answers]
    return {"choices": choices, "prompt_routed_experts": prompt}


def test_responses_of_vllm(tmp_path: Path) -> None:
    unknown = [[[-1, -1], [-1, -1]]]
    lines = [response(unknown + EXPERTS[:1], EXPERTS[1:], EXPERTS[2:]), response(None, EXPERTS)]
    file = tmp_path / "responses.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    header, block = imported(file, "--experts", 8)
    assert (header.origin, header.num_experts, header.has_weights) == ("imported", 8, False)
    assert block.documents.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert block.positions.tolist() == [1, 2, 3, 2, 0, 1, 2]
    assert block.phases.tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert block.experts[:3].tolist() == EXPERTS
    said = run("trace", "import", file, "-o", tmp_path / "again.moet").err
    assert "1 tokens of cached prefixes have no routing (-1) and are left out" in said
    np.savez(tmp_path / "r.npz", routed_experts=EXPERTS[1:], prompt_routed_experts=EXPERTS[:1])
    _, block = imported(tmp_path / "r.npz")
    assert (block.experts.tolist(), block.phases.tolist()) == (EXPERTS, [0, 1, 1])


def test_csv_in_both_forms(tmp_path: Path) -> None:
    rows = [
        (document, token, layer, expert)
        for document, token, layers in ((0, 0, EXPERTS[0]), (1, 0, EXPERTS[1]), (1, 1, EXPERTS[2]))
        for layer, experts in zip((1, 4), layers, strict=True)
        for expert in experts
    ]
    long = tmp_path / "long.csv"
    lines = [f"{t},{layer},{e},0.5,{d},prefill" for d, t, layer, e in reversed(rows)]
    lines = [line for pair in zip(lines[1::2], lines[::2], strict=True) for line in pair]
    long.write_text("\n".join(["token,layer,expert,weight,document,phase", *lines]))
    _, block = imported(long)
    assert block.experts.tolist() == EXPERTS
    assert block.documents.tolist() == [0, 1, 1]
    assert block.phases.tolist() == [0, 0, 0]
    assert block.weights is not None
    wide = tmp_path / "wide.csv"
    words = [
        f"{token},{layer},{a},{b}"
        for token, layers in enumerate(EXPERTS)
        for layer, (a, b) in enumerate(layers)
    ]
    wide.write_text("\n".join(["token,layer,expert_0,expert_1", *words]))
    _, block = imported(wide, "--phase", "prefill")
    assert block.experts.tolist() == EXPERTS
    assert block.phases.tolist() == [0, 0, 0]


def test_text_with_a_byte_order_mark(tmp_path: Path) -> None:
    """As spreadsheets write it."""
    texts = {
        "x.csv": "token,layer,expert\r\n0,0,1\r\n1,0,2\r\n",
        "moe_trace.csv": "0,1\n1,2\n",
        "x.json": json.dumps(response(None, EXPERTS)),
    }
    for name, text in texts.items():
        file = tmp_path / name
        file.write_text("\ufeff" + text, encoding="utf-8")
        imported(file, "--top-k", 1)


def test_the_phase_of_arrays_that_do_not_say_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", experts=EXPERTS)
    np.savez(tmp_path / "b_decode.npz", experts=EXPERTS)
    np.savez(tmp_path / "c.npz", experts=EXPERTS, phase="decode")
    for name, phase in (("a", 0), ("b_decode", 1), ("c", 1)):
        _, block = imported(tmp_path / f"{name}.npz", "--phase", "prefill")
        assert block.phases.tolist() == [phase] * 3


def test_an_empty_file_is_refused_whatever_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "empty"
    file.touch()
    for form in ("npz", "vllm", "csv", "llama.cpp"):
        words = ("trace", "import", file, "-o", tmp_path / "x.moet", "--from", form, "--top-k", 1)
        assert "empty" in refused(monkeypatch, capsys, *words)


def moe_trace(path: Path) -> Path:
    """A prompt of two tokens, of which the last layer has the last one only, then a decode step."""
    passes = ((1, EXPERTS[:2], EXPERTS[1:2]), (1, EXPERTS[2:], EXPERTS[2:]))
    lines = [
        f"{layer},{expert}"
        for _, first, last in passes
        for layer, tokens, at in ((3, first, 0), (5, last, 1))
        for token in tokens
        for expert in token[at]
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_llama_cpp_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = moe_trace(tmp_path / "moe_trace.csv")
    _, block = imported(file, "--top-k", 2)
    assert block.experts.tolist() == EXPERTS[1:]
    assert block.positions.tolist() == [1, 2]
    assert block.phases.tolist() == [0, 1]
    found = run_json("trace", "import", file, "-o", tmp_path / "x.moet", "--top-k", 2)
    assert found["notes"] == [
        f"{file}: 1 prompt tokens have no routing in the last layer and are left out"
    ]
    said = refused(monkeypatch, capsys, "trace", "import", file, "-o", tmp_path / "y.moet")
    assert "give --top-k" in said


def test_imported_routing_is_called_that_until_its_author_says_more(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    experts = np.argsort(rng.random((700, 16, 64)), axis=-1)[..., :8]
    file = tmp_path / "routing.npz"
    np.savez(file, experts=experts)
    words = ("simulate", "--model", "olmoe-1b-7b", "--tokens", 8, "--warmup", 2)
    assert run_json(*words, "--trace", file)["trace"]["origin"] == "imported"
    assert "imported routing" in run(*words, "--trace", file).out
    header, _ = imported(file, "--model", "olmoe-1b-7b", "--origin", "real", "--source", "my desk")
    assert (header.origin, header.source, header.num_experts) == ("real", "my desk", 64)
    result = run_json(*words, "--trace", file.with_suffix(".moet"))
    assert result["trace"] == {"source": "my desk", "synthetic": False, "origin": "real"}


MISTAKES = {
    "token,layer,expert\n0,0,x": "line 2: expert is 'x'; it must be a whole number from 0 on",
    "token,layer,expert\n0,0,1\n0,0,1": "token 0, layer 0 has 1 twice",
    "token,layer,expert\n0,0,1\n0,0,2\n1,0,3": "line 4: token 1 has 1 experts in layer 0",
    "token,layer,expert\n0,0,1\n0,1,2\n1,0,3": "lacks some of the layers 0, 1",
    "token,layer,expert,weight\n0,0,1,nan": "line 2: weight is 'nan'; it must be a number",
    "token,layer,expert\n0,0": "line 2: has 2 columns, the header 3",
    "token,layer,exprt\n0,0,1": "line 1: unknown column 'exprt'; columns are token,layer,expert",
    "0,1\n0,2\n1,x": "line 3: must be layer,expert, is '1,x'",
    "0,1\n0,2\n0,3\n1,4": "line 1: 3 rows of layer 0 are no multiple of top-k 2",
    '{"choices": [{"text": "x"}]}': "start the server with --enable-return-routed-experts",
    '{"choices": [{"routed_experts": [[[1, 2]], [[3]]]}]}': "must be whole numbers [tokens]",
    '{"choices": [{"routed_experts": [[[1, 99]]]}]}': "token 0, layer 0: 99 is not from 0 to 63",
    "no routing at all": "is neither an .npz of arrays",
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_mistakes_are_named_and_nothing_is_written(
    text: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "routing.txt"
    file.write_text(text)
    output = tmp_path / "out.moet"
    words = ("trace", "import", file, "-o", output, "--experts", 64, "--top-k", 2)
    message = refused(monkeypatch, capsys, *words)
    assert said in message
    assert "routing.txt" in message
    assert not output.exists()
