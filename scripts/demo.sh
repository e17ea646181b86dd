#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Train on the digits with 4 ranks and three ways to synchronize; `make demo` calls this.
#   scripts/demo.sh              one seed: build/demo/result.json and result.png
#   scripts/demo.sh --seeds 5    mean and spread over seeds: build/demo/seeds.json and seeds.png
#   scripts/demo.sh --help       further options, such as --data for MNIST's files
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-$root/build}
python=$build/venv/bin/python
trainer=$build/bin/trainer

for needed in "$python" "$trainer"; do
    if [ ! -x "$needed" ]; then
        echo "demo: $needed is missing; 'make demo' sets up and builds what is needed" >&2
        exit 1
    fi
done

exec "$python" -B "$root/examples/demo/demo.py" --trainer "$trainer" --folder "$build/demo" "$@"
