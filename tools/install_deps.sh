#!/bin/sh
# Installs the Debian or Ubuntu packages that the build and the tests need, if any is missing.
set -eu

packages="gcc libc6-dev make meson ninja-build pkg-config python3 libjansson-dev libpng-dev
libpcre2-dev libutf8proc-dev libxxhash-dev libcmocka-dev"

missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "shoal needs what Debian calls:$missing" >&2
    echo "(this is no Debian or Ubuntu: install your distribution's packages and run again)" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "run this as root, then again:  apt-get install$missing" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
