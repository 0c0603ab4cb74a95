#!/bin/sh
# Installs the Debian or Ubuntu packages that the build and the tests need, if any is missing.
set -eu

if ! command -v dpkg-query >/dev/null; then
    echo "no Debian or Ubuntu: not checking packages; README.md lists what is needed" >&2
    exit 0
fi

packages="gcc g++ libc6-dev make meson ninja-build pkg-config python3 python3-numpy
libjansson-dev libpng-dev libpcre2-dev libutf8proc-dev libxxhash-dev liburing-dev libcmocka-dev"

missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "as root, run:  apt-get install$missing" >&2
        echo "then run make again" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
