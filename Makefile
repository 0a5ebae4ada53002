# On a fresh machine with Python 3.11+ and make: `make test` sets everything up in .venv and tests it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup reproduce lab notebooks test lint bench book clean

help:
	@echo "make reproduce   set-up, then every notebook; figures, tables and out/index.html drawn anew"
	@echo "make lab         set-up, then JupyterLab on the notebooks"
	@echo "make test        set-up, then lint, format check, all tests and notebooks"
	@echo "make book        set-up, then a site of docs and notebooks in out/book"
	@echo "make bench       set-up, then measure what a training step and DeepFool cost"
	@echo "make notebooks   execute the committed notebooks in place, for maintainers"
	@echo "make setup       create .venv with the pinned requirements and this package"
	@echo "make clean       remove .venv and caches"

setup: .venv/.ready

.venv/.ready: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

.venv/.grid: .venv/.ready requirements-grid.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-grid.txt
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test: lint .venv/.grid
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --nbval --nbval-current-env

reproduce: setup
	$(BIN)/python -m ammlib reproduce

lab: setup
	$(BIN)/jupyter lab --notebook-dir=. --LabApp.default_url=/lab/tree/notebooks/00_quickstart.ipynb

notebooks: setup
	OMP_NUM_THREADS=1 $(BIN)/jupyter nbconvert --to notebook --inplace --execute --ExecutePreprocessor.record_timing=False notebooks/*.ipynb
	$(BIN)/ruff format notebooks

bench: setup
	PIP_CONSTRAINT=$(CURDIR)/requirements-bench.txt PIP_BUILD_CONSTRAINT=$(CURDIR)/requirements-bench.txt \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-bench.txt
	$(BIN)/python -m ammlib bench

book: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-book.txt
	$(BIN)/python -m sphinx --quiet --fail-on-warning -c docs . out/book
	cp out/book/README.html out/book/index.html
	@echo "open out/book/index.html"

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis *.egg-info
