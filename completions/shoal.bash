# bash completion for shoal

_shoal()
{
    local current=${COMP_WORDS[COMP_CWORD]}
    local previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]}
    local run='--prompt --negative --model --dit --text-encoder --vae --tokenizer --tokenizer-2 --output
        --width --height --steps --cfg --seed --count --sampler --schedule --shift --init --strength --lora --vram --ram
        --resident-blocks --prefetch-slots --buffer --lanes --vae-strips --wire --host-format --pin
        --disk-cache --rates --device --threads --json --help'

    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W \
            'generate plan verify devices samplers inspect trace bench convert cache help --help --version' -- "$current")
        return
    fi
    case $previous in
    -m | --model)
        mapfile -t COMPREPLY < <(compgen -W mini -- "$current"; compgen -f -- "$current")
        compopt -o filenames
        return
        ;;
    --dit | --text-encoder | --vae | --tokenizer | --tokenizer-2 | -o | --output | --trace | \
        --rates | --file | --init | --lora | --disk-cache)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames
        return
        ;;
    --sampler)
        mapfile -t COMPREPLY < <(compgen -W 'euler euler_ancestral heun dpmpp_2m uni_pc uni_pc_bh2' -- "$current")
        return
        ;;
    --schedule)
        mapfile -t COMPREPLY < <(compgen -W 'model simple normal karras exponential beta' -- "$current")
        return
        ;;
    --buffer) mapfile -t COMPREPLY < <(compgen -W 'double single auto' -- "$current"); return ;;
    --prefetch-slots) mapfile -t COMPREPLY < <(compgen -W '2 3 4 5 6 auto' -- "$current"); return ;;
    --resident-blocks | --lanes) mapfile -t COMPREPLY < <(compgen -W auto -- "$current"); return ;;
    --dir)
        mapfile -t COMPREPLY < <(compgen -d -- "$current")
        compopt -o filenames
        return
        ;;
    --block-size) mapfile -t COMPREPLY < <(compgen -W '64MiB 648MiB' -- "$current"); return ;;
    --seed) mapfile -t COMPREPLY < <(compgen -W random -- "$current"); return ;;
    --vram | --ram) mapfile -t COMPREPLY < <(compgen -W 'max 1GiB 2GiB 4GiB 8GiB' -- "$current"); return ;;
    --vae-strips) mapfile -t COMPREPLY < <(compgen -W 'auto off on' -- "$current"); return ;;
    --pin) mapfile -t COMPREPLY < <(compgen -W 'on staging off' -- "$current"); return ;;
    --host-format) mapfile -t COMPREPLY < <(compgen -W 'storage compute' -- "$current"); return ;;
    --wire) mapfile -t COMPREPLY < <(compgen -W 'auto raw packed' -- "$current"); return ;;
    --on)
        mapfile -t COMPREPLY < <(compgen -W 'rtx3060 rtx4060 rtx4090 rtx5090 l4 h200' -- "$current"
            compgen -f -- "$current")
        return
        ;;
    --device) mapfile -t COMPREPLY < <(compgen -W cpu -- "$current"); return ;;
    -p | --prompt | -n | --negative | --width | --height | --steps | --cfg | --count | --shift | --strength | \
        --threads | --from | --to | --step | --blocks | --tokens) return ;;
    help)
        mapfile -t COMPREPLY < <(compgen -W 'generate plan verify devices samplers inspect trace bench convert cache' -- "$current")
        return
        ;;
    esac
    case $command in
    generate) mapfile -t COMPREPLY < <(compgen -W "$run --trace" -- "$current") ;;
    plan) mapfile -t COMPREPLY < <(compgen -W "$run --on" -- "$current") ;;
    verify) mapfile -t COMPREPLY < <(compgen -W "$run" -- "$current") ;;
    bench)
        local what='links stream --model --file --rates'
        [[ ${COMP_WORDS[2]} == stream ]] && what='--blocks --block-size --tokens --steps --vram --ram
            --resident-blocks --prefetch-slots --buffer --wire --pin --dir'
        mapfile -t COMPREPLY < <(compgen -W "$what --device --threads --json --help" -- "$current")
        ;;
    convert)
        if [[ $current == -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W '--wire --force --json --help' -- "$current")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
            compopt -o filenames
        fi
        ;;
    cache)
        if [[ $current == -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W '--remove --remove-stale --json --help' -- "$current")
        else
            mapfile -t COMPREPLY < <(compgen -d -- "$current")
            compopt -o filenames
        fi
        ;;
    devices | samplers) mapfile -t COMPREPLY < <(compgen -W '--json --help' -- "$current") ;;
    trace)
        if [[ $current == -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W '--output --from --to --step --help' -- "$current")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
            compopt -o filenames
        fi
        ;;
    inspect)
        if [[ $current == -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W '--json --help' -- "$current")
        else
            mapfile -t COMPREPLY < <(compgen -W mini -- "$current"; compgen -f -- "$current")
            compopt -o filenames
        fi
        ;;
    esac
}

complete -F _shoal shoal
