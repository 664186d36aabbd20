# `make` lists the targets. Each sets up .venv by itself when it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
KERNELS := src/pumpline/core/messages/_kernels
# Found by the shell, when there is a Python.
BUILT = $(KERNELS)$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
JS := tests/interop/js
GO := tests/interop/go
UI_JS := tests/ui/js
# Python compiles the modules that are imported: pip would compile three times as many, in 18 s.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
PYTEST = $(BIN)/python -m pytest
ORIGINAL = $(or $(PUMPLINE_TEST_NSQD),$(shell command -v nsqd))

# With two workers for each core the cores were idle for a third of the time: the tests wait much. So
# there are five for two cores. What shares a worker is in tests/kit/groups.py.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= $(shell expr 5 '*' $(CORES) / 2)

# The longest first: one core has its share with types alone.
CHECKS := types lint layers
BESIDE = $(MAKE) --no-print-directory --jobs=$(CORES) --output-sync=target
QUICK := "not e2e and not soak"

# Where this is set, every process compiles all it imports: the tests start thousands.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: sim-pipelines help demo docs generated interop-go test test-e2e test-original test-fast check coverage bench bench-spark fuzz screenshots java interop-js ui-js clean

help: ## list these targets
	@echo "make <target>, with PYTHON=<interpreter> to choose one (3.11 or newer), and VENV=<directory>"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## see it work on this machine
	@$(BIN)/pumpline demo

test: $(INSTALLED) ## all checks, and all tests but the end-to-end and the soak tests
	@$(BESIDE) $(CHECKS) compiled java interop-js interop-go ui-js
	$(PYTEST) -n $(WORKERS) -m $(QUICK) --ignore=tests/test_source.py

test-e2e: $(INSTALLED) java ## the end-to-end tests: whole pipelines, clusters, several Sparks a test
	PUMPLINE_TEST_SPARK_SESSIONS=2 $(PYTEST) -n $(CORES) -m "e2e and not soak"

test-original: $(INSTALLED) ## the wire tests against NSQ's own nsqd, where there is one: NSQ checks "as NSQ does"
	@if [ -n "$(ORIGINAL)" ] && "$(ORIGINAL)" --version | grep -q "built w/go"; then \
	  PUMPLINE_TEST_NSQD="$(ORIGINAL)" $(PYTEST) -n $(WORKERS) -m "not deviation and not soak" tests/wire; \
	else \
	  echo "NSQ's own nsqd was not found: the wire tests are not run against it."; \
	  echo "Put nsqd of NSQ 1.3.0 on the PATH, or say PUMPLINE_TEST_NSQD=/path/to/nsqd."; \
	fi

test-fast: $(INSTALLED) ## the tests that take seconds, without Spark
	$(PYTEST) -n $(WORKERS) -m "not slow and not e2e and not soak"

check: $(INSTALLED) ## lint, format, types, layers, sizes
	@$(BESIDE) $(CHECKS)

.PHONY: $(CHECKS) compiled
types: $(INSTALLED)
	$(BIN)/mypy

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers: $(INSTALLED)
	$(PYTEST) tests/test_source.py # sizes and names, too

# Once, beside the checks: otherwise each worker compiles all tests for itself, 5 s each.
compiled: $(INSTALLED)
	@$(PYTEST) --collect-only -qq -m $(QUICK) >/dev/null || true # what fails is told by the tests

coverage: $(INSTALLED) ## lines that the fast tests run, those of daemons they start included
	$(PYTEST) -n $(WORKERS) -m "not slow and not e2e and not soak" \
	  --cov --cov-report=term:skip-covered

bench-spark: $(INSTALLED) java ## measure Spark over topics (takes minutes, wants an idle machine)
	$(BIN)/python -m bench.spark

bench: $(INSTALLED) ## measure the broker (takes minutes, wants an idle machine)
	$(BIN)/python -m bench.nsqd

.PHONY: sim
sim: $(INSTALLED) ## simulated kills, without end: SEEDS=1000:2000 or SEEDS=17 for those seeds
	$(BIN)/python -m tests.kit.sim.command $(SEEDS)

sim-pipelines: $(INSTALLED) ## the same for the archive pipeline: nodes that come and go, kills at any step of a batch
	$(BIN)/python -m tests.kit.sim.pipelines.command $(SEEDS)

fuzz: $(INSTALLED) ## the soak tests: long fuzzing and crash runs
	$(PYTEST) -m soak

screenshots: $(INSTALLED) ## pictures of nsqadmin's page, and the one in the docs (ten minutes; needs Chromium)
	$(BIN)/python -m tests.ui.screenshots

java: $(INSTALLED)
	@$(BIN)/python -m pyspark_nsq.session

interop-js: $(INSTALLED) ## install the JavaScript client for the interop tests, where npm exists
	@if ! [ -f $(JS)/package.json ]; then :; \
	elif ! command -v npm >/dev/null; then \
	  echo "npm was not found: the interop tests with nsqjs will be skipped."; \
	elif ! [ $(JS)/node_modules/.package-lock.json -nt $(JS)/package.json ]; then \
	  npm install --prefix $(JS) --no-audit --no-fund --loglevel=error \
	    || echo "npm install failed: the interop tests with nsqjs will be skipped."; \
	fi

interop-go: ## build the driver of the Go client for the interop tests, where Go exists
	@if ! command -v go >/dev/null; then \
	  echo "Go was not found: the interop tests with go-nsq will be skipped."; \
	elif ! [ $(GO)/driver -nt $(GO)/driver.go ]; then \
	  (cd $(GO) && go build -o driver .) \
	    || echo "go build failed: the interop tests with go-nsq will be skipped."; \
	fi

ui-js: $(INSTALLED) ## install the accessibility checker for the tests of nsqadmin's page, where npm exists
	@if ! command -v npm >/dev/null; then \
	  echo "npm was not found: the accessibility check of nsqadmin's page will be skipped."; \
	elif ! [ $(UI_JS)/node_modules/.package-lock.json -nt $(UI_JS)/package.json ]; then \
	  npm install --prefix $(UI_JS) --no-audit --no-fund --loglevel=error \
	    || echo "npm install failed: the accessibility check of nsqadmin's page will be skipped."; \
	fi
	@for name in chromium chromium-browser google-chrome chrome; do \
	  command -v $$name >/dev/null && exit 0; \
	done; \
	echo "Chromium was not found: the tests of nsqadmin's page will be skipped."; \
	echo "Install it to run them (Debian: apt-get install chromium)."

generated: $(INSTALLED) ## write what is made from tables of the code: alerts, dashboard, reference pages
	$(BIN)/python -m deploy.generate

docs: $(INSTALLED) ## build the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

clean: ## remove .venv and everything built or cached
	rm -rf $(VENV) build dist src/*.egg-info $(JS)/node_modules $(UI_JS)/node_modules
	rm -rf .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -f $(KERNELS).c $(KERNELS)*.so $(GO)/driver
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(INSTALLED): pyproject.toml setup.py $(wildcard $(KERNELS).pyx $(dir $(KERNELS))*.pxi)
	@command -v $(PYTHON) >/dev/null \
	  || { echo "$(PYTHON) was not found: install Python 3.11 or newer, or say make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "pumpline needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	       echo "Name a newer one, as in: make PYTHON=python3.12"; exit 1; }
	@command -v "$${CC:-cc}" >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null \
	  || { echo "No C compiler was found: the plain-Python kernels will be used, which are slower."; \
	       echo "For the compiled ones install gcc or clang and the Python headers"; \
	       echo "(Debian and Ubuntu: apt install gcc python3-dev), then run make clean and make again."; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) \
	  || { echo "No virtual environment could be made (Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@rm -f $(BUILT) # those of this Python alone: another VENV may have its own
	@# Python 3.11 brings pip 23.2, which takes 86 s for what pip 26 does in 58.
	@$(PIP) --upgrade pip setuptools cython || true
	@$(BESIDE) packages kernels
	@ls $(BUILT) >/dev/null 2>&1 || echo "kernels: plain Python (the compiled ones were not built)"
	@touch $@

# pip waits for the network much of the time, so the compiler works meanwhile.
.PHONY: packages kernels
packages:
	PUMPLINE_BUILD_KERNELS=no $(PIP) -e '.[test]'

kernels:
	@$(BIN)/python setup.py --quiet build_ext --inplace
