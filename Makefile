# Everything a developer runs. `make` alone lists the targets.

BACKEND ?= cpu
MODEL ?=
TESTS ?=
TWO_AT_A_TIME := --numprocesses=2 --dist=loadscope

BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-reuse test check bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with vLLM, kvbridge and the tools (quick when nothing changed)
	@scripts/setup.sh

demo: setup ## prefill and decode engines, a router, three questions (BACKEND=cpu, MODEL=folder)
	@$(BIN)/python scripts/demo.py --backend $(BACKEND) $(if $(MODEL),--model $(MODEL))

demo-reuse: setup ## one long document, five questions: its KV kept and loaded back, beside computing it (MODEL=folder)
	@$(BIN)/kvbridge demo reuse $(if $(MODEL),--model $(MODEL))

test: setup ## run the tests, two at a time (TESTS="tests/unit -x" for a part of them, one at a time)
	$(BIN)/pytest $(or $(TESTS),$(TWO_AT_A_TIME))

check: setup ## lint, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: setup ## measure the cpu backend's transfers
	$(BIN)/kvbridge bench transfer cpu

clean: ## remove .venv and every cache of the tools
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
