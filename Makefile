# make run      everything once: data, training, evaluation (ARGS="--set key=value" is passed on)
# make install  only the environment
# make demo-enron  serve the agent of models/enron_laptop on real mail: EMAILS=FOLDER QUESTIONS=FOLDER (docs/own_mail.md)
# make test     everything that a change can break, the real 135M model included: 15 to 25 minutes on two cores
# make test-fast  what needs no process, service or model: a few minutes
# make nightly  what takes too long for every change: accuracy floors, fuzzing at length, requirements that resolve (hours)
# make browser  Chromium for the tests of pages, where there is none yet (Debian, as root)
# make mailserver  Dovecot for the tests of mail accounts, where there is none yet (Debian)
# make lint     ruff's rules, ruff's format and mypy;  make format applies the first two
# make lock     export the pinned requirements of pyproject.toml to requirements*.txt
# make settings-page  docs/settings.md, from the models of configs/
# make image    the answering service as a container image (docs/container.md); needs Docker
# make bench    comparisons with simpler designs (ARGS="--mails 20000")
# make stack-k8s  the ZenML stack of configs/stack_k8s.yaml (ARGS="--dry-run")
#
# PYTHON       the interpreter that .venv is made with: 3.11, 3.12 or 3.13
# TORCH_INDEX  an index with CPU builds of PyTorch; without it Linux on x86 downloads gigabytes of CUDA:
#              make install TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c $(SUPPORTED) 2>/dev/null && echo $$p && break; done)
TORCH_INDEX ?=
ARGS ?=

# Some images set it. Every start of Python would then compile thousands of files of the libraries again: half a minute.
unexport PYTHONDONTWRITEBYTECODE

SUPPORTED := 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
BIN := .venv/bin
# -qq hides warnings and still shows errors.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input
# uv takes seconds where pip takes a minute or two, but does not read pip.conf. If only pip.conf names the index, pip installs everything.
UV := UV_HTTP_TIMEOUT=10 UV_HTTP_RETRIES=1 $(BIN)/python -m uv pip install -q --python $(BIN)/python
LOCK := $(BIN)/python -m uv pip compile pyproject.toml --universal --python-version 3.11 --quiet --no-annotate \
	--custom-compile-command "make lock"

.PHONY: run demo-enron install test test-fast nightly browser mailserver lint format lock settings-page image bench stack-k8s

run: install
	@$(BIN)/python run.py --pipeline all $(ARGS)

demo-enron: install
	@$(BIN)/python run.py --pipeline data --config configs/enron_laptop.yaml \
		--set "emails=$${EMAILS:-data/enron/emails}" --set "train_questions=$${QUESTIONS:-data/enron/questions}" $(ARGS)
	@$(BIN)/python run.py --pipeline deploy --config configs/enron_laptop.yaml --checkpoint models/enron_laptop \
		--name enron-agent $(ARGS)

# ZenML's commands import the project from the working directory, or from here when they run in another folder.
install: .venv/installed
	@$(BIN)/python -c "import pathlib, sysconfig; \
		pathlib.Path(sysconfig.get_path('purelib'), 'email-search-agent.pth').write_text(f'{pathlib.Path.cwd()}\n')"

test: .venv/installed-dev
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: .venv/installed-dev
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not service and not cluster" $(ARGS)

nightly: .venv/installed-dev
	@$(BIN)/python -m pytest -n 0 -m nightly $(ARGS)

browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

mailserver:
	@command -v dovecot || test -x /usr/sbin/dovecot || { sudo=$$(test $$(id -u) = 0 || echo sudo); $$sudo apt-get update -qq && \
		$$sudo apt-get install -y -qq --no-install-recommends dovecot-imapd; }

lint: .venv/installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: .venv/installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# uv keeps the versions of the exported files unless pyproject.toml excludes them. ARGS=--upgrade takes the newest.
# --no-config: pyproject.toml leaves the CUDA build's packages out, which belong into the lock for GPUs.
lock: .venv/installed
	@$(LOCK) --extra cpu --output-file requirements.txt $(ARGS)
	@$(LOCK) --extra cpu --extra dev --constraint requirements.txt --output-file requirements-dev.txt $(ARGS)
	@$(LOCK) --no-config --no-emit-package pip --extra gpu --output-file requirements-gpu.txt $(ARGS)

settings-page: .venv/installed
	@$(BIN)/python -m configs.settings_page

# With a read-only root the command works as in images/compose.yaml. A registry or a laptop has little use for more than 1.5 GB.
image:
	@docker build -q -f images/service.Dockerfile -t email-search-agent . $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX))
	@docker run --rm --read-only --tmpfs /tmp email-search-agent --pipeline data --set synthetic_train_inboxes=1 --set synthetic_test_inboxes=1
	@docker image inspect -f '{{.Size}}' email-search-agent | awk '{print $$1 / 1e9 " GB"; exit $$1 > 1.5e9}'

bench: install
	@$(BIN)/python -m benchmarks.environment $(ARGS)

stack-k8s: install
	@$(BIN)/python run.py --pipeline stack --config configs/stack_k8s.yaml $(ARGS)

$(BIN)/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c $(SUPPORTED) || { echo "Python 3.11, 3.12 or 3.13 is needed: make $(or $(MAKECMDGOALS),run) PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/installed: requirements.txt | $(BIN)/python
	@echo "Installing requirements.txt into .venv, a minute or two ..."
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) "$$(grep '^torch==' requirements.txt)"
	@$(PIP) "$$(grep '^uv==' requirements.txt)" && $(UV) -r requirements.txt 2>/dev/null || $(PIP) -r requirements.txt
	@touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	@$(UV) -r requirements-dev.txt 2>/dev/null || $(PIP) -r requirements-dev.txt
	@touch $@
