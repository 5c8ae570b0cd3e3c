# `make` lists the targets. Variables, each on the command line or in the environment:
#   PYTHON=python3.12      interpreter for .venv, 3.10 to 3.13 (default: the first that is here)
#   TORCH=cpu|gpu          build of torch (default: gpu where nvidia-smi finds one)
#   TORCH_INDEX_URL=...    a package index that has torch's CPU build
#   ARGS='--http-port 9000'   passed on to the command behind serve and the tests

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-all test-release lint format docs clean

VENV ?= .venv
PY := $(VENV)/bin/python
export VENV PYTHON TORCH TORCH_INDEX_URL

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## make .venv and install all that is needed (TORCH=cpu: no CUDA)
	@tools/setup

serve: ## install what serving needs, generate model_repository from models.yaml and serve it (ARGS="--http-port 9000")
	@tools/setup serve
	@exec $(PY) -m hf_triton.cli serve $(ARGS)

# Unset, as images of Python set it: tests start hundreds of processes.
test test-all test-release: export PYTHONDONTWRITEBYTECODE :=

test: setup ## run the tests but those that kill, change or install servers
	@$(PY) -m pytest -n auto tests/unit tests/model tests/served $(ARGS)

test-all: setup ## run every test but a release's
	@$(PY) -m pytest -n auto $(ARGS)

test-release: setup ## try all model types, real clients, a browser, Prometheus and a soak
	@$(PY) -m pytest -n auto tests/release $(ARGS)

lint: setup ## check format, style and types; shell scripts and the Dockerfile too
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(VENV)/bin/shellcheck tools/setup .ci/run hf_triton/python_env/triton_python_backend_stub
	@$(VENV)/bin/hadolint --failure-threshold warning Dockerfile

format: setup ## rewrite the code in the common format
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

docs: setup ## make the documentation's site, build/site; a broken link ends it
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

clean: ## remove .venv, caches and builds; weights stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path '*/hf_cache/*' -prune -exec rm -rf {} +
