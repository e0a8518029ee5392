#!/usr/bin/env bash
# Verify the GPU kernels on the GPU of this machine, in less than 9 minutes.
#
#     scripts/gpu_verify.sh OUT [WHEELS [STEP...]]
#
# The steps, in this order, of which one can name some; each has its own time limit:
#
#     report       results.json: every check, in the default profile, and goldens.tar.gz
#     chip_record  chip.npz: the bits of products, conversions and functions
#     gpu_kernels  gpu_kernels.json: times beside cuBLAS, cuDNN and the kernels that come with JAX
#     published    published.json: every check on the kernels that come with JAX
#     cross        cross.json: the GPU compared with the GPU simulator, call by call
#     answers      answers.json: what the GPU answers to the racy kernels of tests/broken
#
# OUT gets these files, what each step printed as STEP.txt, and versions.txt. A step that is stopped
# keeps what it had finished. The exit status is that of the first step that failed, and 0 if none
# did.
#
# WHEELS is a folder of wheels to put before what the machine has; "" for none. It is needed where
# nothing can be fetched and something is missing, which this script names. Make it elsewhere, for
# the Python of the machine:
#
#     pip download --dest WHEELS --only-binary=:all: --no-deps --python-version 3.12 \
#         greenlet pluggy rich safetensors
#
# PYTHON is the interpreter, by default python3; it has jax for CUDA, pytest, hypothesis and
# pytest-xdist, and need not have pytest-pallas.
set -uo pipefail

out=${1:?usage: scripts/gpu_verify.sh OUT [WHEELS [STEP...]]}
wheels=${2:-}
shift "$(($# < 2 ? $# : 2))"
chosen=" $* "
python=$(realpath -s "$(command -v "${PYTHON:-python3}")")
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -z "$wheels" ] || wheels=$(cd "$wheels" && pwd)
cd "$(dirname "$0")/.."
root=$PWD

site=
if [ -n "$wheels" ]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$wheels"/*.whl || exit 1
fi

export PYTHONPATH=$root${site:+:$site}${PYTHONPATH:+:$PYTHONPATH}
# Several processes share the GPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
"$python" - > "$out/versions.txt" <<'PYTHON' || exit 1
import importlib, sys
missing = []
for name in ("absl", "flatbuffers", "greenlet", "hypothesis", "jax", "numpy", "pytest", "rich",
             "safetensors", "xdist"):
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(name)
if missing:
    sys.exit(f"missing: {', '.join(missing)}; give a folder of wheels, see the top of this script")
import platform, subprocess, time, jax, jaxlib
print("date", time.strftime("%F", time.gmtime()))
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
print("commit", commit.stdout.strip() or "unknown")
print("python", platform.python_version())
print("jax", jax.__version__, "jaxlib", jaxlib.__version__)
for device in jax.devices("gpu"):
    print("device", device.device_kind, " ".join(device.client.platform_version.split()))
PYTHON
cat "$out/versions.txt"

pallas=(-p no:benchmark -p no:cacheprovider)
if ! "$python" -c 'import importlib.metadata as m; m.version("pytest-pallas")' 2> /dev/null; then
  pallas+=(-p pytest_pallas.plugin)  # not installed: pytest does not find the plugin
fi

status=0
step() {  # step SECONDS NAME COMMAND...: at most so long; its output is kept, and shown
  local seconds=$1 name=$2
  shift 2
  [[ $chosen =~ ^\ *$ || $chosen == *" $name "* ]] || return 0
  printf '\n=== %s (%s)\n' "$name" "$(date +%T)"
  timeout --kill-after=5 "$seconds" "$@" 2>&1 | tee "$out/$name.txt"
  local code=${PIPESTATUS[0]}
  if [ "$code" -ne 0 ]; then
    echo "$name: exit status $code"
    [ "$status" -ne 0 ] || status=$code
  fi
}

suite=(--pallas-suite=reference_kernels.mosaic_gpu,reference_kernels.portable)
step 115 report "$python" -m pytest "${pallas[@]}" -n 12 "${suite[@]}" \
  --pallas-backend=gpu "--pallas-results=$out/results.json" \
  --pallas-golden=record "--pallas-golden-dir=$out/goldens"
if [ -d "$out/goldens" ]; then
  tar -C "$out" -czf "$out/goldens.tar.gz" goldens && rm -r "$out/goldens"
fi
step 25 chip_record "$python" scripts/chip_record.py write "$out/chip.npz" --processes 12
step 165 gpu_kernels "$python" benchmarks/gpu_kernels.py --rounds 15 --limit 25 \
  "--json=$out/gpu_kernels.json"
step 60 published env -C examples/published "$python" -m pytest "${pallas[@]}" -n 12 \
  --pallas-suite=published.mosaic_gpu,published.triton --pallas-backend=gpu \
  "--pallas-results=$out/published.json"
step 30 cross "$python" -m pytest "${pallas[@]}" -n 14 "${suite[@]}" \
  --pallas-backend=gpu-sim,gpu --pallas-profile=quick --pallas-checks=cross \
  --pallas-max-examples=1 "--pallas-results=$out/cross.json"
step 60 answers "$python" scripts/chip_answers.py "$out/answers.json" --processes 12
exit "$status"
