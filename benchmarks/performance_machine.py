"""The machine that is measured, in a process of its own: `python -m benchmarks.performance_machine`
prints it as JSON, with the rate at which its cores stream memory and their peak."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import torch

from moesaic.engine.engine_settings import EngineSettings
from moesaic.hardware.host import this_host
from moesaic.kernels.instruction_sets import choose
from moesaic.lab.bench.rates import measure_rates

_ASK_GPU = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


def machine() -> dict[str, Any]:
    host, rates = this_host(), measure_rates(EngineSettings(accelerator="none"), "bf16").cpu
    gpu, driver = _gpu()
    return {
        "cpu": host.cpu, "cores": host.cores, "isa": list(host.isa), "kernels": choose("auto"),
        "memory_gb": round((host.memory_bytes or 0) / 1e9),
        "stream_gb_s": round(rates.read_gb_s, 1), "tflops": round(rates.tflops, 2),
        "multiplies": rates.unit,
        "gpu": gpu, "driver": driver, "torch": str(torch.__version__),
    }  # fmt: skip


def _gpu() -> tuple[str | None, str | None]:
    if shutil.which(_ASK_GPU[0]) is None:
        return None, None
    done = subprocess.run(_ASK_GPU, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return None, None
    name, _, driver = lines[0].partition(",")
    return name.strip(), driver.strip()


if __name__ == "__main__":
    print(json.dumps(machine()))
