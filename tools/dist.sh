#!/bin/sh
# make dist: one tarball that runs on any Linux of this processor with glibc.
#
# bin/shoal has the third-party libraries inside. lib/libshoal.so has them beside it: distributions
# do not build their static libraries for use in shared ones. Both are checked, and the unpacked
# files are run in a root folder where nothing but glibc is installed.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build-dist
version=$(sed -n "s/^ *version: '\([0-9.]*\)'.*/\1/p" "$root/meson.build" | head -1)
name=shoal-$version-linux-$(uname -m)
tarball=$root/dist/$name.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$name

# Whose code is in the tarball: their licences travel along.
packages="libjansson-dev libpcre2-dev libpng-dev liburing-dev libutf8proc-dev libxxhash-dev
zlib1g-dev"

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
    library=$stage/lib/libshoal.so.$version
    major=${version%%.*}

    # An old-style rpath, because it also holds for the libraries that those beside it need.
    # shellcheck disable=SC2016,SC2046
    quietly gcc -shared -o "$library" -Wl,-soname,"libshoal.so.$major" \
        -Wl,--whole-archive "$build/libshoal_core.a" -Wl,--no-whole-archive \
        -Wl,--as-needed -Wl,--no-undefined -Wl,--disable-new-dtags,-rpath,'$ORIGIN' \
        $(pkg-config --libs jansson libpng libpcre2-8 libutf8proc liburing) -lm -pthread
    strip --strip-unneeded "$library"
    ln -s "libshoal.so.$version" "$stage/lib/libshoal.so.$major"
    ln -s "libshoal.so.$major" "$stage/lib/libshoal.so"
    for file in $(ldd "$library" | sed -n 's/.* => \(\/[^ ]*\).*/\1/p'); do
        is_glibc "$(basename "$file")" || cp -L "$file" "$stage/lib/"
    done
}

copy_files()
{
    install -m 644 "$root/include/shoal/shoal.h" "$stage/include/shoal/"
    cp -R "$root/models/shoal-mini" "$stage/models/"
    cp "$root"/completions/* "$stage/share/completions/"
    gzip -9nc "$root/docs/shoal.1" >"$stage/share/man/man1/shoal.1.gz"
    cp "$root/README.md" "$root/LICENSE" "$stage/"
    # The picture in the README.
    [ ! -f "$root/docs/demo.png" ] || cp "$root/docs/demo.png" "$stage/docs/"
    for package in $packages; do
        [ -f "/usr/share/doc/$package/copyright" ] ||
            fail "no /usr/share/doc/$package/copyright: build on Debian or Ubuntu"
        cp -L "/usr/share/doc/$package/copyright" "$stage/licences/$package.txt"
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

# Needs nothing but glibc (and, for a library, its neighbours), and names no folder of this machine.
check_binary()
{
    for needed in $(objdump -p "$1" | sed -n 's/^ *NEEDED *//p'); do
        is_glibc "$needed" && continue
        case $1 in
        */lib/*) [ -f "$stage/lib/$needed" ] && continue ;;
        esac
        fail "$(basename "$1") needs $needed"
    done
    if grep -qF "$root" "$1"; then fail "$(basename "$1") names $root"; fi
}

check_exports()
{
    foreign=$(nm -D --defined-only "$1" | awk '$3 !~ /^shoal_/ { print $3 }' | head -3)
    # shellcheck disable=SC2086
    [ -z "$foreign" ] || fail "$(basename "$1") exports what is not its own:" $foreign
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

for folder in bin lib include/shoal models licences docs share/man/man1 share/completions; do
    mkdir -p "$stage/$folder"
done
build_program
build_library
copy_files
for binary in "$stage/bin/shoal" "$stage"/lib/*.so.*; do
    check_binary "$binary"
done
check_exports "$stage/lib/libshoal.so"
pack
try_unpacked
try_in_bare_root
glibc=$(objdump -T "$stage/bin/shoal" "$stage"/lib/*.so.* | grep -o 'GLIBC_[0-9.]*' | sort -uV |
    tail -1 | cut -d_ -f2)
echo "dist/$name.tar.gz: $(du -h "$tarball" | cut -f1), needs glibc $glibc or newer"
