# On a fresh machine with Python 3.11+ and make: `make test` sets everything up in .venv and tests it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup test lint bench clean

help:
	@echo "make setup   create .venv with the pinned requirements and this package"
	@echo "make test    set-up, then lint, format check and all tests"
	@echo "make bench   set-up, then measure what a training step and DeepFool cost"
	@echo "make clean   remove .venv and caches"

setup: .venv/.ready

.venv/.ready: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	$(BIN)/python -m ammlib bench

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis *.egg-info
