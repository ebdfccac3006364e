"""`moesaic batch` with several numbers of sequences, beside the same requests from clients of
`moesaic serve`, on the bundled model and without loading it:

python -m benchmarks.batch_speed [--requests N] [--sequences N,..]"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.request import Request, urlopen

CALL = "from moesaic.cli.main import main; main()"
CLIENTS = 64
URL = "/v1/chat/completions"


def bodies(count: int) -> list[dict[str, Any]]:
    texts = (
        f"Ann has {at} pens and buys {at % 9 + 3} more. How many has she?" for at in range(count)
    )
    return [
        {"messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0}
        for text in texts
    ]


def served(asked: list[dict[str, Any]]) -> float:
    """Tokens per second, from the first request to the last answer."""
    program = [sys.executable, "-c", CALL, "serve", "--port", "0", "--log", "json"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = ""
        while not address:
            line = server.stderr.readline()
            address = line.partition(" at ")[2].partition("/v1:")[0] if "/v1:" in line else ""

        def ask(body: dict[str, Any]) -> int:
            with urlopen(Request(address + URL, json.dumps(body).encode())) as response:
                written: int = json.load(response)["usage"]["completion_tokens"]
                return written

        with ThreadPoolExecutor(CLIENTS) as clients:
            ask(asked[0])
            started = perf_counter()
            tokens = sum(clients.map(ask, asked))
            rate = tokens / (perf_counter() - started)
        server.terminate()
        server.stderr.read()
    return rate


def batched(asked: list[dict[str, Any]], sequences: int, folder: Path) -> float:
    source, out = folder / "in.jsonl", folder / f"out-{sequences}.jsonl"
    line = {"method": "POST", "url": URL}
    lines = (line | {"custom_id": str(at), "body": body} for at, body in enumerate(asked))
    source.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    words = ["batch", source, "-o", out, "--max-sequences", sequences, "--json"]
    program = [sys.executable, "-c", CALL, *map(str, words)]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    rate: float = json.loads(done.stdout)["generated_tokens_per_s"]
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--sequences", default="8,32,64,128")
    asked = parser.parse_args()
    requests = bodies(asked.requests)
    print(f"serve, {CLIENTS} clients: {served(requests):.0f} tokens/s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for sequences in map(int, asked.sequences.split(",")):
            rate = batched(requests, sequences, Path(folder))
            print(f"batch, {sequences} sequences: {rate:.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
