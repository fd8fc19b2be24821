# Two commands set everything up on a machine with Python 3.11 or later and g++:
#   make tune      tune every shipped kernel at a small size, print the table, load the tuned models
#   make test      the tests, without those that take seconds each
#   make test-all  all tests, as continuous integration runs them
#   make docs      the documentation as a site, in build/site
#   make package   the wheel and the source distribution, in dist
#   make test-versions  the tests that versions decide, on the oldest and the newest Python and torch
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDIES := $(sort $(wildcard studies/files/small/*.toml))

.PHONY: help tune test test-all test-versions lint docs package clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

# Without an NVIDIA GPU a torch that pip knows of locally is enough, and NVRTC comes from its own wheel.
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then \
	    $(BIN)/pip install --quiet --editable '.[dev]'; \
	else \
	    $(BIN)/pip install --quiet --no-index --no-deps 'torch>=2.9' >/dev/null 2>&1 || true; \
	    $(BIN)/pip install --quiet --editable '.[dev,nvrtc]'; \
	fi
	@touch $@

# The results go where every command looks for them: $TUNEBENCH_DB, or the user's data folder. The final rounds are short,
# since intervals on a CPU stay wide for as long as one waits.
tune: export TUNEBENCH_CONFIRM_SECONDS ?= 3
tune: $(VENV)/installed
	$(BIN)/tunebench doctor
	@nvidia-smi -L >/dev/null 2>&1 || echo 'No NVIDIA GPU is here: the kernels run on the CPU, where they often lose to'
	@nvidia-smi -L >/dev/null 2>&1 || echo 'the libraries that PyTorch calls. The ratios below say nothing about a GPU.'
	$(BIN)/tunebench tune $(STUDIES)
	$(BIN)/python -m tunebench.studies.tuning.load_tuned $(STUDIES)
	@echo
	@echo 'All of it is recorded. Ask for it:'
	@echo '  $(BIN)/tunebench best'
	@echo '  $(BIN)/tunebench trials scalar_mul --fastest --limit 10'
	@echo '  $(BIN)/tunebench report -o report.html'
	@echo 'After "source $(BIN)/activate" the command is just "tunebench".'

# A test worker for every core, so one thread in each; of the quick tests, some of which wait for processes, one more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal

test: $(VENV)/installed
	$(PYTEST) -n $$(($$(nproc) + 1)) -m 'not slow'

test-all: $(VENV)/installed
	$(PYTEST) -n auto

test-versions:
	.ci/versions

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

package: $(VENV)/installed
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist src/*.egg-info
