# The front door. Meson does the building; see CONTRIBUTING.md.
#
#   make         build build/shoal
#   make demo    build, paint pictures from the embedded model in little memory, verify the bits
#   make test    everything that CI runs, in three builds (some 20 minutes on 2 cores); the last
#                line is "N passed, N failed"
#   make test-gpu  the tests of operations and of whole models on this machine's NVIDIA card, and
#                how long operations take
#   make sanitize-gpu  the same under compute-sanitizer: memcheck and racecheck
#   make test-comfy  the node pack in a real ComfyUI: COMFYUI_DIR is its folder, COMFYUI_PYTHON
#                its Python
#   make dist    one tarball that needs nothing but glibc, this system's version or newer
#   make wheel   the Python package with this build's library inside, for pip to install
#   make fuzz    a minute of libFuzzer on every target (needs clang)
#   make install / make uninstall (PREFIX=/usr/local) / make clean / make format (clang-format)

MESON ?= meson
BUILD := build
PREFIX ?= /usr/local
SANITIZE = $(MESON) test -C $(BUILD) --benchmark --suite sanitize --timeout-multiplier 4 \
  --test-args untimed

.PHONY: all demo test test-gpu test-comfy sanitize-gpu dist wheel fuzz install uninstall clean \
  deps format
.DEFAULT_GOAL := all

# Installs missing Debian packages; does nothing and needs no rights when nothing is missing.
deps:
	@tools/install_deps.sh

$(BUILD)/build.ninja: | deps
	$(MESON) setup $(BUILD) -Dprefix=$(PREFIX) -Dlibdir=lib

all: $(BUILD)/build.ninja
	@ninja -C $(BUILD) --quiet
	@ln -sf programs/shoal/shoal $(BUILD)/shoal

demo: all
	@tools/demo.sh $(BUILD)/shoal

test: deps
	@tools/run_tests.py

# Its kernels are those of the build, for all cards. Without a card every test is skipped.
test-gpu: $(BUILD)/build.ninja
	@$(MESON) test -C $(BUILD) --benchmark --suite gpu --verbose

# On the CPU; on a card with SHOAL_COMFY_DEVICE=cuda and, for its legacy loader,
# SHOAL_COMFY_FLAGS=--disable-dynamic-vram.
test-comfy: all
	@bindings/comfyui/tests/comfy/run.py $(BUILD)

# The operations and the models, untimed, with every address and every barrier watched. Of cuBLASLt's
# kernels racecheck does not know how they wait for one another, and takes that for races.
sanitize-gpu: $(BUILD)/build.ninja
	@if command -v compute-sanitizer > /dev/null; then \
	  $(SANITIZE) --wrapper "compute-sanitizer --tool memcheck --error-exitcode 1" && \
	  SHOAL_CUDA_MULTIPLY=own $(SANITIZE) \
	    --wrapper "compute-sanitizer --tool racecheck --error-exitcode 1"; \
	else echo "skipped: there is no compute-sanitizer here; the CUDA toolkit has it"; fi

dist: all
	@tools/dist.sh

wheel: all
	@bindings/python/make_wheel.py $(BUILD) dist

fuzz: deps
	@tools/fuzz.sh

install: all
	@$(MESON) configure $(BUILD) -Dprefix=$(PREFIX)
	ninja -C $(BUILD) install
	@if [ "$$(id -u)" = 0 ] && [ -z "$$DESTDIR" ]; then ldconfig; fi

uninstall:
	ninja -C $(BUILD) uninstall

format:
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh')

clean:
	rm -rf $(BUILD) build-* dist
