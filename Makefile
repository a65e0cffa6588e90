# Everything that a developer runs. `make` alone lists it. Nothing is needed first but Python 3.11
# or later, make and the package registry; each target does all of its own set-up.

VENV := .venv
MIN := .venv-min
BIN := $(VENV)/bin

# PYTHON=… is taken at its word; without it the first of these that is new enough is used.
PYTHONS := $(if $(PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

PYTEST_ARGS ?=
# Most tests wait for processes, so a few more run at once than there are processors to compute.
PARALLEL ?= -n 3 --dist loadfile
# What fails while others load the machine is shown, and runs once more alone: then it must pass.
AGAIN = --last-failed --last-failed-no-failures none
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_REQUIRE_VIRTUALENV := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-full test-min test-all bench simulate faults schemas release-schemas drift lint format lock clean

help:
	@echo 'make setup      everything into $(VENV), from requirements.lock'
	@echo 'make demo       serve a real model on this machine, from catalog to answer to replay'
	@echo 'make test       lint, types, import contract, schema drift, simulation, tests with and without extras'
	@echo 'make test-all   the tests on every Python from 3.11 up that this machine has'
	@echo 'make bench      measure; prints a table and writes build/bench.json'
	@echo 'make simulate   a cluster under faults (SEEDS=N how many, SEED=N from which on)'
	@echo 'make faults     real servers and processes, killed, paused and cut off (minutes)'
	@echo 'make schemas    write schemas/ anew from the types'
	@echo 'make lint       what `make test` checks before it runs anything'
	@echo 'make format     let ruff format and fix what it can'
	@echo 'make lock       write the lock files anew (UPGRADE=1: with the newest versions)'
	@echo 'make clean      remove the environments and everything that was built'
	@echo 'PYTHON=python3.12 chooses the Python, PYTEST_ARGS="-k name" the tests.'

setup: $(VENV)/.ready

demo: setup
	@mkdir -p build
	$(BIN)/python -m llmgw.demo

test: lint drift
	@$(MAKE) --no-print-directory simulate SEEDS=2000 SEED=1
	@$(MAKE) --no-print-directory test-full
	@$(MAKE) --no-print-directory test-min

test-full: setup build/node/.ready
	@echo '== tests, everything installed'
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) || $(BIN)/python -m pytest $(AGAIN) $(PYTEST_ARGS)

# What is pure, reads the log alone, or serves commands on processors meets no extra, as the import
# contracts prove of the former two: it does not run a second time.
KNOWS_NO_EXTRA := core scenarios simulation views histories \
	$(patsubst %,cli/test_%.py,ask ctl ctl_archive ctl_events ctl_plan replay_modes) \
	$(patsubst %,acceptance/test_%.py,gang kills two_nodes) \
	$(patsubst %,shell/test_%.py,archive controller controller_start cutting hearing hostile_log \
	log_contract log_embedded log_faults log_lease log_outages outbox retention snapshots \
	strays subscribers supervise_hangs takeover)
test-min: PYTEST_ARGS += $(addprefix --ignore=tests/,$(KNOWS_NO_EXTRA))
test-min: $(MIN)/.ready
	@echo '== tests, without the extras'
	$(MIN)/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS) || $(MIN)/bin/python -m pytest $(AGAIN) $(PYTEST_ARGS)

test-all: setup
	$(BIN)/python -m tests.support.every_python $(PYTEST_ARGS)

# The peers that it measures against are installed for it alone.
bench: setup $(VENV)/.peers
	@mkdir -p build
	$(BIN)/python -m tests.benchmarks

# SEED alone repeats that one history; with SEEDS it is the first of so many.
simulate: setup
	$(BIN)/python -m llmgw.testing.simulator \
		$(if $(SEEDS),--seeds $(SEEDS),$(if $(SEED),--seeds 1)) $(if $(SEED),--seed $(SEED))

# Minutes of SIGKILL, SIGSTOP and stalled connections against real servers; prints what it saw.
faults: setup
	$(BIN)/python -m pytest -m faults -s $(PYTEST_ARGS)

schemas: setup
	$(BIN)/llmgw schemas export schemas

# What is released stays readable: a later change is held against it.
release-schemas: setup
	@test -n "$(VERSION)" || { echo 'say which: make release-schemas VERSION=0.2' >&2; exit 1; }
	$(BIN)/llmgw schemas export schemas/released/$(VERSION)
	@mkdir -p tests/core/golden/released/$(VERSION)
	cp tests/core/golden/*.json tests/core/golden/released/$(VERSION)/
	$(BIN)/python -m tests.histories.release $(VERSION)

# The AsyncAPI parser and a NATS client of another language, for the tests alone.
build/node/.ready: tests/node/package.json tests/node/package-lock.json tests/node/.npmrc $(VENV)/.locked
	@echo '== installing the packages of tests/node into build/node'
	@$(BIN)/python -m tests.support.javascript
	@touch $@

drift: setup
	$(BIN)/llmgw schemas check schemas

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Installed without resolving anything: the locks are complete, each line with its hashes. Those of
# the build tools come first, so that what has no wheel is built with them and fetches nothing.
PIP_INSTALL := -m pip install --quiet --no-deps --no-build-isolation
FROM_LOCK := $(PIP_INSTALL) --require-hashes --use-pep517

$(VENV)/.locked: requirements.lock
$(MIN)/.locked: requirements-min.lock
$(VENV)/.locked $(MIN)/.locked: %/.locked: requirements-build.lock
	@python=; for candidate in $(PYTHONS); do \
		if "$$candidate" -c '$(NEW_ENOUGH)' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo 'llmgw needs Python 3.11 or later, and none of these is: $(PYTHONS).' >&2; \
		echo 'Install one, or name it: make PYTHON=/path/to/python3.12 …' >&2; exit 1; \
	fi; \
	if ! $*/bin/python -c '$(NEW_ENOUGH)' 2>/dev/null; then \
		echo "== making $* with $$python"; \
		"$$python" -m venv --clear $* || { \
			echo "$$python cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	fi
	@echo '== installing from $(filter %.lock,$^) into $*'
	@$*/bin/python $(FROM_LOCK) -r requirements-build.lock
	@$*/bin/python $(FROM_LOCK) $(addprefix -r ,$(filter-out requirements-build.lock,$(filter %.lock,$^)))
	@touch $@

$(VENV)/.peers: requirements-bench.lock $(VENV)/.ready
	@echo '== installing from $< into $(VENV)'
	@$(BIN)/python $(FROM_LOCK) -r requirements-build.lock -r $<
	@touch $@

%/.ready: %/.locked pyproject.toml llmgw/__init__.py
	@$*/bin/python $(PIP_INSTALL) --editable .
	@touch $@

# Universal for Linux: one lock for every Python from 3.11 up and for x86_64 and aarch64.
UV_COMPILE = build/lock/bin/uv pip compile --quiet --universal --generate-hashes \
	--python-version 3.11 --custom-compile-command 'make lock' \
	$(if $(UPGRADE),--upgrade)

lock: build/lock/bin/uv
	$(UV_COMPILE) pyproject.toml --all-extras --group test --group node --group lint -o requirements.lock
	$(UV_COMPILE) pyproject.toml --group test -c requirements.lock -o requirements-min.lock
	$(UV_COMPILE) --group bench -c requirements.lock -o requirements-bench.lock
	$(UV_COMPILE) --group build -o requirements-build.lock

build/lock/bin/uv: setup
	$(BIN)/python -m venv --clear build/lock
	build/lock/bin/python -m pip install --quiet uv==0.13.9

clean:
	rm -rf $(VENV) $(MIN) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
