# Set-up, the gate and the benchmark: every target works on a fresh Debian or Ubuntu machine.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The interpreter of `bench-gpu`: a GPU machine without a network uses the Python it has (PY=python3).
PY ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
RESULTS ?= bench/results
# For bench-gpu: seconds, the folder of its records, and more options, such as --only kernels,rates
# (docs/guides/gpu.md).
GPU_BUDGET ?= 540
GPU_RESULTS ?= build/gpu-records
GPU_OPTIONS ?=
# For pack-gpu: the target machine, and a folder of photos to include.
GPU_PYTHON ?= 3.12
GPU_ARCH ?= 90
GPU_PHOTOS ?=
DEMO := demo
# The demo set that `make bench` measures: generated within 20 s on two slow cores.
BENCH_DEMO := build/bench-demo-2
# The picture of the report page shows this record, drawn by a browser.
REPORT_RECORD ?= $(RESULTS)/native-cache-2-cores.json
REPORT_PICTURE ?= $(RESULTS)/report.png
# The chart of the first page.
PEERS_RECORD ?= $(RESULTS)/peers-native-2-cores.json
BROWSER ?= $(shell for name in chromium chromium-browser google-chrome; do command -v $$name && break; done)

STAMP := $(VENV)/.penstock-setup
DOCS_STAMP := $(VENV)/.penstock-docs
# The package in its import layout: `penstock/loaders -> loaders`. mypy needs it, because it does not follow
# setuptools' editable finder; bench-gpu needs it if nothing can be installed.
LINKED := build/path
WITH_LINKED = PYTHONPATH="$(CURDIR)/$(LINKED)$${PYTHONPATH:+:$$PYTHONPATH}"
LINKED_COMMAND = $(WITH_LINKED) $(PY) -c 'from penstock.bench.cli import main; main()'
# One exact torch, installed first: a version range may download another build with gigabytes of dependencies.
TORCH = $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)

# The sample stage in C. Without a compiler, a message says so, and images are decoded by the slower path.
NATIVE := pipelines/native/libpenstock.so
# A web server for the tests of remote data.
NGINX := build/nginx/usr/sbin/nginx
C_FILES := $(wildcard pipelines/native/*.[ch] tests/support/native/*.c)

# Runs $(1) silently and shows its output only if it failed.
quietly = mkdir -p build && { $(1) >build/setup.log 2>&1 || { cat build/setup.log >&2; exit 1; }; }

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup system nginx link wheel lint typecheck test docs test-matrix slurm-test format bench bench-gpu pack-gpu report-picture peers-chart image image-test clean distclean FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: system nginx $(STAMP) $(NATIVE) ## system libraries and .venv with penstock (fast if up to date)

# The PyTurboJPEG decoder uses libturbojpeg. It is optional, so only a missing `venv` is an error here. Debian's
# libturbojpeg0 is called libturbojpeg in Ubuntu.
system:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo 'setup: "$(PYTHON)" is not Python 3.10 or newer; name one that is: make setup PYTHON=python3.11' >&2; exit 1; }
	@optional=; needed=; \
	/sbin/ldconfig -p 2>/dev/null | grep -q 'libturbojpeg\.so\.0' || optional=libturbojpeg0; \
	test -x $(BIN)/python || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  needed=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	test -n "$$optional$$needed" || exit 0; \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	  echo "setup: apt-get install $$needed$${needed:+ }$$optional"; mkdir -p build; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -q >build/apt.log 2>&1; \
	  apt-cache show libturbojpeg0 >/dev/null 2>&1 || ! apt-cache show libturbojpeg >/dev/null 2>&1 || \
	    optional=$$(echo "$$optional" | sed 's/libturbojpeg0/libturbojpeg/'); \
	  apt-get install -y -q --no-install-recommends $$needed $$optional >>build/apt.log 2>&1 && exit 0; \
	  cat build/apt.log >&2; why='apt-get failed (see its output above)'; \
	else why='not root, or no apt-get'; fi; \
	echo "setup: $$why. Missing system packages; to install them:" >&2; \
	echo "    sudo apt-get install -y --no-install-recommends $$needed$${needed:+ }$$optional" >&2; \
	test -z "$$needed" || { echo "setup: cannot make $(VENV) without $$needed" >&2; exit 1; }; \
	echo 'setup: they are optional, continuing: simplejpeg decodes with its own libjpeg-turbo' >&2

# Unpacked, not installed: an installed nginx would start serving port 80. Without nginx, its tests are skipped.
nginx:
	@command -v nginx >/dev/null || test -x $(NGINX) || ! command -v apt-get >/dev/null || { \
	  mkdir -p build/nginx && cd build/nginx && { apt-get download -q nginx || { test "$$(id -u)" = 0 && \
	  apt-get update -q && apt-get download -q nginx; }; } >../nginx.log 2>&1 && dpkg -x nginx_*.deb .; } || \
	  echo 'setup: nginx cannot be downloaded, continuing: its tests will be skipped' >&2

# An editable install contains absolute paths, so a copied or moved tree is set up again.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif
$(STAMP): pyproject.toml constraints.txt | system
	@test -n '$(TORCH)' || { echo 'setup: constraints.txt pins no torch' >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo 'setup: $(VENV)'; \
	  $(call quietly,$(PYTHON) -m venv --clear $(VENV)); }
	@echo 'setup: $(TORCH)'
	@$(call quietly,$(BIN)/python -m pip install --progress-bar off -c constraints.txt '$(TORCH)' setuptools)
	@echo 'setup: penstock and its tools'
	@$(call quietly,$(BIN)/python -m pip install --progress-bar off --no-build-isolation -c constraints.txt -e '.[dev]')
	@printf '%s' '$(CURDIR)' >$@

$(NATIVE): $(wildcard pipelines/native/*.[ch]) pipelines/native/build.py
	@$(PY) pipelines/native/build.py

link: $(NATIVE) ## build/path: the package in its import layout (put it on PYTHONPATH instead of installing)
	@mkdir -p $(LINKED)/penstock
	@for part in pipelines loaders bench; do ln -sfn ../../../$$part $(LINKED)/penstock/$$part; done

# In an environment that pip creates only for the build: torch and the tools of .venv are not needed.
wheel: ## dist/penstock_loader-*.whl, to install elsewhere: pip install 'dist/...whl[hdf5,pillow]'; works without set-up
	@test -x build/wheel/bin/pip || { $(call quietly,$(PYTHON) -m venv --clear build/wheel); }
	@$(call quietly,build/wheel/bin/pip wheel --no-deps --wheel-dir dist .)
	@ls dist/penstock_loader-*.whl

lint: setup ## ruff: rules and format; clang-format
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)

# typed_calls: calls that a type checker must accept, and calls that it must refuse.
typecheck: setup link ## mypy, strict
	MYPYPATH=$(LINKED):tests/support/types $(BIN)/python -m mypy --num-workers 2 \
		-p penstock.pipelines -p penstock.loaders -p penstock.bench -m typed_calls

# Always keep Python's compiled files, for the processes that tests start.
test: export PYTHONDONTWRITEBYTECODE :=
test: lint typecheck ## the gate: lint, typecheck, every test that does not need a GPU
	$(BIN)/python -m pytest -n auto --dist loadfile --max-worker-restart 0

docs: setup link $(DOCS_STAMP) ## the documentation, build/docs/index.html; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(WITH_LINKED) $(BIN)/python -m mkdocs build --quiet --strict

$(DOCS_STAMP): $(STAMP) pyproject.toml constraints.txt
	@echo 'docs: its tools'
	@$(call quietly,$(BIN)/python -m pip install --progress-bar off --no-build-isolation -c constraints.txt -e '.[docs]')
	@touch $@

peers-chart: link ## draw docs/images/peers-*.svg from PEERS_RECORD
	$(WITH_LINKED) $(PY) tests/studies/peers_chart.py $(PEERS_RECORD) docs/images

test-matrix: setup link ## a fast part of the suite with the oldest and newest versions declared (MATRIX='oldest simd')
	$(BIN)/python -m nox $(if $(MATRIX),--sessions $(MATRIX))

slurm-test: setup ## the jobs of docker/slurm on a temporary SLURM, two nodes on this machine (root installs slurm-wlm)
	docker/slurm/try-slurm.sh

format: setup ## format the files for lint
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .
	$(BIN)/clang-format -i $(C_FILES)

bench: setup ## synthesise a demo set and measure this machine (build/bench.html, build/bench.json)
	@mkdir -p build
	$(BIN)/penstock synth $(BENCH_DEMO) --images 256 --validation 0
	$(BIN)/penstock cache build $(BENCH_DEMO)/train $(BENCH_DEMO).h5
	$(BIN)/penstock bench $(BENCH_DEMO)/train --cache $(BENCH_DEMO).h5 --entries 5120 --baseline \
	  --json build/bench.json --report build/bench.html

bench-gpu: ## GPU checks and rates, in build/gpu-records, for GPU_BUDGET seconds; PY=python3: without .venv or network
	@PY=$(PY) tests/studies/gpu/start.sh $(GPU_RESULTS) $(GPU_BUDGET) $(GPU_OPTIONS)

pack-gpu: setup link ## build/gpu: the files that bench-gpu needs on a machine without a network (GPU_PYTHON, GPU_ARCH, GPU_PHOTOS)
	$(WITH_LINKED) $(BIN)/python tests/studies/gpu/pack_gpu.py --python $(GPU_PYTHON) --arch $(GPU_ARCH) \
	  $(if $(GPU_PHOTOS),--photos $(GPU_PHOTOS))

report-picture: link ## draw the report page of REPORT_RECORD as bench/results/report.png (needs Chromium)
	@test -n '$(BROWSER)' || { \
	  echo 'report-picture: no Chromium; apt-get install -y --no-install-recommends chromium fonts-dejavu-core' >&2; exit 1; }
	@mkdir -p build
	$(LINKED_COMMAND) report $(REPORT_RECORD) build/report.html
	$(BROWSER) --headless $$(test "$$(id -u)" != 0 || echo --no-sandbox) --disable-gpu --hide-scrollbars \
	  --window-size=1100,864 --screenshot=$(abspath $(REPORT_PICTURE)) file://$(CURDIR)/build/report.html

image: ## the CPU image, built without a Docker engine (root; Debian or Ubuntu); for the GPU image see docker/Dockerfile
	@docker/build-cpu.sh

image-test: image ## run that image confined: read-only, without network or capabilities, as two users
	@docker/test-image.sh

clean: ## remove build output and caches
	rm -rf build *.egg-info .mypy_cache .ruff_cache .pytest_cache $(NATIVE)
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv and the demo set
	rm -rf $(VENV) $(DEMO)
