# Two commands for everybody: `make demo` and `make test`. Both set up what they need in .venv, without root or a compiler.
#   make demo    trains GraphSAGE through gnnkit on a generated graph and on Cora
#   make test    tests of every part (five to ten minutes on 2 cores with all set-up, twenty on very slow ones)
#   make test-all  every test that this machine can run (half an hour on 2 cores), with the libraries of others that it installs
#   make check   lint and the quick tests (under 3 minutes)
#   make fuzz    ten thousand damaged samples of everything that is parsed, in a memory group where there may be one
#   make lint    ruff and mypy --strict
#   make dist    wheel and sdist, checked
#   make release checks everything of a release up to its upload: documentation, versions, wheel and sdist, fresh environments
#   make docs    makes build/docs/index.html of docs/, docstrings and notebooks; runs the notebooks that no test has run since they changed
#   make pictures  takes the pictures in docs/images anew (needs Chromium)
#   make bench   gnnkit against its peers at full size, with those of .envs/glt and .envs/graphbolt that are there
#   make gpu     the tests that need a GPU and what training costs on it, as JSON in build/gpu.json: twelve minutes at most, no network,
#                the torch and PyG of PYTHON; what else it lacks from a folder of wheels, WHEELS
#   make glt-env the second environment, .envs/glt: torch 2.4.1 and graphlearn-torch's native library (Python 3.11, 5 GB)
#   make newer-env  .envs/newer: gnnkit without graphlearn-torch on Python 3.12 or 3.13, where there is one
#   make checkov-env  .envs/checkov: what looks for weaknesses in the objects of Kubernetes (300 MB)
#   make clean   removes the environments and everything that was built
# Variables: PYTHON=/path/to/python3.11   JOBS=parallel test processes   ARGS="more arguments"

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# Two more than processors: tests wait for processes, and for deadlines, more often than they compute.
JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); [ $$n -gt 2 ] && n=2; echo $$((n + 2)))
ARGS ?=
# A real notebook in a real browser is tested where there is a Chromium; JupyterLab and Playwright are of no use elsewhere.
BROWSER := $(shell for p in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$p >/dev/null && { echo --group browser; break; }; done)

is_python = $(1) -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.10; do $(call is_python,$$p) && { echo $$p; break; }; done)
setup = $(PYTHON) tools/setup_env.py --env $(VENV) --constraint constraints.txt

# What a level leaves out: what takes long, and what needs more than Python and this machine as it is.
others = slow or browser or netns or glt or newer

.PHONY: help demo test test-all check fuzz lint dist release docs pictures bench gpu glt-env newer-env checkov-env clean python

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

python:
	@[ -n "$(PYTHON)" ] || { echo "gnnkit needs Python 3.10 or newer and found none: install one, or name it with make PYTHON=/path/to/python" >&2; exit 1; }
	@$(call is_python,$(PYTHON)) || { echo "gnnkit needs Python 3.10 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python" >&2; exit 1; }

demo: python
	@$(setup)
	@$(BIN)/python -m gnnkit demo $(ARGS)

test: python
	@$(setup) --group test --group package
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "core or not ($(others))" $(ARGS)

test-all: python
	@$(setup) --group test-all --group package $(BROWSER)
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

check: lint
	@$(setup) --group test --group package --group lint
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not ($(others))" $(ARGS)

fuzz: python
	@$(setup) --group test
	@$(BIN)/python -m tests.fuzz $(ARGS)

lint: python
	@$(setup) --group lint --group test --group package
	@$(BIN)/ruff check
	@$(BIN)/mypy

dist: python
	@$(setup) --group lint --group test --group package
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --outdir dist .
	@$(BIN)/twine check --strict dist/*

release: docs
	@$(setup) --group lint --group test --group package --group docs
	@$(BIN)/python -m tools.release $(ARGS)

docs: python
	@$(setup) --group test --group docs
	@stale=$$(for n in notebooks/*.ipynb; do [ build/$$n -nt $$n ] || echo "or $$(basename $$n .ipynb)"; done); \
	[ -z "$$stale" ] || $(BIN)/python -m pytest -q tests/notebooks -k "test_notebook_runs and ($$(echo $$stale | cut -c4-))"
	@$(BIN)/python tools/build_docs.py

pictures: python
	@$(setup) --group test $(BROWSER)
	@$(BIN)/python tools/take_pictures.py $(ARGS)

peer = $(if $(wildcard .envs/$(2)/bin/python),--$(1)-python .envs/$(2)/bin/python)

bench: python
	@$(setup)
	@$(BIN)/python -m tools.bench $(call peer,glt,glt) $(call peer,pyg,glt) $(call peer,graphbolt,graphbolt) $(ARGS)

gpu: python
	@mkdir -p build
	@[ -z "$(WHEELS)" ] || $(PYTHON) -m pip install -q --no-index --no-deps --upgrade --target build/gpu-wheels "$(WHEELS)"/*.whl
	@PYTHONPATH="$(CURDIR):$(CURDIR)/build/gpu-wheels" $(PYTHON) tools/measure_gpu.py $(ARGS) > build/gpu.json && cat build/gpu.json

# graphlearn-torch 0.2.4 has no wheel for Python 3.12 or newer. WHEELS may name a folder of torch-sparse and torch-scatter wheels.
GLT_PYTHON ?= $(shell for p in $(PYTHON) python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(sys.version_info >= (3, 12))' >/dev/null 2>&1 && { echo $$p; break; }; done)
WHEELS ?=

glt-env:
	@[ -n "$(GLT_PYTHON)" ] || { echo "graphlearn-torch 0.2.4 needs Python 3.10 or 3.11: make glt-env GLT_PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(GLT_PYTHON) tools/setup_env.py --env .envs/glt --extra glt-native --torch 2.4.1 --constraint constraints.txt --wheels "$(WHEELS)"

NEWER_PYTHON ?= $(shell for p in $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.13.*/bin/python $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.12.*/bin/python python3.13 python3.12; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 && { echo $$p; break; }; done)

newer-env:
	@if [ -n "$(NEWER_PYTHON)" ]; then $(NEWER_PYTHON) tools/setup_env.py --env .envs/newer --constraint constraints.txt --group contract; \
	else echo "found no Python 3.12 or 3.13 (name one with make newer-env NEWER_PYTHON=/path): .envs/newer is not made"; fi

checkov-env: python
	@cmp -s constraints-checkov.txt .envs/checkov/constraints.txt || { $(PYTHON) -m venv --clear .envs/checkov && \
	.envs/checkov/bin/python -m pip install -q --no-input --disable-pip-version-check --no-compile checkov -c constraints-checkov.txt && \
	cp constraints-checkov.txt .envs/checkov/constraints.txt; }

clean:
	rm -rf $(VENV) .envs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
