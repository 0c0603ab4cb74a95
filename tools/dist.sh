#!/bin/sh
# make dist: one tarball that runs on any Linux of this processor with glibc.
#
# bin/shoal has the third-party libraries inside, lib/libshoal.so has them beside it
# (bundle_library.sh). Both are checked, and the unpacked files are run in a root folder where nothing
# but glibc is installed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build-dist
version=$(sed -n "s/^ *version: '\([0-9.]*\)'.*/\1/p" "$root/meson.build" | head -1)
name=shoal-$version-linux-$(uname -m)
tarball=$root/dist/$name.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$name

fail()
{
    echo "dist: $*" >&2
    exit 1
}

# Runs a command whose output matters only if it fails.
quietly()
{
    "$@" >"$work/log" 2>&1 && return
    cat "$work/log" >&2
    fail "failed: $*"
}

build_program()
{
    [ -f "$build/build.ninja" ] || quietly meson setup "$build" "$root" -Dstatic_deps=true \
        -Dgpu_archs=75,80,86,89,90,100,120
    quietly ninja -C "$build" programs/shoal/shoal
    install -m 755 "$build/programs/shoal/shoal" "$stage/bin/"
    strip "$stage/bin/shoal"
}

build_library()
{
    library=libshoal.so
    major=$library.${version%%.*}
    "$root/tools/bundle_library.sh" "$build" "$stage/lib" "$stage/licences"
    ln -s "$library.$version" "$stage/lib/$major"
    ln -s "$major" "$stage/lib/$library"
}

copy_files()
{
    install -m 644 "$root/include/shoal/shoal.h" "$stage/include/shoal/"
    cp -R "$root/models/shoal-mini" "$stage/models/"
    cp "$root"/completions/* "$stage/share/completions/"
    gzip -9nc "$root/docs/shoal.1" >"$stage/share/man/man1/shoal.1.gz"
    cp "$root/README.md" "$root/ARCHITECTURE.md" "$root/BENCH.md" "$root/CONTRIBUTING.md" \
        "$root/LICENSE" "$stage/"
    cp "$root"/docs/* "$stage/docs/"
    install -m 644 "$root"/examples/*.c "$stage/examples/"
    cp -R "$root"/bindings/comfyui "$stage/bindings/"
    rm -rf "$stage/bindings/comfyui/tests" "$stage/bindings/comfyui/__pycache__"
    install -m 644 "$root/bindings/python/README.md" "$stage/bindings/python/"
    install -m 644 "$root"/bindings/python/shoal/*.py "$root/bindings/python/shoal/py.typed" \
        "$stage/bindings/python/shoal/"
    for link in $(grep -o '](\([^)]*\))' "$stage/README.md" | tr -d '()]'); do
        [ -e "$stage/$link" ] || fail "README.md points to $link, which is left out"
    done
    chmod -R u+w,go+rX "$stage"
}

is_glibc()
{
    case $1 in
    libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | ld-linux-*) return 0 ;;
    esac
    return 1
}

# Needs nothing but glibc, and names no folder of this machine.
check_program()
{
    for needed in $(objdump -p "$stage/bin/shoal" | sed -n 's/^ *NEEDED *//p'); do
        is_glibc "$needed" || fail "the program needs $needed"
    done
    if grep -qF "$root" "$stage/bin/shoal"; then fail "the program names $root"; fi
}

pack()
{
    mkdir -p "$root/dist"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
        -C "$work" -cf - "$name" | gzip -9n >"$tarball"
}

# Unpacked elsewhere, with an empty environment, the program finds its model beside itself.
try_unpacked()
{
    mkdir "$work/away"
    tar -C "$work/away" -xzf "$tarball"
    cd /
    quietly env -i "$work/away/$name/bin/shoal" verify --width 64 --height 64 --steps 1
    cd "$root"
    quietly gcc -o "$work/away/$name/bin/paint" "$root/examples/paint.c" \
        -I"$work/away/$name/include" -L"$work/away/$name/lib" -lshoal
}

# A root folder with glibc and what was unpacked. There is no /proc there to find the model by.
try_in_bare_root()
{
    bare=$work/away
    for file in $(ldd "$stage/bin/shoal" "$stage/lib/libshoal.so" | grep -o '/[^ ]*\.so[^ ]*'); do
        is_glibc "$(basename "$file")" || continue
        mkdir -p "$bare$(dirname "$file")"
        cp -L "$file" "$bare$file"
    done
    mkdir -p "$bare/tmp"
    chroot=$(command -v chroot || echo /usr/sbin/chroot)
    enter="$chroot $bare"
    [ "$(id -u)" = 0 ] || enter="unshare -r $chroot $bare"
    # shellcheck disable=SC2086
    if ! env -i PATH="$PATH" $enter "/$name/bin/shoal" --version >/dev/null 2>&1; then
        [ "$(id -u)" != 0 ] || fail "the program does not start where there is only glibc"
        echo "dist: not tried in a bare root folder: that takes root or user namespaces"
        return
    fi
    # shellcheck disable=SC2086
    quietly env -i PATH="$PATH" SHOAL_MODELS="/$name/models" $enter "/$name/bin/shoal" \
        generate -p 'a red apple' --width 64 --height 64 --steps 1 -o /tmp/apple.png
    # shellcheck disable=SC2086
    quietly env -i PATH="$PATH" LD_LIBRARY_PATH="/$name/lib" $enter "/$name/bin/paint" \
        "/$name/models/shoal-mini" 'a red apple' /tmp/paint.png
    for picture in apple paint; do
        [ -s "$bare/tmp/$picture.png" ] || fail "no picture was painted"
    done
}

for folder in bin lib include/shoal models licences docs examples bindings/python/shoal \
    share/man/man1 share/completions; do
    mkdir -p "$stage/$folder"
done
echo "dist: compiling in build-dist, kernels for seven kinds of cards (where nvcc is), packing, and" \
    "trying what was packed: without an earlier build-dist this takes many minutes"
build_program
build_library
copy_files
check_program
pack
try_unpacked
try_in_bare_root
glibc=$(objdump -T "$stage/bin/shoal" "$stage"/lib/*.so.* | grep -o 'GLIBC_[0-9.]*' | sort -uV |
    tail -1 | cut -d_ -f2)
echo "dist/$name.tar.gz: $(du -h "$tarball" | cut -f1), needs glibc $glibc or newer"
