#!/bin/sh
# A minute of libFuzzer on every target, starting from the corpus that the tests replay.
set -eu

if ! command -v clang >/dev/null; then
    echo "make fuzz needs clang" >&2
    exit 1
fi
[ -f build-fuzz/build.ninja ] || CC=clang meson setup build-fuzz -Dfuzz=true \
    -Dc_args=-fsanitize=fuzzer-no-link -Db_sanitize=address,undefined -Db_lundef=false -Ddebug=true -Doptimization=1
ninja -C build-fuzz --quiet
for target in build-fuzz/tests/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    name=$(basename "$target")
    corpus=build-fuzz/corpus/$name
    mkdir -p "$corpus"
    echo "== $name =="
    case $name in
    fuzz_safetensors) options=-dict=tests/fuzz/safetensors.dict ;;
    fuzz_tokenizer) options="-max_len=8192 -timeout=20" ;;
    *) options= ;;
    esac
    # shellcheck disable=SC2086
    "$target" $options -max_total_time="${SECONDS_EACH:-60}" -rss_limit_mb=4096 "$corpus" \
        "tests/fuzz/corpus/${name#fuzz_}"
done
