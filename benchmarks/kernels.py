"""How fast the CPU's experts are: `python -m benchmarks.kernels` (or `make bench-kernels`).

Time, GB/s and TFLOP/s of whole layer calls, next to this machine's streaming bandwidth and
arithmetic peak (measured in between, by the same workers), PyTorch's bf16 linear layers on as many
threads, and kt-kernel where it is installed, which takes turns in a process of its own. The last
table holds the results against the goals."""

from __future__ import annotations

import sys

from moesaic.core.errors import MoesaicError
from moesaic.kernels.instruction_sets import REFERENCE, kernel_description, native


def main() -> None:
    if native() is None:
        sys.exit(
            f"there is nothing to measure; experts are computed by {kernel_description(REFERENCE)}"
        )
    from benchmarks.kernel_options import asked_for, parser
    from benchmarks.kernel_run import run
    from benchmarks.kernel_tables import show, write

    usage = parser(__doc__ or "")
    options = usage.parse_args()
    try:
        asked = asked_for(options)
        found = run(asked)
    except MoesaicError as error:
        usage.error(str(error))
    show(asked, found)
    if options.json:
        write(options.json, asked, found)


if __name__ == "__main__":
    main()
