#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Layout with clang-format 14, then clang-tidy 14, one file per call.
set -euo pipefail
cd "$(dirname "$0")/.."

sources() {
    find include src test bench examples -name "*.[ch]" -o -name "*.cc" | sort
}

# Only what is compiled by itself, and so has an entry in the compile commands.
compiled_sources() {
    sources | grep -E '\.(c|cc)$' | grep -vE '^test/(abi/consumer/|backend/mpi_probe.c)'
}

sources | xargs clang-format-14 --dry-run -Werror
cmake --preset dev >/dev/null
compiled_sources | xargs -P "$(nproc)" -I{} sh -c \
    'clang-tidy-14 --quiet -p build/dev {} 2>/dev/null || { echo "clang-tidy: {}"; exit 1; }'
echo "lint: clean"
