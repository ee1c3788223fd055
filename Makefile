# SPDX-License-Identifier: Apache-2.0
# The front door. The work is in tools/*; every target may be repeated and then starts at once.
.PHONY: help demo test lint cuda device device-pack device-test device-sanitize bench score wheel sanitize simt mutants clean

help:
	@sed -n 's/^## //p' Makefile

## make demo         set up .venv, build for this machine, run a checked KDA prefill and decode (NumPy only)
demo:
	@tools/setup.sh build
	@tools/build.sh native --target python
	@.venv/bin/python examples/demo.py

## make test         all C++ and Python tests; adds PyTorch and FLA to .venv
test:
	@tools/setup.sh build gtest test
	@tools/build.sh cpu --target all --target python
	@.venv/bin/python tools/run_tests.py

## make lint         formatting, clang-tidy, ruff, shellcheck, and the rules of CONTRIBUTING.md
lint:
	@tools/setup.sh build gtest lint
	@tools/lint.sh

## make cuda         build every CUDA architecture without a GPU, then check the kernels statically
cuda:
	@tools/setup.sh build cuda
	@tools/build.sh cuda
	@.venv/bin/python tests/static/check_kernels.py build/cuda
	@.venv/bin/python tools/compile_times.py build/cuda

## make device       build what device-test runs; ARCHS=90 builds for one architecture only
device:
	@tools/setup.sh build gtest cuda
	@tools/build.sh device $(if $(ARCHS),-DLINATTN_CUDA_ARCHS=$(ARCHS)) --target all --target python

## make device-pack  dist/linattn-device.tar.xz: build/device for a machine with a GPU and no compiler
device-pack: device
	@tools/device_pack.sh

## make device-test  run build/device, and the package's CUDA tests, on this machine's GPU; builds it if it is not there
device-test:
	@test -x build/device/linattn_unit_tests || $(MAKE) device
	@tools/device_test.sh

## make device-sanitize  every kernel instance of build/device under compute-sanitizer's four tools
device-sanitize:
	@test -x build/device/linattn_device_tests || $(MAKE) device
	@tools/device_sanitize.sh

## make bench        build for this machine, with CUDA if it has a GPU, and run linattn-bench; ARGS='--filter kda'
bench:
	@tools/setup.sh build
	@tools/build.sh native
	@build/native/linattn-bench $(ARGS)

## make score        IMPLEMENTATION=name: build, check and time that row; standard output is one line of JSON
score:
	@tools/setup.sh build >&2
	@tools/build.sh native --target linattn-bench >&2
	@build/native/linattn-bench --score $(if $(IMPLEMENTATION),--implementation $(IMPLEMENTATION)) $(ARGS)

## make wheel        dist/linattn-*.whl, CPU only; LINATTN_CUDA=ON make wheel adds the CUDA kernels
wheel:
	@tools/setup.sh build
	@tools/wheel.sh

## make sanitize     C++ tests under the address and undefined-behaviour sanitizers
sanitize:
	@tools/setup.sh build gtest
	@tools/build.sh asan
	@.venv/bin/python tools/run_tests.py --build build/asan --no-python

# Everything takes half an hour on two cores.
FILTER = Simt|BuildProbe|Instances.*_(serving|split|transition|strong|decode|columns|tree)$$|Garbage|Replay|Fused|Errors.(AL|An|The)|Causal|N0[5-8]

## make simt         the CUDA kernels compiled for the CPU, thread by thread, against the oracle: needs no GPU
simt:
	@tools/setup.sh build gtest cuda
	@tools/build.sh simt --target linattn_device_tests
	@.venv/bin/python tools/run_tests.py --build build/simt --no-python --filter '$(FILTER)'

## make mutants      seed three faults, one at a time: the tests must notice each
mutants:
	@tools/setup.sh build gtest
	@.venv/bin/python tools/mutants.py

## make clean        remove everything that was built (.venv stays)
clean:
	@rm -rf build dist python/linattn/_lib
