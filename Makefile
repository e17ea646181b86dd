# SPDX-License-Identifier: Apache-2.0
# Short words for a newcomer; each sets up what it needs, then calls CMake.
JOBS ?= $(shell nproc)
TEST_JOBS ?= $(shell echo $$(($$(nproc) * 3 / 2))) # tests wait for each other's ranks half of the time
PREFIX ?= /usr/local
GLOO ?= ON
OPTIONS ?= -DMSDU_WITH_GLOO=$(GLOO)

.PHONY: build test demo install clean bench-smoke settings lint asan tsan help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

build: ## the library, the command and the trainer, into build/
	scripts/setup.sh build
	cmake --preset release $(OPTIONS) -DMSDU_BUILD_TESTS=OFF
	cmake --build build -j $(JOBS)

test: ## build and run all tests
	scripts/setup.sh test
	cmake --preset release $(OPTIONS) -DMSDU_BUILD_TESTS=ON
	cmake --build build -j $(JOBS)
	ctest --test-dir build -j $(TEST_JOBS) --output-on-failure

demo: ## train on real data with 4 ranks, three ways, and compare
	scripts/setup.sh demo
	cmake --preset release $(OPTIONS) -DMSDU_BUILD_TESTS=OFF
	cmake --build build -j $(JOBS)
	scripts/demo.sh

install: build ## install to PREFIX, default /usr/local
	cmake --install build --prefix $(PREFIX)

bench-smoke: build ## every bench once, small
	build/bin/msdu bench kernels --smoke
	build/bin/msdu bench hooks --smoke
	build/bin/msdu bench allreduce --smoke
	build/bin/msdu bench overlap --smoke
	build/bin/msdu bench scale --smoke
	@if [ -x build/venv/bin/python ]; then set -x; \
	    build/venv/bin/python bench/training/converge.py --smoke && \
	    build/venv/bin/python bench/pipeline/compare.py --smoke; fi

asan tsan: ## all tests under address and undefined, or thread sanitizer
	scripts/setup.sh test
	cmake --preset $@ $(OPTIONS)
	cmake --build build/$@ -j $(JOBS)
	ctest --test-dir build/$@ -j $(TEST_JOBS) --output-on-failure

settings: ## what is made from src/config/settings.inc
	python3 doc/settings_table.py src/config/settings.inc include/msdu/config.h
	$(MAKE) build
	python3 doc/settings_table.py build/bin/msdu doc/settings.md
	python3 doc/settings_table.py build/bin/msdu doc/attach.md

lint: ## clang-format and clang-tidy
	scripts/setup.sh ci
	scripts/lint.sh

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z -]*\):[^#]*## /\1\t/p' $(firstword $(MAKEFILE_LIST))
