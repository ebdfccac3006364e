import sys, torch, json
from collections import defaultdict
from benchmarks.cuda_decode import *

machine = Machine("qwen3-30b-a3b", 4, sys.argv[1], 16, 512)
case = Case("decode", 60, 1)
source = choose_routing("synthetic", machine.spec, [case], 1).of(case)
every = decode_steps(source, 1, skip_tokens=PROFILE_TOKENS, wrap=True)
steps = [next(every) for _ in range(60)]
s, c, p = SYSTEMS["static-experts"]
run = Run(machine, PolicySet.of(schedule=s, cache=c, prefetch=p), 0.75, steps)
print(run.measure())
from torch.profiler import profile, ProfilerActivity

with torch.cuda.stream(run.stream):
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as prof:
        for n in range(30, 34):
            run._once(n, run.graph.replay)
        torch.cuda.synchronize()
ev = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA]
ev.sort(key=lambda e: e.time_range.start)
last = None
rows = []
for e in ev:
    rows.append((e.time_range.start, e.time_range.end, e.name[:40]))
# print the last step's sequence
start = (
    max(
        i
        for i, r in enumerate(rows)
        if r[2].startswith("fetch") and (i == 0 or r[0] - rows[i - 1][1] > 50)
    )
    if rows
    else 0
)
names = [i for i, r in enumerate(rows) if "indexSelect" in r[2] or "index_select" in r[2].lower()]
if names:
    start = names[-1]
t0 = rows[start][0]
for r in rows[start : start + 64]:
    print(
        f"{r[0] - t0:9.1f} {r[1] - r[0]:7.1f} gap {0 if last is None else r[0] - last:7.1f} {r[2]}"
    )
    last = r[1]
