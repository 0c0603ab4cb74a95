#!/bin/sh
# The main job, small: pictures from the embedded model in a device arena much smaller than its DiT.
set -eu

shoal=$1
budget=6MiB
mkdir -p out

echo "== painting in $budget of device memory =="
"$shoal" generate -p "a cat wearing a hat" --seed 7 --vram "$budget" -o out/demo-cat.png
"$shoal" generate -p "a rocket on a purple background" --seed 7 --vram "$budget" -o out/demo-rocket.png
echo
echo "== the same bits, whatever the memory =="
"$shoal" verify -p "a cat wearing a hat" --seed 7 --vram "$budget"
