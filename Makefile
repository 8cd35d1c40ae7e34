# make demo    a rising reward curve on this machine
# make test    everything that is checked
# make stack   compose.yaml on a real Docker engine: up, scaled, killed, audited, restored (root, docker.io, mmdebstrap)
# make restore FILE=demo.tar   a run's backup into the stack of compose.yaml, while that is down
# make bench   what the ledger costs, as a table
#
# PyTorch's CPU build: by default pip takes what its index offers as `torch`, which on Linux may be a CUDA build of
# several GB. To take the CPU build, name PyTorch's own CPU index, as printed by the selector of its "Get started" page:
#   make demo TORCH_INDEX=<that URL>

PYTHON ?= python3
VENV ?= .venv
SGLANG_VENV ?= .venv-sglang
TORCH_INDEX ?=
RUN ?= demo

PIP_TORCH = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
export HEADRACE_SGLANG_PYTHON ?= $(abspath $(SGLANG_VENV))/bin/python

.PHONY: demo test stack restore lint bench setup clean .env

demo: setup
	@test -f $(RUN).toml || $(VENV)/bin/headrace init $(RUN) --recipe demo
	@exec $(VENV)/bin/headrace up $(RUN).toml

test: setup lint
	$(VENV)/bin/python -m pytest

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

stack: $(VENV)/.installed
	$(VENV)/bin/python -m tests.stack

bench: $(VENV)/.installed
	$(VENV)/bin/python -m tests.bench

setup: $(VENV)/.installed $(SGLANG_VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@echo "installing the project into $(VENV) (about a minute, 1.5 GB)"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check $(PIP_TORCH) -e '.[all]'
	@touch $@

$(SGLANG_VENV)/.installed: $(wildcard docker/sglang-cpu/*.* docker/sglang-cpu/*/*.*)
	@echo "installing the SGLang server into $(SGLANG_VENV) (about a minute, 2.7 GB)"
	PYTHON=$(PYTHON) docker/sglang-cpu/install.sh $(SGLANG_VENV) $(PIP_TORCH)
	@touch $@

PASSWORDS = $(foreach role,WORKER TRAINER COORDINATOR VIEWER,REDIS_$(role)_PASSWORD) HEADRACE_API_KEY

# what is in it stays; compose's volumes outlive it, but no password is kept in them
.env:
	@umask 077; test -e $@ || cp .env.example $@ && chmod 600 $@
	@test -z "$$(tail -c 1 $@)" || echo >> $@
	@for name in $(PASSWORDS); do \
	    grep -Eq "^ *(export +)?$$name *= *[^ ]" $@ || \
	        echo "$$name=$$(od -An -v -N24 -tx1 /dev/urandom | tr -d ' \n')" >> $@; \
	done

# no user of docker/users.acl may write all keys: Redis runs without users meanwhile, and two must not write one volume
restore:
	@test -f "$(FILE)" || { echo "FILE=…: expected what headrace backup wrote, found no file '$(FILE)'" >&2; exit 1; }
	@up=$$(docker compose ps --all --quiet) && test -z "$$up" || { echo "first: docker compose down" >&2; exit 1; }
	@redis=$$(docker compose run --detach --rm --use-aliases redis redis-server /etc/headrace/redis.conf) || exit 1; \
	    trap "docker stop $$redis > /dev/null" EXIT; trap "exit 1" INT TERM; \
	    docker compose run --rm --no-deps --env REDIS_PASSWORD_FILE= --volume "$$(realpath "$(FILE)"):/backup.tar:ro" \
	        coordinator restore /backup.tar --folder /runs --redis redis://redis:6379/0
	@echo "in the stack: docker compose up -d"

clean:
	rm -rf $(VENV) $(SGLANG_VENV)
