# fish completion for shoal

set -l run '__fish_seen_subcommand_from generate plan verify'
set -l none 'not __fish_seen_subcommand_from generate plan verify devices inspect trace bench'
set -l bench '__fish_seen_subcommand_from bench'
set -l trace '__fish_seen_subcommand_from trace'

complete -c shoal -f
complete -c shoal -n $none -a generate -d 'paint pictures'
complete -c shoal -n $none -a plan -d 'say what generate would do'
complete -c shoal -n $none -a verify -d 'compare memory plans'
complete -c shoal -n $none -a devices -d 'list what can be computed on'
complete -c shoal -n $none -a inspect -d 'say what files are'
complete -c shoal -n $none -a trace -d 'draw what a run did when'
complete -c shoal -n $none -a bench -d 'measure this machine'
complete -c shoal -n $none -l version -d 'which version this is'
complete -c shoal -n '__fish_seen_subcommand_from inspect' -F -a mini
complete -c shoal -l json -d 'one JSON object'
complete -c shoal -s h -l help -d help
complete -c shoal -n $run -s p -l prompt -x -d 'what to paint'
complete -c shoal -n $run -s n -l negative -x -d 'what to keep away from'
complete -c shoal -n $run -s m -l model -r -F -a mini -d 'folder, file or mini'
complete -c shoal -n $run -l dit -r -F -d 'the diffusion transformer'
complete -c shoal -n $run -l text-encoder -r -F -d 'the text encoder'
complete -c shoal -n $run -l vae -r -F -d 'the VAE'
complete -c shoal -n $run -l tokenizer -r -F -d 'the tokenizer'
complete -c shoal -n $run -s o -l output -r -F -d 'where the picture goes'
complete -c shoal -n $run -l width -x -d 'pixels, a multiple of 16'
complete -c shoal -n $run -l height -x -d 'pixels, a multiple of 16'
complete -c shoal -n $run -l steps -x -d 'sampling steps'
complete -c shoal -n $run -l cfg -x -d 'guidance; 1 is off'
complete -c shoal -n $run -l seed -x -a random -d 'a number, or random'
complete -c shoal -n $run -l count -x -d pictures
complete -c shoal -n $run -l sampler -x -a euler -d sampler
complete -c shoal -n $run -l shift -x -d 'of the noise schedule'
complete -c shoal -n $run -l vram -x -a 'max 1GiB 2GiB 4GiB 8GiB' -d 'hard cap on device memory'
complete -c shoal -n $run -l ram -x -a 'max 4GiB 8GiB 16GiB' -d 'hard cap on host memory'
complete -c shoal -n $run -l resident-blocks -x -a auto -d 'blocks that stay on the device'
complete -c shoal -n $run -l prefetch-slots -x -a '2 3 4 5 6 auto' -d 'room in the ring'
complete -c shoal -n $run -l buffer -x -a 'double single auto' -d 'when the next block is fetched'
complete -c shoal -n $run -l lanes -x -a auto -d 'prompts and pictures that share a pass'
complete -c shoal -n $run -l device -x -a cpu -d 'where to compute'
complete -c shoal -n $run -l threads -x -d 'threads to compute with'
complete -c shoal -n '__fish_seen_subcommand_from generate' -l trace -r -F -d 'what happened when, as JSON'
complete -c shoal -n $trace -F
complete -c shoal -n $trace -s o -l output -r -F -d 'the SVG'
complete -c shoal -n $trace -l from -x -d seconds
complete -c shoal -n $trace -l to -x -d seconds
complete -c shoal -n $trace -l step -x -d 'sampling step'
complete -c shoal -n $run -l wire -x -a 'auto raw packed' -d 'how streamed weights cross'
complete -c shoal -n $run -l rates -r -F -d 'measured rates of this machine'
complete -c shoal -n '__fish_seen_subcommand_from plan' -l on -r -F -a 'rtx3060 rtx4060 rtx4090 rtx5090 l4 h200' -d 'plan for another machine'
complete -c shoal -n $bench -a links -d 'copies, reads, packing, computing'
complete -c shoal -n $bench -s m -l model -r -F -a mini -d 'whose file is read'
complete -c shoal -n $bench -l file -r -F -d 'measure the drive with this one'
complete -c shoal -n $bench -l rates -r -F -d 'where the rates go'
complete -c shoal -n $bench -l device -x -a cpu -d 'where to compute'
complete -c shoal -n $bench -l threads -x -d 'threads to compute with'
