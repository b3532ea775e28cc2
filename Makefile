# Everything that a developer or a nightly job runs. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

.PHONY: help setup e2e test thorough faults fuzz lint format bench gpu gpu-multi clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create $(VENV) with the exact versions of constraints.txt

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "allranks needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[scan,train,zst]' --group dev
	@touch $@

e2e: $(INSTALLED) ## run the main job on the stand-in cluster: BERT on NVIDIA and on Neuron nodes, every rank judged
	$(BIN)/pytest e2e -k bert --cluster standin $(ARGS)

test: $(INSTALLED) ## run the project's own tests, on all cores
	$(BIN)/pytest -n auto $(ARGS)

thorough: $(INSTALLED) ## run the tests that `make test` leaves out: more layouts, more processes, minutes more
	$(BIN)/pytest -n auto -m thorough $(ARGS)

faults: $(INSTALLED) ## inject every fault on the stand-in: expected verdict, got, seconds to the verdict
	$(BIN)/python -m tests.faults $(ARGS)

fuzz: $(INSTALLED) ## damage logs at random for a minute: the decoder must neither fail nor count what was not said
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group fuzz
	$(BIN)/python tests/fuzz/fuzz_decoder.py -max_total_time=60 $(ARGS)

lint: $(INSTALLED) ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## put the code into the house's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED) ## measure what the documentation claims, each figure against a peer in the same run
	$(BIN)/python -m benchmarks $(ARGS)

gpu: $(INSTALLED) ## on a GPU: BERT, Llama 3 and GPT-2 beside their peers (which need transformers and accelerate)
	$(BIN)/python -m benchmarks.gpu $(ARGS)

gpu-multi: $(INSTALLED) ## on a host with several GPUs: e2e on all of them, scaling, loss curves, a killed rank (ARGS=--rehearse: on CPUs)
	$(BIN)/python -m benchmarks.gpu_multi $(ARGS)

clean: ## remove what these commands made here
	rm -rf $(VENV) artefacts build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
