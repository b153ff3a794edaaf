#!/usr/bin/env bash
# On a machine with a GPU: see what is installed, run every test that needs one, measure. One call, under eight minutes.
# The Python is that of .venv (`make book` makes it) or $PYTHON; it needs the extras gpu and benchmarks, and pytest.
# Ends with an error if a test fails or the measurement stops early; what was measured stands in results/gpu.json.
set -u
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
all=${SECONDS_FOR_ALL:-465} for_tests=${SECONDS_FOR_TESTS:-180}

"$python" - <<'PYTHON' || exit 1
import importlib
import sys

found, missing = {}, []
for name in ("numpy", "array_api_compat", "threadpoolctl", "tqdm", "pytest", "hypothesis", "torch", "triton", "cupy"):
    try:
        found[name] = getattr(importlib.import_module(name), "__version__", "?")
    except ImportError:
        missing.append(name)
print(", ".join(f"{name} {version}" for name, version in found.items()))
if needed := [name for name in missing if name not in ("triton", "cupy")]:
    sys.exit(f"Not installed: {', '.join(needed)}.")
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
for name in gpu fused arrays attention multi_head ops softmax linear heads diagnose torch_sdpa; do
  [ -f "tests/test_$name.py" ] && tests+=("tests/test_$name.py")
done
at_once=$("$python" -c "import xdist" 2>/dev/null && echo "-n 4")
# shellcheck disable=SC2086 # $at_once is two words
timeout --foreground "$for_tests" "$python" -m pytest "${tests[@]}" $at_once -q -p no:cacheprovider --durations 5 -W default \
  -k "CUDA or CuPy or GPU or gpu or fused"
tested=$?
[ $tested -eq 124 ] && echo "The tests were cut off after $for_tests s."

budget=$((all - SECONDS - 30))
echo "Measuring for $budget s ..."
timeout --foreground --kill-after 20 $((budget + 20)) "$python" benchmarks/gpu.py --budget "$budget" "$@"
measured=$?
echo "Done in $SECONDS s: tests $([ $tested -eq 0 ] && echo passed || echo FAILED)," \
  "measurement $([ $measured -eq 0 ] && echo complete || echo stopped)."
exit $((tested ? tested : measured))
