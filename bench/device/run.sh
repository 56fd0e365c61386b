#!/usr/bin/env bash
# What only a device can show: correctness of every kernel on it, then its tables. README.md beside this file.
set -euo pipefail

python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "bench/device/run.sh: Python 3.10 or newer is needed; \$PYTHON names it when it is not in PATH" >&2
  exit 1
fi
for module in numpy pybind11; do
  if ! "$python" -c "import $module" 2>/dev/null; then
    echo "bench/device/run.sh: $(command -v "$python") has no $module: pip install numpy pybind11 cmake ninja" >&2
    exit 1
  fi
done
exec "$python" "$(dirname "$0")/run.py" "$@"
