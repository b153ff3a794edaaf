#!/usr/bin/env bash
# On a machine with a GPU: see what is installed, run every test that needs one, measure. One call, under eight minutes.
# The Python is that of .venv (`make book` makes it) or $PYTHON; it needs the extras gpu and benchmarks, and pytest.
# Ends with an error if a test fails or the measurement stops early; what was measured stands in results/gpu.json.
# It asks no network for anything. On a machine that has torch and nothing else, give it the rest in a folder:
#   python3 -m pip install --target FOLDER array-api-compat threadpoolctl tqdm pytest pytest-xdist hypothesis pyyaml \
#     array-api-strict
#   PYTHON=python3 PYTHONPATH=FOLDER benchmarks/gpu_all.sh --output FILE
# On a copy of the files, without their history, COMMIT names what is measured.
set -u
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
all=${SECONDS_FOR_ALL:-465} for_tests=${SECONDS_FOR_TESTS:-180}

"$python" - <<'PYTHON' || exit 1
import importlib
import re
import sys
from pathlib import Path

least = dict(re.findall(r'"([\w-]+?)(?:-cuda\w+)?>=([\d.]+)', Path("pyproject.toml").read_text(encoding="utf-8")))
parts = lambda version: [int(n) for n in re.findall(r"\d+", version)[:3]]
wrong, missing = [], []
for name in ("numpy", "array-api-compat", "threadpoolctl", "tqdm", "pytest", "hypothesis", "yaml", "torch", "triton", "cupy"):
    try:
        version = getattr(importlib.import_module(name.replace("-", "_")), "__version__", "0")
    except ImportError:
        (missing if name in ("triton", "cupy") else wrong).append(name)
        continue
    print(name, version, end=", ")
    if parts(version) < parts(least.get(name, "0")):
        wrong.append(f"{name} {least[name]}")
print("Python", sys.version.split()[0])
if wrong:
    sys.exit(f"Needed, in .venv or in a folder that PYTHONPATH names: {', '.join(wrong)}.")
if missing:
    print(f"Not installed, so left out: {', '.join(missing)}.")
torch = sys.modules["torch"]
if not torch.cuda.is_available():
    sys.exit("No GPU here: there is nothing to test or to measure.")
for place in range(torch.cuda.device_count()):
    of = torch.cuda.get_device_properties(place)
    print(f"{of.name}, {of.total_memory / 2**30:.0f} GiB, capability {of.major}.{of.minor}, CUDA {torch.version.cuda}")
PYTHON

echo "Testing on the GPU (at most $for_tests s) ..."
tests=()
for name in gpu fused fused_tiles fused_torch arrays attention multi_head ops softmax linear heads devices diagnose torch_sdpa \
  hvp layers norms own_op recurrent rotary sigmoid top_k; do
  for file in tests/*/"test_$name.py"; do [ -f "$file" ] && tests+=("$file"); done
done
at_once=$("$python" -c "import xdist" 2>/dev/null && echo "-n 14")
export JAX_PLATFORMS=cpu # else JAX takes most of the GPU's memory for itself
# shellcheck disable=SC2086 # $at_once is two words
timeout --foreground --signal INT --kill-after 20 "$for_tests" "$python" -m pytest "${tests[@]}" $at_once -q -p no:cacheprovider --continue-on-collection-errors --durations 15 -W default \
  -k "CUDA or CuPy or GPU or gpu or fused"
tested=$?
[ $tested -ge 124 ] && echo "The tests were cut off after $for_tests s."

budget=$((all - SECONDS - 30))
echo "Measuring for $budget s ..."
timeout --foreground --kill-after 20 $((budget + 20)) "$python" benchmarks/gpu.py --budget "$budget" "$@"
measured=$?
echo "Done in $SECONDS s: tests $([ $tested -eq 0 ] && echo passed || echo FAILED)," \
  "measurement $([ $measured -eq 0 ] && echo complete || echo stopped)."
exit $((tested ? tested : measured))
