# Each command makes .venv first where it is missing or older than what it is made from.
PYTHON ?= python3
MODEL ?=
ARGS ?=
PIP_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.made
# Into an environment that has no pip of its own, by that of .venv; what is imported is compiled then.
PIP_INTO = $(BIN)/python -m pip --python $(1)/bin/python install --quiet --no-compile $(PIP_ARGS)

.PHONY: help venv serve quick test proofs faults families ranks test-npu test-npu-ranks layouts clients contract vllm-tests pages exam exam-tests test-ray environments long check fmt docs wheels embedded media resaved known bench-preprocess
.DEFAULT_GOAL := help

help:
	@echo "make venv                 .venv with the exact versions of constraints/cpu.txt (PYTHON=, PIP_ARGS=)"
	@echo "make serve [MODEL=<dir or ORG/NAME>]  serve it on 127.0.0.1:8000; the embedded model without MODEL (ARGS=\"--port 9000\")"
	@echo "make quick [T=requests]   the tests that start no process and build no model; T: of one folder"
	@echo "make test                 every test that takes less than minutes"
	@echo "make faults               running servers whose processes, files and clients are killed, stopped and removed"
	@echo "make stress               the tests of processes beside two burners, in random order (ARGS=\"--seed 7\" for one again)"
	@echo "make families             videos, deepstack and caches of single lines of models"
	@echo "make ranks                models over several processes that hold a part each, against one"
	@echo "make test-npu             the NPU operators on the real torch_npu, two versions, over a stub of the driver"
	@echo "make test-npu-ranks       of these, models over two NPUs"
	@echo "make layouts              a server of every published layout, against transformers"
	@echo "make proofs               make faults, families, ranks and layouts and the training's tests in one run, as CI has them"
	@echo "make clients              what others wrote (OpenAI's SDK, LangChain, LiteLLM ...) against a running server"
	@echo "make contract             schemathesis asks a running server thousands of questions from its OpenAPI document"
	@echo "make vllm-tests           vLLM's own HTTP tests, unchanged, against running servers"
	@echo "make pages                the pages at / and /status in Chromium"
	@echo "make exam                 the independent exam of the embedded model through a running server (ARGS=\"--base-url URL\")"
	@echo "make test-ray             the service on a cluster of Ray with three nodes (needs root: namespaces)"
	@echo "make long                 the tests that take longer"
	@echo "make check                formatting, lint, types, import law, docs map, wheels of the pins"
	@echo "make fmt                  format, and mend what ruff can"
	@echo "make release              wheel, sdist, their parts (CycloneDX), sums and the changelog's section, in dist/ (DIST=)"
	@echo "make docs                 write the generated parts of docs/ again"
	@echo "make wheels               ask the index for the aarch64 wheel of every pin, after a change of constraints/"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints/cpu.txt
	@echo "making .venv: downloads about 90 packages, 1.6 GB once unpacked (more where torch brings CUDA); 1 to 3 minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints/cpu.txt --editable '.[test]'
	@touch $@

serve: $(STAMP)
	@echo "starting the server: 3 to 10 seconds with the embedded model, up to 30 on a busy machine, longer with a larger checkpoint; Ctrl-C ends it"
	$(BIN)/python -m server serve $(if $(MODEL),--model "$(MODEL)") --allow-media-root examples/media $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

# Where T names a folder of tests, wherever it lies, that one alone: make quick T=requests
T ?=
quick: $(STAMP)
	$(BIN)/python -m pytest -p tests.quick $(if $(T),-n 0 $$(find tests -type d -name "$(T)" | grep . || echo "no-folder-$(T)"),--numprocesses 2 --dist loadfile) -m "" $(ARGS)

# An environment for each version of torch_npu, apart from .venv, where `import torch` would fail with it.
NPU_PAIRS := torch_npu-2.13.0 torch_npu-2.10.0.post4
NPU_STUB := $(addprefix tests/npu/stub/,build.py names.py cann.c queues.c graphs.c hccl.c memory.c attention.c faults.c)

test-npu: $(NPU_PAIRS:%=build/npu/%/.made)
	$(BIN)/python -m tests.npu.run $(ARGS)

test-npu-ranks: $(NPU_PAIRS:%=build/npu/%/.made)
	$(BIN)/python -m tests.npu.run --only-ranks $(ARGS)

build/npu/%/.installed: $(STAMP) tests/npu/install.py tests/npu/pairs.py
	@echo "making build/npu/$*: downloads up to 0.4 GB, takes up to 1.5 GB of disk; up to 2 minutes"
	$(BIN)/python -m tests.npu.install $* $(PIP_ARGS)
	@touch $@

build/npu/%/.made: build/npu/%/.installed $(NPU_STUB)
	$(BIN)/python -m tests.npu.stub.build $*
	@touch $@

.PRECIOUS: build/npu/%/.installed

faults: $(STAMP)
	$(BIN)/python -m pytest -m "faults or matrix" --numprocesses 2 --dist loadfile $(ARGS)

# Tests of processes while two others take the processors, files in random order; it prints the seed.
.PHONY: stress
stress: $(STAMP)
	$(BIN)/python -m tests.stress $(ARGS)

# What a line of models shows beyond the shared tests: whatever has the mark `families`, in whichever file it stands.
families: $(STAMP)
	$(BIN)/python -m pytest -m families --numprocesses 2 --dist loadfile $(ARGS)

ranks: $(STAMP)
	$(BIN)/python -m pytest -m ranks --numprocesses 2 --dist loadfile $(ARGS)

layouts: $(STAMP)
	$(BIN)/python -m pytest -m served --numprocesses 2 --dist loadfile $(ARGS)

# `faults`, `families`, `ranks`, `layouts` and the training in one run: tests are collected once, and no process waits
# for the other at the end of each.
proofs: $(STAMP)
	$(BIN)/python -m pytest -m "faults or matrix or families or ranks or served or training" --numprocesses 2 --dist loadfile $(ARGS)

# Each client's own environment: they ask for different versions of the same packages.
CLIENTS := agents anthropic instructor litellm llama_index

clients: $(CLIENTS:%=build/clients/%/.made) build/clients/node/.made
	$(BIN)/python -m tests.clients.run $(ARGS)

contract: build/clients/schemathesis/.made
	$(BIN)/python -m tests.clients.contract $(ARGS)

vllm-tests: build/clients/vllm/.fetched
	$(BIN)/python -m tests.clients.vllm_tests $(ARGS)

build/clients/%/.made: tests/clients/pins/%.txt $(STAMP)
	@echo "making build/clients/$*: downloads 60 to 120 packages; a minute"
	rm -rf build/clients/$*
	$(BIN)/python -m venv --without-pip build/clients/$*
	$(call PIP_INTO,build/clients/$*) --no-deps --requirement $<
	@touch $@

build/clients/node/.made: tests/clients/node/package.json tests/clients/node/package-lock.json
	mkdir -p build/clients/node
	cp tests/clients/node/*.json build/clients/node
	cd build/clients/node && npm ci --no-audit --no-fund --loglevel error
	@touch $@

build/clients/vllm/.fetched: build/clients/vllm/.made tests/clients/vllm_tests.py
	$(BIN)/python -m tests.clients.vllm_tests fetch
	@touch $@

# Apart from .venv: where transformers finds torchvision it takes other classes.
build/reference: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $@ torchvision==0.28.0
	@touch $@

# The schemas of Kubernetes' manifests, those of check-jsonschema, jsonschema's own tests, and what compares with them.
build/schemas: $(STAMP) Makefile
	$(BIN)/python -m pip install --quiet --no-compile --upgrade --target $@ kubernetes-validate==1.37.0 check-jsonschema==0.39.0 jsonschema[format]==4.26.0
	$(BIN)/python -m pip download --quiet --no-deps --no-binary jsonschema --dest $@ jsonschema==4.26.0
	tar -xzf $@/jsonschema-4.26.0.tar.gz -C $@
	@touch $@

# Pictures, films and sounds that others made, and what reads sounds for comparison.
build/real_files: $(STAMP) tests/published/real_files.py
	$(BIN)/python -m tests.published.real_files $@
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $@/judge soundfile==0.14.0 cffi==2.1.1
	@touch $@

# Playwright and axe-core, apart from .venv; the browser is the machine's, by .ci/system-packages where it has none.
build/pages: $(STAMP) Makefile
	$(BIN)/python -m pip install --quiet --no-compile --upgrade --target $@ playwright==1.56.0 greenlet==3.2.4 pyee==13.0.0
	cd $@ && npm pack --silent axe-core@4.11.0 && tar -xzf axe-core-4.11.0.tgz
	@touch $@

# Copied programs run with OpenAI's SDK, for JavaScript that of the clients.
pages: build/pages build/clients/node/.made
	PYTHONPATH=build/pages $(BIN)/python -m pytest -m pages $(ARGS)

# What draws the independent exam, apart from .venv: nothing else may draw with it.
build/exam: benchmarks/independent_exam/requirements.txt $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $@ --requirement $<
	@touch $@

exam: build/exam
	PYTHONPATH=build/exam $(BIN)/python -m benchmarks.independent_exam $(ARGS)

exam-tests: build/exam
	PYTHONPATH=build/exam $(BIN)/python -m pytest tests/benchmarks/independent_exam $(ARGS)

# Ray beside .venv's packages, which a .pth lends it: the extra `ray` without a second torch. Empty before Python 3.11,
# which the extra asks for: then, and where no namespace can be made, the tests say that they are skipped.
build/ray/.made: constraints/cpu.txt $(STAMP)
	@echo "making build/ray: downloads about 40 packages, 350 MB once unpacked; 1 to 2 minutes"
	rm -rf build/ray && mkdir -p build/ray
	if $(BIN)/python -c "import sys; sys.exit(sys.version_info < (3, 11))"; then set -e; \
	  $(BIN)/python -m venv --without-pip build/ray; \
	  there=$$(build/ray/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"); \
	  $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $$there/server.pth; \
	  $(call PIP_INTO,build/ray) --constraint constraints/cpu.txt 'ray[serve]==2.60.0'; \
	fi
	@touch $@

# All that downloads, so that `make --jobs 3 environments` makes several beside each other.
environments: $(NPU_PAIRS:%=build/npu/%/.made) $(CLIENTS:%=build/clients/%/.made) build/clients/node/.made \
  build/clients/schemathesis/.made build/clients/vllm/.fetched build/ray/.made build/schemas build/pages

test-ray: build/ray/.made
	$(BIN)/python -m tests.deploy.ray.run $(ARGS)

long: $(STAMP) build/reference build/schemas build/real_files build/ray/.made
	$(BIN)/python -m pytest -m "long and not ray" --timeout 3600 -o faulthandler_timeout=0 $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m tests.deploy.ray.run -m "ray and long" -o faulthandler_timeout=0)

# What a release consists of, in dist/ (DIST=): a directory that must not be there yet.
.PHONY: release
DIST ?= dist
release: build/release/.made
	$(BIN)/python -m deploy.release "$(DIST)"

build/release/.made: $(STAMP) Makefile
	rm -rf build/release
	$(BIN)/python -m venv --without-pip build/release
	$(call PIP_INTO,build/release) build==1.6.1 check-wheel-contents==0.6.3 cyclonedx-bom==7.5.0 twine==7.0.0
	@touch $@

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m docs.generate --check
	$(BIN)/python -m constraints.wheels --check

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	$(BIN)/python -m docs.generate

wheels: $(STAMP)
	$(BIN)/python -m constraints.wheels

# Committed files that a script draws, records or trains (hours); run only to make them again.
embedded: $(STAMP)
	$(BIN)/python -m demo train --out build/demo $(ARGS)
	mkdir -p model/embedded/pixelferry-demo
	install -m 644 build/demo/checkpoint/* model/embedded/pixelferry-demo

media: $(STAMP)
	$(BIN)/python -m demo.draw_media examples/media
	$(BIN)/python -m demo.record_media examples/media

known: $(STAMP)
	$(BIN)/python -m tests.model.selftest.reference_outputs

RELEASES := 4.51.3 4.57.6 5.23.0

resaved: $(STAMP)
	rm -rf build/layouts
	$(BIN)/python -m tests.layouts.directories build/layouts
	for release in $(RELEASES); do \
	  $(PYTHON) -m venv build/transformers-$$release && \
	  build/transformers-$$release/bin/pip install --quiet torch==2.13.0 transformers==$$release pillow && \
	  build/transformers-$$release/bin/pip install --quiet --no-deps torchvision==0.28.0 && \
	  build/transformers-$$release/bin/python tests/layouts/resave.py tests/layouts/resaved build/layouts/* || exit 1; \
	done

bench-preprocess: $(STAMP)
	$(BIN)/python -m benchmarks.preprocess_speed
