# `make` lists the targets. Variables, each on the command line or in the environment:
#   PYTHON=python3.12      interpreter for .venv, 3.10 to 3.13 (default: python3)
#   TORCH=cpu|gpu          build of torch (default: gpu where nvidia-smi finds one)
#   TORCH_INDEX_URL=...    a package index that has torch's CPU build
#   ARGS='--http-port 9000'   passed on to the command behind serve, test and test-all

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-all lint format clean

VENV ?= .venv
PY := $(VENV)/bin/python
export VENV PYTHON TORCH TORCH_INDEX_URL

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## make .venv and install what is needed (TORCH=cpu: no CUDA)
	@tools/setup

serve: setup ## generate model_repository from models.yaml and serve it (ARGS="--http-port 9000")
	@exec $(PY) -m generator serve $(ARGS)

test: setup ## run all tests but the slow ones, a real server's included (ARGS=tests/generator)
	@$(PY) -m pytest -n 3 --dist loadfile -m "not slow" $(ARGS)

test-all: setup ## run every test
	@$(PY) -m pytest -n 3 --dist loadfile $(ARGS)

lint: setup ## check format, style and types; shell scripts and the Dockerfile too
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(VENV)/bin/shellcheck tools/setup .ci/run hf_triton/python_env/triton_python_backend_stub
	@$(VENV)/bin/hadolint --failure-threshold warning Dockerfile

format: setup ## rewrite the code in the common format
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

clean: ## remove .venv, caches and builds; weights stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path '*/hf_cache/*' -prune -exec rm -rf {} +
