#!/bin/sh
# make dist: one tarball that runs on any Linux of this processor with glibc. Third-party libraries
# are linked statically; the script checks that, and runs the unpacked program where nothing else
# is installed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build-dist
version=$(sed -n "s/^ *version: '\([0-9.]*\)'.*/\1/p" "$root/meson.build" | head -1)
name=shoal-$version-linux-$(uname -m)
tarball=$root/dist/$name.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$name

# Whose code is in the binaries; their licences travel along.
packages="libjansson-dev libopenblas-dev libpcre2-dev libpng-dev libutf8proc-dev libxxhash-dev
zlib1g-dev"

fail()
{
    echo "dist: $*" >&2
    exit 1
}

build_all()
{
    # What the shared library takes in statically stays inside it.
    hide=-Wl,--exclude-libs,libjansson.a:libopenblas.a:libpcre2-8.a:libpng16.a:libutf8proc.a:libz.a

    [ -f "$build/build.ninja" ] ||
        meson setup "$build" "$root" -Dstatic_deps=true -Dprefix=/usr -Dlibdir=lib \
            -Dc_link_args="$hide" >"$work/setup.log" 2>&1 || {
        cat "$work/setup.log" >&2
        fail "meson setup failed"
    }
    ninja -C "$build" --quiet
    DESTDIR=$work/install meson install -C "$build" --quiet --no-rebuild
}

copy_all()
{
    mkdir -p "$stage/bin" "$stage/lib" "$stage/include/shoal" "$stage/models" "$stage/licences" \
        "$stage/share/man/man1" "$stage/share/completions"
    install -m 755 "$work/install/usr/bin/shoal" "$stage/bin/"
    cp -P "$work"/install/usr/lib/libshoal.so* "$stage/lib/"
    strip "$stage/bin/shoal"
    strip --strip-unneeded "$stage"/lib/libshoal.so.*.*
    install -m 644 "$root/include/shoal/shoal.h" "$stage/include/shoal/"
    cp -R "$root/models/shoal-mini" "$stage/models/"
    cp "$root"/completions/* "$stage/share/completions/"
    gzip -9nc "$root/docs/shoal.1" >"$stage/share/man/man1/shoal.1.gz"
    cp "$root/README.md" "$root/LICENSE" "$stage/"
    # The picture in the README.
    if [ -f "$root/docs/demo.png" ]; then
        mkdir -p "$stage/docs"
        cp "$root/docs/demo.png" "$stage/docs/"
    fi
    for package in $packages; do
        [ -f "/usr/share/doc/$package/copyright" ] ||
            fail "no /usr/share/doc/$package/copyright: build on Debian or Ubuntu"
        cp -L "/usr/share/doc/$package/copyright" "$stage/licences/$package.txt"
    done
    chmod -R u+w,go+rX "$stage"
}

# Nothing but glibc may be needed, and no folder of this machine may be named.
check_binary()
{
    needed=$(objdump -p "$1" | sed -n 's/^ *NEEDED *//p')
    for library in $needed; do
        case $library in
        libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | ld-linux-*) ;;
        *) fail "$(basename "$1") needs $library" ;;
        esac
    done
    if grep -qF "$root" "$1"; then fail "$(basename "$1") names $root"; fi
}

check_library()
{
    foreign=$(nm -D --defined-only "$1" | awk '$3 !~ /^shoal_/ { print $3 }' | head -3)
    [ -z "$foreign" ] || fail "$(basename "$1") exports what is not its own:" $foreign
}

pack()
{
    mkdir -p "$root/dist"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" \
        -C "$work" -cf - "$name" | gzip -9n >"$tarball"
}

# Unpacks into an empty root folder that has glibc and nothing else, and paints a picture there. In
# such a folder there is no /proc to find the model by, so it is named.
run_in_bare_root()
{
    bare=$work/bare
    mkdir -p "$bare/tmp"
    tar -C "$bare" -xzf "$tarball"
    for library in $(ldd "$stage/bin/shoal" "$stage/lib/libshoal.so" | grep -o '/[^ ]*\.so[^ ]*' | sort -u); do
        case $library in */libshoal*) continue ;; esac
        mkdir -p "$bare$(dirname "$library")"
        cp -L "$library" "$bare$library"
    done
    set -- "/$name/bin/shoal" generate -p 'a red apple' --vram 16MiB --steps 2 -o /tmp/apple.png
    if [ "$(id -u)" = 0 ]; then
        env -i SHOAL_MODELS="/$name/models" "$(command -v chroot)" "$bare" "$@" >/dev/null
    elif unshare -r true 2>/dev/null; then
        env -i SHOAL_MODELS="/$name/models" unshare -r "$(command -v chroot)" "$bare" "$@" >/dev/null
    else
        echo "dist: not tried in a bare root folder: that takes root or user namespaces"
        return
    fi
    [ -s "$bare/tmp/apple.png" ] || fail "the program painted nothing in a bare root folder"
}

# Unpacked elsewhere, with an empty environment, it finds its model beside itself.
run_unpacked()
{
    mkdir "$work/away"
    tar -C "$work/away" -xzf "$tarball"
    (cd / && env -i "$work/away/$name/bin/shoal" verify --width 64 --height 64 --steps 1) \
        >"$work/verify.log" 2>&1 || {
        cat "$work/verify.log" >&2
        fail "the unpacked program does not verify"
    }
    if command -v gcc >/dev/null; then
        gcc -o "$work/away/paint" "$root/examples/paint.c" -I"$work/away/$name/include" \
            -L"$work/away/$name/lib" -lshoal -Wl,-rpath,"$work/away/$name/lib"
        "$work/away/paint" "$work/away/$name/models/shoal-mini" 'a red apple' \
            "$work/away/apple.png" >/dev/null
    fi
}

build_all
copy_all
for binary in "$stage/bin/shoal" "$stage"/lib/libshoal.so.*.*; do
    check_binary "$binary"
done
check_library "$stage/lib/libshoal.so"
pack
run_unpacked
run_in_bare_root
echo "dist/$name.tar.gz: $(du -h "$tarball" | cut -f1), needs glibc $(objdump -T "$stage/bin/shoal" \
    "$stage/lib/libshoal.so" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2) or newer"
