#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing for a purpose: setup.sh build|test|demo|ci|nccl. Quick if nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

packages_for() {
    # The names are the same in Debian 12 and 13 and in Ubuntu 22.04 and 24.04.
    local build="build-essential cmake pkg-config python3 libgloo-dev libinih-dev libssl-dev libhiredis-dev libcjson-dev"
    local mpi="libopenmpi-dev openmpi-bin libmpich-dev mpich python3-mpi4py python3-numpy"
    case "$1" in
    build) echo "$build" ;;
    test) echo "$build $mpi check iproute2 python3-venv" ;;
    demo) echo "$build iproute2 python3-venv" ;;
    nccl) echo "build-essential cmake python3-venv" ;;
    ci) echo "$build $mpi check iproute2 python3-venv clang-14 clang-tidy-14 clang-format-14" \
        "libclang-rt-14-dev ninja-build valgrind redis-server openssl groff" ;;
    *)
        echo "usage: setup.sh build|test|demo|ci|nccl" >&2
        return 2
        ;;
    esac
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing_packages() {
    local package
    for package in "$@"; do
        is_installed "$package" || echo "$package"
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        return 1
    fi
}

# Fails with one line that names what is missing and how to get it.
install_packages() {
    local missing
    missing=$(missing_packages "$@" | tr '\n' ' ')
    [ -z "$missing" ] && return
    echo "setup: installing $missing"
    if ! as_root apt-get update -qq ||
        ! as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
        echo "setup: could not install; as root: apt-get install $missing" >&2
        return 1
    fi
}

# python_packages LIST: into the environment of this checkout, again when the list changes. Fails
# where Python's package index does not have them.
python_packages() {
    local list=$1 stamp
    stamp=build/venv/$(echo "$list" | tr / -)
    cmp -s "$list" "$stamp" && build/venv/bin/python -c "" 2>/dev/null && return
    echo "setup: Python packages of $list, into build/venv"
    build/venv/bin/python -c "" 2>/dev/null || python3 -m venv --clear build/venv
    build/venv/bin/pip install --quiet --retries 1 --requirement "$list" && cp "$list" "$stamp"
}

# Where Python's package index cannot be reached, the distribution's packages do as well.
demo_python() {
    python_packages examples/demo/requirements.txt && return
    echo "setup: no packages from Python's index; taking the distribution's"
    install_packages python3-sklearn python3-matplotlib
    python3 -m venv --clear --system-site-packages build/venv
    build/venv/bin/python -c "import sklearn, matplotlib"
    cp examples/demo/requirements.txt build/venv/examples-demo-requirements.txt
}

# The distribution's torch is too old for the package: without the index its tests are skipped.
test_python() {
    python_packages python_shim/requirements.txt ||
        echo "setup: no torch from Python's index: the tests of python_shim will be skipped" >&2
    python_packages test/attach/requirements.txt ||
        echo "setup: no mpi4py from Python's index: it is tested over Open MPI only" >&2
}

# NCCL as its Python package, headers and library: build/nccl is its folder, for NCCL_ROOT.
nccl() {
    [ -e build/nccl/include/nccl.h ] && return
    python3 -m venv --clear build/nccl-venv
    build/nccl-venv/bin/pip install --quiet --retries 1 nvidia-nccl-cu13==2.28.9
    ln -sfn "$(echo "$PWD"/build/nccl-venv/lib/python3*/site-packages/nvidia/nccl)" build/nccl
}

main() {
    local packages
    packages=$(packages_for "${1:-}")
    if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
        install_packages $packages
    else
        echo "setup: neither Debian nor Ubuntu: please install yourself what Debian calls $packages"
    fi
    case "$1" in
    demo) demo_python ;;
    test) test_python ;;
    ci) demo_python && test_python ;;
    nccl) nccl ;;
    esac
}

main "$@"
