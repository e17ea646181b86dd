#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks of scripts/gpu_ddp.py on one GPU, each as if on a host of its own (NCCL_HOSTID):
#     scripts/gpu_ddp.sh [command before python...]
set -uo pipefail
cd "$(dirname "$0")/.."
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1
MASTER_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
export MASTER_PORT
pids=()
for rank in 0 1; do
    RANK=$rank NCCL_HOSTID=msdu-$rank "$@" python3 scripts/gpu_ddp.py train &
    pids+=($!)
done
code=0
for pid in "${pids[@]}"; do
    wait "$pid" || code=$?
done
exit $code
