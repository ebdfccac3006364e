"""The demo's first comparison: the bundled model here and in stock transformers, on the same
threads, each alone in its process."""

from __future__ import annotations

from moesaic.cli.run.demo_runs import ON_CPU
from moesaic.cli.shared.engine_options import one_text_settings

CASES = (64,), (48,)  # tokens read, tokens written
ROUNDS = 2


def compare_with_stock() -> None:
    from moesaic.cli.study.bench_against import against_result, print_against, run_against
    from moesaic.lab.against.ours import MeasuredModel
    from moesaic.lab.bench.bench_configs import plan_configs
    from moesaic.lab.bench.bench_model import from_folder
    from moesaic.lab.bench.cases import make_cases
    from moesaic.lab.bench.replayed_routing import OWN
    from moesaic.models.bundled_model import default_model

    folder, cases = default_model(), make_cases(*CASES)
    found = from_folder(folder)
    (config,) = plan_configs(found.spec, [("moesaic", one_text_settings(ON_CPU))], cases)
    measured = MeasuredModel(str(folder), None, None, OWN, cases)
    rows = run_against(("transformers",), found, config, measured, ROUNDS)
    print_against(against_result(rows, found, config, "moesaic demo"), rows)
