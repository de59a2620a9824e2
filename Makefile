# Everything one needs here; each target first installs what it lacks. `make help` lists them.

SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help install up demo test coverage lint bench bench-full bench-peer profile soak docs clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DIR ?= .work/reference-data
PG ?= 18
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes of the tests would each compile the whole program anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

install: $(READY) ## create .venv with everything; the second time costs nothing

$(READY): pyproject.toml
	@python=; \
	for candidate in $(PYTHON) python3.14 python3.13 python3.12 python3.11 python3 python; do \
	  if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' \
	    >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11 or newer with the modules venv and ensurepip was found" >&2; \
	  echo "hint: install one (on Debian and Ubuntu: apt install python3 python3-venv)," >&2; \
	  echo "      or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; \
	  exit 1; \
	fi; \
	if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "creating $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV) || exit 1; \
	fi; \
	echo "installing into $(VENV)"; \
	$(BIN)/python -m pip install --quiet --root-user-action=ignore --editable '.[local,dev]' \
	  && touch $(READY)

up: $(READY) ## embedded PostgreSQL, reconcile, API on 127.0.0.1:8080 (DIR=folder)
	@if [ ! -e "$(DIR)" ]; then \
	  new="$(DIR).new"; rm -rf "$$new"; mkdir -p "$$(dirname "$$new")" \
	  && cp -R examples/reference-data "$$new" && rm -rf "$$new/.mdm" \
	  && git -C "$$new" init --quiet --initial-branch=main && git -C "$$new" add --all \
	  && git -C "$$new" -c user.name=example -c user.email=example@localhost \
	    -c commit.gpgsign=false commit --quiet --message "Reference data" \
	  && mv "$$new" "$(DIR)" || exit 1; \
	fi
	$(BIN)/mdm-gitops up "$(DIR)" $(ARGS)

demo: $(READY) ## the product in one minute; leaves nothing running
	@$(BIN)/python examples/demo.py $(ARGS)

# Side by side: the type checker alone would leave the other processor idle.
test: $(READY) ## lint, types, layers and all tests, on PostgreSQL PG=18 or 16
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: $(READY)
	MDM_TEST_PG=$(PG) $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not soak" $(ARGS)

# Figures of a part of the tests, or of tests that failed, are told and not kept.
coverage: $(READY) ## which lines and branches the tests run, into benchmarks/coverage.json
	@rm -rf .work/coverage; MDM_TEST_PG=$(PG) $(BIN)/coverage run \
	  -m pytest --numprocesses 2 --dist worksteal -m "not soak" $(ARGS); ended=$$?; \
	if [ "$$ended" = 0 ]; then keep=$(if $(ARGS),,--keep); fi; \
	$(BIN)/coverage combine --quiet && $(BIN)/python benchmarks/coverage_summary.py $$keep; \
	exit $$ended

lint: $(READY) ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(READY) ## measure speed and memory in ten minutes (ARGS="requests search")
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-full: $(READY) ## the same at the sizes of the targets, about an hour
	$(BIN)/python benchmarks/run.py --full $(ARGS)

bench-peer: $(READY) ## single requests beside Directus, which needs Node and npm
	@$(BIN)/python benchmarks/peer_install.py
	$(BIN)/python benchmarks/run.py $(ARGS) peer

profile: $(READY) ## what a worker does with a request, into docs/concepts/time-of-requests.md
	$(BIN)/python -m pip install --quiet --root-user-action=ignore 'py-spy>=0.4.1,<1'
	$(BIN)/python benchmarks/profile_requests.py

soak: $(READY) ## the long campaigns; what they find is kept beside the figures
	MDM_CAMPAIGNS=$(CURDIR)/benchmarks/campaigns.json MDM_TEST_PG=$(PG) $(BIN)/python -m pytest -m soak $(ARGS)

docs: $(READY) ## make the generated pages of docs/
	$(BIN)/python docs/generate.py

clean: ## remove what was made here, but not .venv
	rm -rf .work build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
