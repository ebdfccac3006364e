export PYTHONPATH=$PWD/src:$PWD XDG_CACHE_HOME=/tmp/cache
if [ ! -e build/ext/_native*.so ]; then (cmake -S native -B build/ext -DMOESAIC_PYTHON=ON -DPython_EXECUTABLE=$(which python3) && cmake --build build/ext --parallel 16) > /tmp/build.log 2>&1 || tail -20 /tmp/build.log; fi
cp build/ext/_native*.so src/moesaic/kernels/; cp build/ext/_conductor*.so src/moesaic/machines/cuda/
(cd tests/cuda; timeout 90 python -m pytest -q -p no:cacheprovider test_decode_step.py -n 0 2>&1 | grep -E "^E  |passed|failed|FAILED|\[100" | cut -c1-200 | tail -22)
timeout 40 python benchmarks/.profile.py bf16 2>&1 | grep -E "gap" | sed -n 13,25p
timeout 60 python -m benchmarks.cuda_decode --layers 24 --dtypes bf16 --systems hybrid,static-experts --tokens 80 --contended 2>&1 | tail -7
timeout 60 python -m benchmarks.cuda_decode --layers 24 --dtypes int4 --systems hybrid,static-experts --tokens 80  --contended 2>&1 | tail -7
