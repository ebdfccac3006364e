export PYTHONPATH=$PWD/src:$PWD XDG_CACHE_HOME=/tmp/cache
if [ ! -e build/ext/_native*.so ]; then (cmake -S native -B build/ext -DMOESAIC_PYTHON=ON -DPython_EXECUTABLE=$(which python3) && cmake --build build/ext --parallel 16) > /tmp/build.log 2>&1 || tail -20 /tmp/build.log; fi
cp build/ext/_native*.so src/moesaic/kernels/; cp build/ext/_conductor*.so src/moesaic/machines/cuda/
timeout 100 python benchmarks/.profile.py bf16 2>&1 | tail -70
