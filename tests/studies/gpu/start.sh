#!/usr/bin/env bash
# Run the steps of gpu_driver.py in this copy of the tree: start.sh RESULTS SECONDS [options of gpu_driver.py].
# Nothing is downloaded: files of `make pack-gpu` in build/gpu are used, if they exist. PY names the interpreter.
set -u
results=$1 budget=$2 started=$SECONDS; shift 2
py=${PY:-python3} pack=build/gpu work=${GPU_WORK:-/tmp/penstock-gpu}
if [[ " $* " != *" --device "* ]] && [ ! -e /dev/nvidia0 ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo 'bench-gpu: no NVIDIA GPU here (make bench measures the CPU); --device cpu tries the steps that run without one' >&2
  exit 1
fi
mkdir -p "$results" "$work" build/path/penstock
lacks() { "$py" -c 'import sys; from importlib.util import find_spec as f; sys.exit(all(map(f, sys.argv[1:])))' "$@"; }
exec > >(tee -a "$results/log.txt") 2>&1
if [ ! -e .git ] && [ -f $pack/.commit ]; then cp $pack/.commit .commit; fi
export PYTHONPATH=$work/site:$PWD/build/path PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$work/user-cache}
if ls $pack/wheels/*.whl >/dev/null 2>&1 && lacks simplejpeg msgspec isal filelock; then
  "$py" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$work/site" $pack/wheels/*.whl || echo 'bench-gpu: pip failed; see above'
fi
dali=
if [ -f $pack/dali.tar.xz ] && ! "$py" -c 'import nvidia.dali' 2>/dev/null; then
  dali=$work/dali
  [ -d "$dali" ] || ("$py" -c 'import sys, tarfile; tarfile.open(sys.argv[1], "r|xz").extractall(sys.argv[2], filter="tar")' \
    $pack/dali.tar.xz "$dali.part" && mv "$dali.part" "$dali") &  # on its own processor, during the first steps
fi
library=pipelines/native/libpenstock.so
[ -f $library ] || [ ! -f $pack/libpenstock.so ] || cp $pack/libpenstock.so $library
# A carried library may be for another processor or a newer libc. Without a library, images are decoded in Python.
"$py" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$PWD/$library" 2>/dev/null || { rm -f $library; "$py" pipelines/native/build.py; }
for part in pipelines loaders bench; do ln -sfn ../../../$part build/path/penstock/$part; done
# A toolkit's nvJPEG must not precede that of DALI's wheels. The rest stays: the driver may only be on this path.
kept=
IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
for folder in "${folders[@]}"; do
  case $folder in */cuda*) compgen -G "$folder/libcuda.so*" >/dev/null || continue ;; esac
  kept=${kept:+$kept:}$folder
done
[ -z "${LD_LIBRARY_PATH:-}" ] || export LD_LIBRARY_PATH=$kept
photos=()
[ ! -d $pack/photos ] || photos=(--data "$pack/photos")
demo() { [ -d "$work/demo/train" ] || timeout 100 "$py" -m penstock.bench.cli synth "$work/demo" >/dev/null || echo 'bench-gpu: no demo set'; }
if [ ${#photos[@]} = 0 ] && [[ " $* " != *" --data "* ]]; then demo; else demo & fi
"$py" tests/studies/gpu/gpu_driver.py --results "$results" --work "$work" --dali "$dali" \
  --budget $((budget - SECONDS + started)) "${photos[@]}" "$@"
