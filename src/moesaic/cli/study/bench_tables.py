"""A bench as JSON and as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from moesaic.cli.shared.engine_options import BATCH_INVARIANT
from moesaic.cli.shared.gate_lines import gate_lines
from moesaic.cli.shared.output import print_json, print_table
from moesaic.cli.shared.table_formats import as_csv, as_markdown
from moesaic.cli.study.bench_runs import Done
from moesaic.core.units import GB
from moesaic.hardware.host import this_host
from moesaic.lab.bench.replayed_routing import BenchRouting
from moesaic.machines.accelerators import has_slots

# Narrow: ms, MB and floor are per token, times says how many floors it took.
COLUMNS = ("test", "system", "cache", "tok/s", "+-", "ms", "hits", "MB", "floor", "times")


def described(done: Done, routing: BenchRouting, command: str) -> dict[str, Any]:
    """What `bench --json` prints."""
    from moesaic.lab.bench.gate_gain import gate_stats
    from moesaic.lab.bench.turns import paired

    host, loaded = this_host(), done.loaded
    first = done.rows[0].config
    return {
        "command": command,
        "model": done.model.spec.name,
        "layers": done.model.spec.num_layers,
        "weights": "random" if done.model.opened is None else "checkpoint",
        "routing": routing.words,
        "routing_kind": routing.kind,
        "machine": {
            "cpu": host.cpu,
            "isa": list(host.isa),
            "cores": host.cores,
            "memory_bytes": host.memory_bytes,
            "accelerator": first.settings.accelerator,
            "rates": asdict(done.rates),
        },
        "load": {
            "seconds": loaded.seconds,
            "final_bytes": loaded.memory.now,
            "peak_bytes": loaded.memory.peak,
            "peak_over_final": loaded.peak_ratio,
        },
        "rows": [row.as_dict(done.rates, gate_stats(row, done.rows)) for row in done.rows],
        "turns": [each.as_dict() for each in paired(done.rows)] if done.in_turns else None,
    }


def print_bench(result: dict[str, Any]) -> None:
    """`result` is what `bench --json` prints."""
    rows = result["rows"]
    print_table(_title(result), COLUMNS, table_rows(result))
    lines = (*_overheads(rows), *prices(rows), *_gates(rows), *_turns(result))
    for line in (*lines, _load(result["load"]), _rates(result["machine"]["rates"])):
        click.echo(line)


def table_rows(result: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Under `COLUMNS`."""
    return [_cells(row) for row in result["rows"]]


def _title(result: dict[str, Any]) -> str:
    row = result["rows"][0]
    cut = f", {result['layers']} layers" if result["weights"] == "random" else ""
    return (
        f"{result['model']}{cut}, {result['weights']} weights: {row['expert_dtype']} experts, "
        f"{row['dense_dtype']} elsewhere, {result['routing_kind']}\n"
        f"Per token: ms, MB moved, floor (the least ms possible); {_repetitions(row)}"
    )


def _repetitions(row: dict[str, Any]) -> str:
    count = row["repetitions"]
    return "1 repetition" if count == 1 else f"{count} repetitions"


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    tokens = row["repetitions"] * row["tokens"]
    accelerated = has_slots(row["accelerator"])
    return (
        row["test"],
        row["system"],
        f"{row['cache_ratio']:.0%}" if accelerated else None,
        f"{row['tokens_per_s']:.1f}",
        None if row["stdev"] is None else f"{row['stdev']:.1f}",
        f"{row['ms_per_token']:.2f}",
        None if row["hit_rate"] is None else f"{row['hit_rate']:.0%}",
        f"{row['bytes'] / tokens / 1e6:.1f}" if accelerated else None,
        f"{row['floor_ms']:.2f}",
        f"{row['floor_ratio']:.2f}",
    )


def _overheads(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Overheads of decode rows: in a prompt, grouping hundreds of tokens counts, too."""
    decoding = [row for row in rows if row["test"].startswith("tg")]
    for row in decoding:
        where = f": {row['test']}, {_label(row)}" if len(decoding) > 1 else ""
        yield (
            f"around a layer's experts: {row['around_experts_us']:.0f} us "
            f"(engine {row['overhead_us_per_layer']:.0f}, router {row['router_us']:.0f}){where}"
        )


def _gates(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What gates have done, and gained over the whole model where that ran, too."""
    for row in rows:
        for title, words in gate_lines(row["gate"]):
            yield f"{title}: {words}: {row['test']}, {_label(row)}"


def _turns(result: dict[str, Any]) -> Iterator[str]:
    """Lines of a bench in turns: ratios within rounds."""
    first = result["rows"][0]
    for each in result["turns"] or ():
        words = f"{_spread(each['times'])} x {_label(first)}"
        if each["over_product"] is not None:
            words += f", {_spread(each['over_product'])} of the product of gate and policies alone"
        yield f"in turns: {each['test']}, {_label({**first, **each})} is {words}"


def _spread(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"


def prices(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What batch invariance costs: a test in turns over the same test in batches."""
    batched = {(row["test"], row["system"], row["cache_ratio"]): row for row in rows}
    for row in rows:
        plain = (row["test"], row["system"].removesuffix(BATCH_INVARIANT), row["cache_ratio"])
        if plain[1] != row["system"] and plain in batched:
            times = row["ms_per_token"] / batched[plain]["ms_per_token"]
            yield f"batch-invariant: {row['test']} takes {times:.2f} times as long"


def _label(row: dict[str, Any]) -> str:
    share = f" at {row['cache_ratio']:.0%}" if has_slots(row["accelerator"]) else ""
    return f"{row['system']}{share}"


def _load(load: dict[str, Any]) -> str:
    words = f"loaded in {load['seconds']:.1f} s"
    if load["peak_over_final"] is None:
        return words
    final, ratio = load["final_bytes"] / GB, load["peak_over_final"]
    return f"{words}; memory {final:.2f} GB, while loading at most {ratio:.2f} x that"


def _rates(rates: dict[str, Any]) -> str:
    words = [f"CPU: {_rate(rates['cpu'])}"]
    if rates["accelerator"] is not None:
        words.append(f"accelerator: {_rate(rates['accelerator'])}")
        words.append(f"link: {rates['link_gb_s']:.2f} GB/s")
    return f"measured here: {'; '.join(words)}"


def _rate(rates: dict[str, Any]) -> str:
    threads = "1 thread" if rates["threads"] == 1 else f"{rates['threads']} threads"
    reads, products = f"{rates['read_gb_s']:.1f} GB/s read", f"{rates['tflops']:.3g} TFLOPS"
    unit = f" ({rates['unit']})" if rates["unit"] else ""
    return f"{threads}, {reads}, {products}{unit}"


_OF_THE_RUN = ("model", "layers", "weights", "routing_kind")  # repeated in every row


def print_as(form: str, result: Mapping[str, Any]) -> None:
    """`result` is what `bench --json` prints."""
    if form == "json":
        print_json(result)
    elif form == "csv":
        shared = {name: result[name] for name in _OF_THE_RUN}
        click.echo(as_csv({**shared, **row} for row in result["rows"]), nl=False)
    elif form == "md":
        click.echo(_markdown(result), nl=False)
    else:
        print_bench(dict(result))


def _markdown(result: Mapping[str, Any]) -> str:
    """The table, with what `bench` says above it in columns of its own."""
    own = ("model", "experts", "weights", "routing")
    first = result["rows"][0]
    said = (result["model"], first["expert_dtype"], result["weights"], result["routing_kind"])
    return as_markdown((*own, *COLUMNS), [(*said, *row) for row in table_rows(result)])
