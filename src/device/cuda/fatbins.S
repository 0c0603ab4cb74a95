/* The compiled kernels, each module's fatbin under the name of cuda_fatbin_MODULE (launch.c). The
 * build says which there are: EMBEDS is "embed MODULE;embed MODULE;". */
.macro embed module
    .balign 64
    .globl cuda_fatbin_\module
    .hidden cuda_fatbin_\module
cuda_fatbin_\module:
    .incbin "\module\().fatbin"
.endm

    .section .rodata
    EMBEDS

    .section .note.GNU-stack, "", %progbits
