export PYTHONPATH=$PWD/src:$PWD XDG_CACHE_HOME=/tmp/cache
if [ ! -e build/ext/_native*.so ]; then (cmake -S native -B build/ext -DMOESAIC_PYTHON=ON -DPython_EXECUTABLE=$(which python3) && cmake --build build/ext --parallel 16) > /tmp/build.log 2>&1 || tail -20 /tmp/build.log; fi
cp build/ext/_native*.so src/moesaic/kernels/; cp build/ext/_conductor*.so src/moesaic/machines/cuda/
(cd tests/cuda; timeout 120 python -m pytest -q -x -p no:cacheprovider test_decode_step.py -n 0 2>&1 | tail -15)
for d in bf16 int4; do timeout 100 python -m benchmarks.cuda_decode --layers 24 --dtypes $d --systems hybrid,best-split,static-experts --tokens 80 2>&1 | tail -11; done
