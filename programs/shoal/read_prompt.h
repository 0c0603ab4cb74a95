/* A prompt from standard input, for -p -. */
#ifndef READ_PROMPT_H
#define READ_PROMPT_H

/* All of standard input less the last line's end; the caller's to free. NULL, having said why. */
char *read_prompt(void);

#endif
