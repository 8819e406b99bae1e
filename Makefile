# Farrier's commands. `make` alone lists them.

SHELL := /bin/bash
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
MANAGE := $(BIN)/python manage.py
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help venv up down status reset test lint types arch format demo-story bench backup restore browser \
	migrations-check lock clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-17s %s\n", $$1, $$2}'

venv: $(BIN)/python  ## create .venv and install the pinned packages, if anything changed
	@$(BIN)/python requirements/install.py

$(BIN)/python:
	@bash requirements/find-python $(VENV)

up: venv  ## install all, start all, end with an address; Ctrl-C stops
	@$(MANAGE) up

down: venv  ## stop what `make up` started in another terminal
	@$(MANAGE) down

status: venv  ## what runs, since when, with how much memory
	@$(MANAGE) status

reset: venv  ## delete all state, after asking (YES=1 doesn't ask)
	@$(MANAGE) reset $(if $(YES),--yes)

test: venv browser  ## run all tests against a private database and broker (PYTEST_ARGS= to choose)
	@$(BIN)/python -m controlplane.supervisor.testing $(PYTEST_ARGS)

lint: venv  ## ruff, djlint, migrations
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@if [ -d templates ] && find templates apps -name '*.html' | grep -q .; then $(BIN)/djlint templates apps --lint --quiet; fi
	@$(MAKE) --no-print-directory migrations-check

format: venv  ## let ruff write the code as lint wants it
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

types: venv  ## mypy, strict
	@$(BIN)/mypy

arch: venv  ## who may import whom
	@$(BIN)/lint-imports --config .importlinter

migrations-check: venv  ## no model change without its migration
	@$(MANAGE) makemigrations --check --dry-run

demo-story: venv  ## replay the story on fresh state and check every point of it
	@$(BIN)/python -m demo.check

bench: venv  ## run one benchmark: make bench NAME=aifb_open
	@test -n "$(NAME)" || { echo "Say which: make bench NAME=<name>, one of: $(notdir $(basename $(wildcard benchmarks/[a-z]*.py)))"; exit 2; }
	@test -f "benchmarks/$(NAME).py" || { echo "There is no benchmarks/$(NAME).py."; exit 2; }
	@$(BIN)/python -m benchmarks.$(NAME)

backup: venv  ## save database, artifacts and keys: make backup DIR=/path
	@test -n "$(DIR)" || { echo "Say where to: make backup DIR=/path/of/a/new/folder"; exit 2; }
	@$(MANAGE) backup "$(DIR)"

restore: venv  ## bring a backup back: make restore DIR=/path (FORCE=1 over existing data)
	@test -n "$(DIR)" || { echo "Say where from: make restore DIR=/path/of/a/backup"; exit 2; }
	@$(MANAGE) restore "$(DIR)" $(if $(FORCE),--force)

browser:  ## Chromium for the browser tests: PATH, else Debian's when root, else said aloud
	@bash requirements/find-chromium

lock: venv  ## resolve requirements/*.in anew within the pins, with hashes
	@bash requirements/lock

clean:  ## remove caches, keep .venv and var
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis test-artifacts
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
