#!/usr/bin/env bash
# Verify the GPU kernels on the GPU of this machine, in less than 9 minutes.
#
#     scripts/gpu_verify.sh OUT [WHEELS]
#
# OUT gets results.json and report.txt of the suite, answers.json of the racy kernels of
# tests/broken, chip.npz of scripts/chip_record.py, cross.json of the comparison with the GPU
# simulator, gpu_kernels.json and gpu_kernels.txt of the benchmark, the goldens, and versions.txt.
# Every step has its own time limit, and what a step has written is kept.
# The exit status is that of the first step that failed, and 0 if none did.
#
# WHEELS is a folder of wheels to install in an environment of their own, beside what the machine
# has; needed where nothing can be fetched and something is missing. Make it elsewhere with:
#
#     pip download --dest WHEELS --only-binary=:all: safetensors pluggy
#
# PYTHON is the interpreter, by default python3; it has jax for CUDA, pytest, hypothesis and
# pytest-xdist, and need not have pytest-pallas.
set -uo pipefail

out=${1:?usage: scripts/gpu_verify.sh OUT [WHEELS]}
wheels=${2:-}
python=${PYTHON:-python3}
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -z "$wheels" ] || wheels=$(cd "$wheels" && pwd)
cd "$(dirname "$0")/.."

if [ -n "$wheels" ]; then
  "$python" -m venv --system-site-packages "$out/venv" || exit 1
  "$out/venv/bin/python" -m pip install --quiet --no-index --no-deps "$wheels"/*.whl || exit 1
  python=$out/venv/bin/python
fi

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
# Several processes share the GPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
pallas=(-p no:benchmark -p pytest_pallas.plugin)
if "$python" -c 'import importlib.metadata as m; m.version("pytest-pallas")' 2> /dev/null; then
  pallas=(-p no:benchmark)  # installed: pytest finds the plugin
fi

status=0
step() {  # step SECONDS NAME COMMAND...: at most so long; its output is kept, and shown
  local seconds=$1 name=$2
  shift 2
  printf '\n=== %s (%s)\n' "$name" "$(date +%T)"
  timeout --kill-after=5 "$seconds" "$@" 2>&1 | tee "$out/$name.txt"
  local code=${PIPESTATUS[0]}
  if [ "$code" -ne 0 ]; then
    echo "$name: exit status $code"
    [ "$status" -ne 0 ] || status=$code
  fi
}

"$python" - > "$out/versions.txt" <<'PYTHON' || exit 1
import platform, subprocess, jax, jaxlib
print("date", subprocess.run(["date", "-u", "+%F"], capture_output=True, text=True).stdout.strip())
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
print("commit", commit.stdout.strip() or "unknown")
print("python", platform.python_version())
print("jax", jax.__version__, "jaxlib", jaxlib.__version__)
for device in jax.devices("gpu"):
    print("device", device.device_kind, " ".join(device.client.platform_version.split()))
PYTHON
cat "$out/versions.txt"

goldens=()
if "$python" -c 'import safetensors' 2> /dev/null; then
  goldens=(--pallas-golden=record "--pallas-golden-dir=$out/goldens")
else
  echo "goldens are not recorded: safetensors is missing; see WHEELS above"
  status=1
fi

suite=(--pallas-suite=reference_kernels.mosaic_gpu,reference_kernels.portable --pallas-profile=quick)
step 120 report "$python" -m pytest "${pallas[@]}" -p no:cacheprovider -n 12 "${suite[@]}" \
  --pallas-backend=gpu "--pallas-results=$out/results.json" "${goldens[@]}"
step 60 answers "$python" scripts/chip_answers.py "$out/answers.json" --processes 12
# The bits of its products and functions, for scripts/chip_record.py compare anywhere.
step 40 chip_record "$python" scripts/chip_record.py write "$out/chip.npz" --processes 12
step 60 cross "$python" -m pytest "${pallas[@]}" -p no:cacheprovider -n 14 "${suite[@]}" \
  --pallas-backend=gpu-sim,gpu --pallas-checks=cross --pallas-max-examples=1 \
  "--pallas-results=$out/cross.json"
step 220 gpu_kernels "$python" benchmarks/gpu_kernels.py --rounds 20 "--json=$out/gpu_kernels.json"
rm -rf "$out/venv"
exit "$status"
