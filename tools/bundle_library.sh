#!/bin/sh
# tools/bundle_library.sh BUILD LIBRARIES LICENCES: a build's libshoal as one file that needs nothing
# but glibc and its neighbours, these neighbours, and their licences, into two folders.
#
# Distributions do not build their static libraries for use in shared ones, so these are copied.
# What make dist and make wheel have in common.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=$1
libraries=$2
licences=$3
version=$(sed -n "s/^ *version: '\([0-9.]*\)'.*/\1/p" "$root/meson.build" | head -1)
library=$libraries/libshoal.so.$version

# Whose code it is: their licences travel along.
packages="libjansson-dev libpcre2-dev libpng-dev liburing-dev libutf8proc-dev libxxhash-dev
zlib1g-dev"

fail()
{
    echo "$(basename "$0"): $*" >&2
    exit 1
}

is_glibc()
{
    case $1 in
    libc.so.6 | libm.so.6 | libpthread.so.0 | libdl.so.2 | ld-linux-*) return 0 ;;
    esac
    return 1
}

link_library()
{
    # An old-style rpath, because it also holds for the libraries that those beside it need.
    # shellcheck disable=SC2016,SC2046
    gcc -shared -o "$library" -Wl,-soname,"libshoal.so.${version%%.*}" \
        -Wl,--whole-archive "$build/libshoal_core.a" -Wl,--no-whole-archive \
        -Wl,--as-needed -Wl,--no-undefined -Wl,--disable-new-dtags,-rpath,'$ORIGIN' \
        $(pkg-config --libs jansson libpng libpcre2-8 libutf8proc libxxhash liburing) -lm -pthread
    strip --strip-unneeded "$library"
    for file in $(ldd "$library" | sed -n 's/.* => \(\/[^ ]*\).*/\1/p'); do
        is_glibc "$(basename "$file")" || cp -L "$file" "$libraries/"
    done
}

copy_licences()
{
    for package in $packages; do
        [ -f "/usr/share/doc/$package/copyright" ] ||
            fail "no /usr/share/doc/$package/copyright: build on Debian or Ubuntu"
        cp -L "/usr/share/doc/$package/copyright" "$licences/$package.txt"
    done
}

# Nothing is needed that is not here, no folder of this machine is named, nothing else is exported.
check_libraries()
{
    for file in "$libraries"/*.so.*; do
        for needed in $(objdump -p "$file" | sed -n 's/^ *NEEDED *//p'); do
            is_glibc "$needed" || [ -f "$libraries/$needed" ] ||
                fail "$(basename "$file") needs $needed"
        done
        if grep -qF "$root" "$file"; then fail "$(basename "$file") names $root"; fi
    done
    foreign=$(nm -D --defined-only "$library" | awk '$3 !~ /^shoal_/ { print $3 }' | head -3)
    # shellcheck disable=SC2086
    [ -z "$foreign" ] || fail "$(basename "$library") exports what is not its own:" $foreign
}

link_library
copy_licences
check_libraries
