export PYTHONPATH=$PWD/src:$PWD XDG_CACHE_HOME=/tmp/cache
if [ ! -e build/ext/_native*.so ]; then (cmake -S native -B build/ext -DMOESAIC_PYTHON=ON -DPython_EXECUTABLE=$(which python3) && cmake --build build/ext --parallel 16) > /tmp/build.log 2>&1 || tail -20 /tmp/build.log; fi
cp build/ext/_native*.so src/moesaic/kernels/; cp build/ext/_conductor*.so src/moesaic/machines/cuda/
(cd tests/kernels && timeout 60 python -m pytest -q -p no:cacheprovider test_gpu_experts.py -n 0 2>&1 | tail -3)
timeout 60 python - <<'PY'
from benchmarks.gpu_kernels import measure
from moesaic.kernels.gpu.experts import Tuning
import itertools
for dtype in ("bf16","int8","int4"):
    rows=[]
    for t in itertools.starmap(Tuning, [(256,3,4,2),(256,4,4,2),(128,4,4,2),(128,6,4,1),(128,6,2,2),(256,4,2,2),(128,8,4,1),(128,6,4,2),(64,12,4,1)]):
        try:
            r=measure("qwen3-30b-a3b",dtype,1,tuning=t); rows.append((r["us"],r["gb_s"],tuple(t)))
        except Exception as e: print(t,repr(e)[:100])
    print(dtype,sorted(rows)[:4],sorted(rows)[-1],flush=True)
PY
for d in bf16 int4; do timeout 130 python -m benchmarks.cuda_decode --layers 24 --dtypes $d --systems hybrid,hybrid-noprefetch,best-split,two-speed,static-experts --tokens 80 2>&1 | tail -17; done
