# make demo      train a small GPT on a server and four agents on this machine
# make test      everything that CI runs: format, lint, types, import rules, tests
# make test-all  the same with the slow tests and the long matrix
# make format    put the code in shape
# make clean     remove what make built: .venv, caches, runs
#
# PYTHON chooses the interpreter (3.10 or newer), ARGS goes to `cleave demo` or to pytest:
#   make demo PYTHON=python3.12 ARGS="--steps 20"

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-all check format clean

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

help:
	@sed -n 's/^# //p' Makefile

demo: $(VENV)/.installed-host
	@$(BIN)/cleave demo $(ARGS)

test: check
	@$(BIN)/python -m pytest --cov --cov-report=term $(ARGS)

test-all: check
	@$(BIN)/python -m pytest --cov --cov-report=term -m "" --timeout 600 $(ARGS)

check: $(VENV)/.installed-dev
	@echo "ruff format" && $(BIN)/ruff format --check --quiet .
	@echo "ruff check" && $(BIN)/ruff check --quiet .
	@echo "mypy" && $(BIN)/mypy --no-error-summary
	@echo "import rules" && $(BIN)/lint-imports --no-cache > $(VENV)/imports.txt || { cat $(VENV)/imports.txt; exit 1; }

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.installed-%: pyproject.toml constraints.txt $(VENV)/.created
	@echo "Installing Cleave and what it needs ($*) into $(VENV); the first time takes minutes."
	@$(INSTALL) -e ".[$*]"
	@touch $@

$(VENV)/.created:
	@command -v "$(PYTHON)" > /dev/null || { \
	  echo "error: no interpreter $(PYTHON): install Python 3.10 or newer, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1), Cleave needs 3.10 or newer: say make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { \
	  echo "error: $(PYTHON) cannot make a virtual environment: install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	@touch $@
