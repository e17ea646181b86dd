#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one call on a machine that has one:
#     scripts/gpu.sh [folder with NCCL's include and lib, or "" [folder with CIFAR-100]]
# Builds the module nccl, runs its conformance suite with several ranks on the one GPU, the same
# under compute-sanitizer where there is one, the speed of kernels, PyTorch DDP under `msdu run`, CUDA
# tensors through the Python package; with CIFAR-100, trainings of ResNet-18 on 4 ranks: GPU_EPOCHS
# (10) epochs with three seeds by DDP, at fixed intervals, by the default policy, each at most
# GPU_TRAIN_S (900) seconds. Results go to bench/results/gpu-*.json, with a line for each case:
# passed, failed, or why it did not run.
# Several ranks on a GPU: each process says that it is a host of its own (NCCL_HOSTID) and talks over
# sockets on lo. NCCL does not promise that this works, so every case has a time limit.
set -uo pipefail
cd "$(dirname "$0")/.."

build=build/gpu
results=bench/results
nccl_root=${1:-${NCCL_ROOT:-}}
cifar=${2:-}
limit_s=300
train_s=${GPU_TRAIN_S:-900}
cases=()

note() { # name, outcome, seconds
    cases+=("  {\"case\": \"$1\", \"outcome\": \"$2\", \"seconds\": $3}")
    printf '%-28s %s (%s s)\n' "$1" "$2" "$3"
}

run_case() { # name command...
    local name=$1 began=$SECONDS code=0
    shift
    timeout --kill-after=10 "$limit_s" "$@" >"$build/$name.log" 2>&1 || code=$?
    case $code in
    0) note "$name" passed $((SECONDS - began)) ;;
    77) note "$name" skipped $((SECONDS - began)) ;;
    124 | 137) note "$name" "no end within $limit_s s" $((SECONDS - began)) ;;
    *) note "$name" "failed, status $code: see $build/$name.log" $((SECONDS - began)) ;;
    esac
    return $code
}

if ! nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; then
    echo "gpu: no GPU here" >&2
    exit 77
fi
if [ -z "$nccl_root" ] && [ ! -e /usr/include/nccl.h ]; then
    scripts/setup.sh nccl || exit 1
    nccl_root=$PWD/build/nccl
fi
mkdir -p "$build"
cmake -B "$build" -DCMAKE_BUILD_TYPE=Release -DMSDU_WITH_NCCL=ON -DMSDU_WITH_GLOO=OFF \
    -DMSDU_BUILD_TESTS=ON ${nccl_root:+-DNCCL_ROOT="$nccl_root"} >"$build/configure.log" &&
    cmake --build "$build" --parallel >"$build/build.log" 2>&1 || {
    echo "gpu: the build failed, see $build/*.log" >&2
    exit 1
}

export MSDU_MODULE_PATH=$PWD/$build/lib MSDU_TEST_BACKEND=nccl
export LD_LIBRARY_PATH=${nccl_root:+$nccl_root/lib:}${LD_LIBRARY_PATH:-}
export NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NET=Socket NCCL_P2P_DISABLE=1 \
    NCCL_SHM_DISABLE=1 NCCL_MAX_CTAS=2

CK_RUN_CASE=data run_case conformance_data "$build/test/test_backend"
CK_RUN_CASE=faults run_case conformance_faults "$build/test/test_backend"
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        run_case "sanitizer_$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
            "$build/bin/gpu_kernels" nccl 4
    done
else
    note sanitizer "no compute-sanitizer here" 0
fi
if run_case kernels "$build/bin/gpu_kernels" nccl 256; then
    cp "$build/kernels.log" "$results/gpu-kernels.json"
fi
if run_case passthrough "$build/bin/msdu" run -- "$build/bin/passthrough_nccl"; then
    cp "$build/passthrough.log" "$results/gpu-passthrough.json"
fi

# PyTorch's own DDP over NCCL, as its author runs it and under `msdu run`: the same data, so float32
# has the same losses, and the default is near them and says what it took.
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    run_case ddp_plain scripts/gpu_ddp.sh
    MSDU_WIRE=float32 run_case ddp_float32 scripts/gpu_ddp.sh "$build/bin/msdu" run --
    run_case ddp_int4 scripts/gpu_ddp.sh "$build/bin/msdu" run --
    run_case ddp_compare python3 scripts/gpu_ddp.py compare \
        "$build/ddp_plain.log" "$build/ddp_float32.log" "$build/ddp_int4.log"
    # CUDA tensors through the package: parity with DDP and averaging by torch, checkpoints, the end
    export MSDU_LIBRARY=$PWD/$build/lib/libmsdu.so
    limit_s=900 run_case python_tensors python3 python_shim/tests/run.py test_gpu.py
    # accuracy at equal samples; seeds outermost, so that what an early end leaves can be compared
    for seed in 1 2 3; do
        for method in ddp ours-h4-float32 ours-h16-float32 ours; do
            if [ -z "$cifar" ]; then
                note "resnet18_${method}_s$seed" "no folder with CIFAR-100 was named" 0
                continue
            fi
            record=$results/gpu-resnet18-$method-s$seed.json
            rm -f "$record"
            limit_s=$train_s run_case "resnet18_${method}_s$seed" python3 bench/training/train.py \
                --data "$cifar" --model resnet18 --method "$method" --ranks 4 --device cuda \
                --epochs "${GPU_EPOCHS:-10}" --seed "$seed" --json "$record"
        done
    done
else
    note pytorch "no PyTorch with CUDA here" 0
fi

{
    printf '{"gpu": "%s", "commit": "%s", "cases": [\n' \
        "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)" \
        "$(git describe --always --dirty)"
    (IFS=$'\n'; printf '%s\n' "${cases[*]}" | sed '$!s/$/,/')
    printf ']}\n'
} >"$results/gpu-cases.json"
