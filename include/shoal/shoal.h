/*
 * shoal: deep models in shallow memory.
 *
 * libshoal paints pictures with diffusion transformers that are bigger than the memory they get.
 * This is its only public header. The whole use, errors left out:
 *
 *     struct shoal_model *model = NULL;
 *     struct shoal_plan *plan = NULL;
 *     struct shoal_result *result = NULL;
 *     struct shoal_request request;
 *     struct shoal_error error = {0};
 *
 *     shoal_model_open(&(struct shoal_model_paths){.model = "models/shoal-mini"}, &model, &error);
 *     shoal_request_init(&request, model);            // the model's own defaults
 *     request.prompt = "a red apple";
 *     request.vram_bytes = 8 << 20;                   // a hard cap
 *     shoal_plan_create(model, &request, &plan, &error);
 *     puts(shoal_plan_text(plan));                    // what will run, exactly
 *     shoal_run(plan, NULL, &result, &error);
 *     shoal_result_write_png(result, 0, "apple.png", &error);
 *     shoal_result_destroy(&result);
 *     shoal_plan_destroy(&plan);
 *     shoal_model_close(&model);
 *
 * Conventions. Functions that can fail return a status, 0 being success, and fill the caller's
 * error (which may be NULL) with a sentence that names the file, tensor or option and what would
 * do instead. The library never prints, exits or aborts on input. Sizes are bytes unless the name
 * says otherwise. Strings are UTF-8, owned by the callee's object unless said otherwise. Distinct
 * objects may be used from distinct threads; one object by one thread at a time.
 */
#ifndef SHOAL_H
#define SHOAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_VERSION "0.1.0"

#if defined(__GNUC__)
#define SHOAL_API __attribute__((visibility("default")))
#define SHOAL_CHECKED __attribute__((warn_unused_result))
#else
#define SHOAL_API
#define SHOAL_CHECKED
#endif

/* ---- status and errors ---- */

/* X(name, text): every status, once. */
#define SHOAL_STATUSES(X)                                                                          \
    X(SHOAL_OK, "success")                                                                         \
    X(SHOAL_E_INVALID, "invalid argument or option")                                               \
    X(SHOAL_E_MEMORY, "out of host memory")                                                        \
    X(SHOAL_E_BUDGET, "the memory budget is too small")                                            \
    X(SHOAL_E_IO, "reading or writing failed")                                                     \
    X(SHOAL_E_FORMAT, "malformed file")                                                            \
    X(SHOAL_E_UNSUPPORTED, "not supported")                                                        \
    X(SHOAL_E_MISSING, "something the model needs is missing")                                     \
    X(SHOAL_E_NUMERIC, "not a number")                                                             \
    X(SHOAL_E_DEVICE, "the device failed")                                                         \
    X(SHOAL_E_CANCELLED, "cancelled")

enum shoal_status {
#define SHOAL_STATUS_ENUM(name, text) name,
    SHOAL_STATUSES(SHOAL_STATUS_ENUM)
#undef SHOAL_STATUS_ENUM
};

/* Filled on failure only. `file` and `line` say where in the library it arose. */
struct shoal_error {
    enum shoal_status status;
    int line;
    const char *file;
    char text[1000];
};

/* The status's own text, e.g. "malformed file". Static storage. */
SHOAL_API const char *shoal_status_text(enum shoal_status status);

/* The library's version, as SHOAL_VERSION was when it was built. Static storage. */
SHOAL_API const char *shoal_version(void);

/* ---- models ---- */

struct shoal_model;

/*
 * Where the parts are. `model` is a folder (diffusers layout: transformer/ text_encoder/ vae/
 * tokenizer/; ComfyUI layout: diffusion_models/ text_encoders/ vae/), or a single file holding
 * the DiT; a folder transformer/ is opened with a text_conditioner/ that lies beside it. NULL means
 * that every other member is given. Each other member, when not NULL, is a
 * file or folder that takes the place of that part. The strings need not outlive the call.
 */
struct shoal_model_paths {
    const char *model;
    const char *dit;
    const char *text_encoder;
    const char *vae;
    const char *tokenizer;
    const char *disk_cache; /* a folder of packed copies: those that are there are opened in place
                               of the DiT's and the text encoder's files. NULL: none */
    bool expect_copies;     /* plan as if those that are not there were, their sizes told from
                               samples; such a plan cannot be run */
    uint64_t ram_bytes; /* of headers and tokenizers: SHOAL_E_BUDGET before reading takes more host
                           memory. As in the request; 0: no limit */
    /* In place of the model's own: T5's, which Anima takes prompts in too. */
    const char *second_tokenizer;
};

/* Reads headers, configurations and the tokenizer; no weights. The model is the caller's to close.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_model_open(
    const struct shoal_model_paths *paths, struct shoal_model **model, struct shoal_error *error);

/* Accepts NULL and a pointer to NULL; sets *model to NULL. No plan of the model may outlive it. */
SHOAL_API void shoal_model_close(struct shoal_model **model);

/* The folder's or the file's own name, e.g. "shoal-mini". Owned by the model. */
SHOAL_API const char *shoal_model_name(const struct shoal_model *model);

/*
 * What the files at `path` (a file or a folder) are: family, blocks, bytes per block, dtypes, what
 * is missing. Reads headers only. As text, or as one JSON object. *text is the caller's to free
 * with shoal_text_free. Files of no known family are described too, as tensors only. *damaged
 * (NULL: not asked): whether a part of a model's folder is damaged or cannot be read, as the text
 * says; a file that is given by itself is an error then.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_inspect(
    const char *path, bool json, char **text, bool *damaged, struct shoal_error *error);

SHOAL_API void shoal_text_free(char **text);

/* ---- requests ---- */

enum shoal_buffer {
    SHOAL_BUFFER_AUTO,   /* the plan decides */
    SHOAL_BUFFER_SINGLE, /* one slot: a block is fetched after the one before has run, or if that
                            crossed packed, has been unpacked */
    SHOAL_BUFFER_DOUBLE, /* two slots or more: the next block is fetched while one runs */
};

/* How weights cross the link, lie in host memory and on disk. It changes no bit of the picture. */
enum shoal_wire {
    SHOAL_WIRE_AUTO,   /* the plan decides, block by block */
    SHOAL_WIRE_RAW,    /* as they are computed with */
    SHOAL_WIRE_PACKED, /* what streams crosses packed, and is unpacked on the device; weights of
                          plain files are packed while they are read, and wait in host memory */
};

/* How weights in FP8, and those that adapters change, wait in host memory for the next step and
 * cross the link. It changes no bit of the picture: an element is the BF16 that its code and its
 * scale make, and what adapters make of a weight is the same, wherever that is done. */
enum shoal_host_format {
    SHOAL_HOST_FORMAT_STORAGE, /* as codes, which the device widens at every use; and as the files
                           have them, to be patched on the device at every use, or once where they
                           are resident */
    SHOAL_HOST_FORMAT_COMPUTE, /* as BF16: widened while they are read; twice the bytes; and with
                           the adapters added. Such blocks wait in host memory, not on disk. What is
                           resident, or crosses once, stays codes, and what packed files hold */
};

/* Which host memory is pinned, so that a card copies from it at the link's full rate while it
 * computes. The CPU needs none. */
enum shoal_pin {
    SHOAL_PIN_ON, /* what waits in host memory; where the system refuses, as staging */
    /* A small ring, through which all is copied once more, by several threads; but for first copies
     * of what waits, which are slow. */
    SHOAL_PIN_STAGING,
    SHOAL_PIN_OFF, /* none: copies are slow, and computing waits for them */
};

/* How the VAE holds pictures of full size: whole, or those within a block strip by strip, which
 * takes less memory and more arithmetic. */
enum shoal_strips {
    SHOAL_STRIPS_AUTO, /* whole, unless device memory is short */
    SHOAL_STRIPS_OFF,
    SHOAL_STRIPS_ON, /* in strips wherever that makes the peak of decoding smaller */
};

#define SHOAL_AUTO (-1)
#define SHOAL_UNLIMITED UINT64_MAX

/*
 * An adapter, such as a LoRA: a .safetensors file with differences of the DiT's and the text
 * encoder's weights, of which `strength` times as much is added; negative ones are taken away, and
 * 0 leaves it out. -100..100.
 */
struct shoal_lora {
    const char *path;
    float strength;
};
#define SHOAL_MAX_LORAS 8

#define SHOAL_MAX_PICTURES 64 /* of a run */

/* What to paint and within which limits. The strings are copied by shoal_plan_create. */
struct shoal_request {
    const char *prompt;          /* must not be NULL; more of them: more_prompts */
    const char *negative_prompt; /* NULL or "": the empty prompt; used when cfg is not 1 */
    const char *sampler;         /* see shoal_samplers; NULL: "euler" */
    int32_t width, height;       /* pixels; multiples of 16; both 0: those of `init` */
    int32_t steps;               /* 1..1000 */
    int32_t count; /* pictures of each prompt, 1..64 with those of all prompts; picture
                      i of a prompt has seed + i */
    float cfg;     /* uncond + cfg (cond - uncond), so 1 is off; diffusers' guidance_scale + 1 */
    /* Of flow-matching schedules: sigma = shift t / (1 + (shift - 1) t). 0: of Qwen-Image, whose
     * shift follows the size, that one; Cosmos-Predict2 has none and takes 0 alone. */
    float shift;
    uint64_t seed; /* its low 32 bits count, as in torch's CPU generator */

    uint64_t vram_bytes;     /* hard cap on device memory; SHOAL_UNLIMITED */
    uint64_t ram_bytes;      /* hard cap on the process's host memory, the CPU device's arena apart;
                                SHOAL_UNLIMITED */
    int32_t resident_blocks; /* DiT blocks kept on the device; SHOAL_AUTO: as many as fit */
    int32_t prefetch_slots;  /* 2..6 blocks in the weight ring; SHOAL_AUTO */
    enum shoal_buffer buffer;
    enum shoal_wire wire;
    enum shoal_host_format host_format; /* COMPUTE: not with SHOAL_WIRE_PACKED */
    enum shoal_pin pin;
    int32_t lanes; /* branches and pictures that share one pass; SHOAL_AUTO: as many as fit */
    enum shoal_strips vae_strips;

    /* "cpu", "cuda", "cuda:1"; NULL: $SHOAL_DEVICE, or the first card that can be used, or the
     * CPU. */
    const char *device;
    int32_t threads; /* of the CPU; 0: one for each core */
    bool trace;      /* records what happened when, for shoal_result_write_trace */

    /* What this machine was measured to do; NULL: the stored file if there is one, else guesses. */
    const char *rates_path;
    /* Plans for another machine: the name of a card, e.g. "rtx4060", or a file of rates; NULL: for
     * this one. Device memory without a limit becomes the card's. */
    const char *on;

    const char *schedule; /* of noise levels: see shoal_samplers; NULL: "model", its own */

    /*
     * A PNG file to begin with, of the request's size; NULL: noise alone. Of its latent and of
     * noise is mixed what the schedule of steps / strength steps (rounded down) has before its last
     * `steps`, which are run: as ComfyUI's denoise. The file is read when the plan is made.
     */
    const char *init;
    float strength; /* of the noise, above 0, up to 1; without `init` it has no meaning */

    /*
     * Adapters, whose differences are added in this order to what the weights are (docs/formats.md,
     * "Patched weights"): NULL and 0 for none. Their files are read when a plan is made, but for
     * those that another plan of the same open model uses, or the last one made did: another
     * strength reads nothing. Their host memory is charged to ram_bytes.
     */
    const struct shoal_lora *loras;
    size_t lora_count; /* 0..SHOAL_MAX_LORAS */

    /*
     * Prompts after the first, each with `count` pictures of its own: NULL and 0 for none. The
     * result has the first prompt's pictures, then the next one's; each is what its prompt and seed
     * would give alone. All share passes over the blocks, as `lanes` says. The negative prompt is
     * that of all.
     */
    const char *const *more_prompts;
    int32_t more_prompt_count; /* 0..63 */
};

#define SHOAL_DEFAULT_STRENGTH 0.6f

/* The model's defaults: its own size, steps, cfg and shift; unlimited memory; everything auto. */
SHOAL_API void shoal_request_init(struct shoal_request *request, const struct shoal_model *model);

/*
 * "3GiB", "512MiB", "2.5GB", "4096", "max": bytes. Units: B, kB, MB, GB, TB (powers of 1000), KiB,
 * MiB, GiB, TiB (of 1024); case does not matter.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_parse_size(
    const char *text, uint64_t *bytes, struct shoal_error *error);

/* ---- plans ---- */

struct shoal_plan;

/*
 * Works out what would run, without running it. A card is opened for that, and kept by the plan.
 * Fails for bad input, and with SHOAL_E_DEVICE if the card that is asked for cannot be used. A
 * budget that is too small still gives a plan, one that does not fit (struct shoal_plan_summary)
 * and whose text says what would. The plan is the caller's to destroy; the model must outlive it.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_plan_create(const struct shoal_model *model,
    const struct shoal_request *request, struct shoal_plan **plan, struct shoal_error *error);

SHOAL_API void shoal_plan_destroy(struct shoal_plan **plan);

/* A step is here, in progress and in reports one call of the DiT for every picture and branch:
 * samplers may make two calls in a sampling step. `calls` says of how many. */
struct shoal_plan_summary {
    bool fits;
    bool packs;          /* packed blocks are packed while they are read: their files are plain */
    uint64_t vram_bytes; /* the budget; a card's free memory, if that is less */
    uint64_t peak_vram_bytes; /* what the run will use at its peak, exactly; 0 if it does not fit */
    uint64_t least_vram_bytes; /* the least budget that works with the same options */
    uint64_t full_vram_bytes;  /* from this budget on nothing streams */
    uint64_t ram_bytes; /* host memory at its peak, but for the device's, if that lies there */
    uint64_t least_ram_bytes;  /* the least ram_bytes that works under vram_bytes; SHOAL_UNLIMITED
                                  if vram_bytes is too small for any plan */
    uint64_t dit_weight_bytes; /* all DiT blocks */
    uint64_t step_copy_bytes;  /* over the link, a step */
    uint64_t step_disk_bytes;  /* read from files, a step after the first; if there is no other, by
                                  that one, which loads */
    uint64_t step_operations;  /* floating-point operations a step, all lanes */
    /* Of the DiT's steps; packed ones cross packed, disk ones are read again in every step. */
    int32_t blocks, resident_blocks, packed_blocks, disk_blocks, prefetch_slots, lanes;
    int32_t strip_blocks;     /* of the VAE: those that work in strips */
    int32_t widened_blocks;   /* of the DiT's steps: those that cross as BF16, and are FP8 in files;
                                 with adapters, also those that they were added to on the host */
    int32_t patched_blocks;   /* of the DiT's steps: those that adapters change */
    uint64_t lora_bytes;      /* host memory of adapters, within ram_bytes */
    uint64_t lora_read_bytes; /* read from their files for this plan: 0 if all were there */
    /* Predicted: of a step, of the first one, which loads, and of everything; by rates that were
     * measured with so many threads (0: not said). */
    int32_t rates_threads;
    double step_seconds, first_step_seconds, seconds;
    int32_t width, height; /* of the pictures */
    int32_t calls;         /* steps that the figures above, progress and reports speak of */
};

SHOAL_API void shoal_plan_summarise(
    const struct shoal_plan *plan, struct shoal_plan_summary *summary);

/* What is known of an adapter of the plan. The strings live as long as the plan. */
struct shoal_lora_info {
    const char *path;
    float strength;
    int32_t modules, unmatched;     /* in the file; of these, that are none of the model's */
    const char *unmatched_names[4]; /* the first of them; NULL: no more */
    uint64_t bytes;                 /* of its factors, in host memory */
};
/* Adapter `index` of the request. SHOAL_E_INVALID: there is none. */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_plan_lora(const struct shoal_plan *plan,
    size_t index, struct shoal_lora_info *info, struct shoal_error *error);

/* The plan as a table for a person, and as one JSON object. Owned by the plan. Of a plan that does
 * not fit, why is in the object only: print shoal_plan_refusal below the table. */
SHOAL_API const char *shoal_plan_text(const struct shoal_plan *plan);
SHOAL_API const char *shoal_plan_json(const struct shoal_plan *plan);

/* Why the plan does not fit, and what would: one sentence. NULL if it fits. Owned by the plan. */
SHOAL_API const char *shoal_plan_refusal(const struct shoal_plan *plan);

/* ---- running ---- */

enum shoal_phase {
    SHOAL_PHASE_TEXT,    /* the text encoder */
    SHOAL_PHASE_CONTEXT, /* the DiT's part that sees the prompt only */
    SHOAL_PHASE_STEPS,   /* the sampling steps */
    SHOAL_PHASE_DECODE,  /* the VAE */
    SHOAL_PHASE_ENCODE,  /* the VAE's encoder, before the steps, if there is a picture to begin with
                          */
    SHOAL_PHASES
};

/* "text", "context", "steps", "decode", "encode". Static storage. */
SHOAL_API const char *shoal_phase_name(enum shoal_phase phase);

struct shoal_progress {
    enum shoal_phase phase;
    int32_t step, steps;   /* done, of all; in STEPS: as struct shoal_plan_summary counts them, in
                              other phases: pictures or prompts */
    int32_t block, blocks; /* done, of this step's */
    double seconds;        /* since the phase began */
    double step_seconds;   /* of the last finished step; 0 before the first */
    uint64_t step_bytes;   /* copied to the device for the last finished step */
};

/* Called from the thread that called shoal_run, after every block. Any member may be NULL. */
struct shoal_callbacks {
    void *user;
    void (*progress)(void *user, const struct shoal_progress *progress);
    bool (*cancelled)(void *user); /* true stops at the next block with SHOAL_E_CANCELLED */
};

struct shoal_result;

/*
 * Runs the plan; SHOAL_E_BUDGET if it does not fit. Everything on the device comes from one arena
 * of exactly the plan's peak. On failure nothing is left behind: no thread, no memory, no file. The
 * result is the caller's to destroy and outlives plan and model.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_run(const struct shoal_plan *plan,
    const struct shoal_callbacks *callbacks, struct shoal_result **result,
    struct shoal_error *error);

SHOAL_API void shoal_result_destroy(struct shoal_result **result);

struct shoal_report {
    uint64_t peak_vram_bytes;   /* as the arena measured it, and what the driver takes beside it */
    uint64_t driver_vram_bytes; /* what the process took on the card, by the driver; 0: no card, or
                                   the driver does not say */
    uint64_t copied_bytes;      /* to the device, weights, all phases */
    uint64_t read_bytes;        /* from files, weights, all phases */
    uint64_t step_bytes;        /* copied for a step, without what stays (the mean) */
    uint64_t step_read_bytes;   /* read for a step after the first (the mean); if there is no
                                   other, for that one */
    double seconds;             /* all */
    double wait_seconds;        /* computing stood still because weights were not there */
    double phase_seconds[SHOAL_PHASES]; /* 0: there was none */
    double first_step_seconds;          /* which reads the weights */
    double step_seconds;                /* the best of the others; of a single step, that one */
    double mean_step_seconds;           /* of the others */
    char reader[64];                    /* how files were read: "io_uring, direct" */
    uint64_t pinned_bytes;              /* of host memory, at most */
    bool replanned; /* weights were not packed after all: another plan than this was run */
    char note[400]; /* what was done otherwise than planned, and why, in a sentence; "": nothing */
};

SHOAL_API void shoal_result_report(const struct shoal_result *result, struct shoal_report *report);

/* A borrowed view, valid while the result lives. rgb: height x width x 3 bytes. */
struct shoal_image {
    int32_t width, height;
    const uint8_t *rgb;
    const float *latents; /* the final ones: channels x (height / 8) x (width / 8) */
    size_t latent_count;
    uint64_t seed;
    const char *prompt; /* that was painted; the result's */
};

SHOAL_API int32_t shoal_result_count(const struct shoal_result *result);

/* index in [0, count). */
SHOAL_API void shoal_result_image(
    const struct shoal_result *result, int32_t index, struct shoal_image *image);

/*
 * Writes picture `index` as a PNG whose text chunks hold prompt, seed and settings. The file
 * appears complete or not at all.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_result_write_png(
    const struct shoal_result *result, int32_t index, const char *path, struct shoal_error *error);

/*
 * Writes what happened when in the Chrome trace event format, which chrome://tracing and Perfetto
 * open and `shoal trace` draws; SHOAL_E_INVALID unless the request asked for a trace. The file
 * appears complete or not at all.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_result_write_trace(
    const struct shoal_result *result, const char *path, struct shoal_error *error);

/* ---- packed files ---- */

/*
 * Weights can be packed without loss: BF16 to about two thirds of its bytes, F16 and FP8 (E4M3) to
 * about 85 per cent. A packed file is a safetensors file (docs/formats.md) that is opened as any
 * other; models whose files are plain can have packed copies in a cache on disk.
 */

struct shoal_pack_progress {
    const char *part;           /* that is being written, e.g. "transformer" */
    uint64_t done_bytes, bytes; /* of weights as computed with: done, of all parts */
    uint64_t written_bytes;
    double seconds;
};

/* A part that was written: a file, or the shards of one checkpoint. */
struct shoal_packed_part {
    const char *name;
    uint64_t tensors, packed_tensors;
    uint64_t bytes;         /* of weights as computed with */
    uint64_t written_bytes; /* of the files, headers included */
    double seconds;
};

/* Called from the thread that called the function. Any member may be NULL. */
struct shoal_pack_callbacks {
    void *user;
    void (*progress)(void *user, const struct shoal_pack_progress *progress);
    void (*written)(void *user, const struct shoal_packed_part *part);
    bool (*cancelled)(void *user); /* true: SHOAL_E_CANCELLED, soon */
    /* Another process writes this copy of a cache, and is waited for; once for each. */
    void (*waiting)(void *user, const char *path);
};

/*
 * Writes the files at `in` again as `out`, packed or raw: a .safetensors file to a file; an index
 * with its shards, or a model's folder with all that is in it, to a folder. `wire` is
 * SHOAL_WIRE_PACKED or SHOAL_WIRE_RAW, which gives back the bytes that were packed. What is at
 * `out` is an error, unless `replace` is true: then it takes the place of the file, or in a folder
 * of the files of the same names. `out` appears complete or not at all.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_convert(const char *in, const char *out,
    enum shoal_wire wire, bool replace, const struct shoal_pack_callbacks *callbacks,
    struct shoal_error *error);

/*
 * A cache holds packed copies of DiTs and text encoders, one file each, under names made from the
 * paths, sizes, times and headers of the original files: a copy of files that have changed since is
 * not used. Several processes may use one cache.
 */
struct shoal_cache_state {
    int32_t parts;          /* of the model, that can have a packed copy */
    int32_t present;        /* and have one */
    uint64_t missing_bytes; /* of the originals of those that have none */
};

/*
 * What the cache `dir` has for the model that the paths name. Writes nothing. A folder that the
 * model's files lie in is SHOAL_E_INVALID; a copy that cannot be used, or something else in its
 * place, is an error that says what to do.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_cache_look(const struct shoal_model_paths *paths,
    const char *dir, struct shoal_cache_state *state, struct shoal_error *error);

/* Writes the copies that are not there yet; makes `dir` if need be. A copy appears complete or not
 * at all. If another process writes one already, this waits for it. Fails as shoal_cache_look does,
 * before it writes anything. */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_cache_prepare(const struct shoal_model_paths *paths,
    const char *dir, const struct shoal_pack_callbacks *callbacks, struct shoal_error *error);

/*
 * What the cache holds, and whether each copy still matches its original; as text or as one JSON
 * object. *text is the caller's to free with shoal_text_free.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_cache_list(
    const char *dir, bool json, char **text, struct shoal_error *error);

/* Called from the thread that called the function. */
struct shoal_cache_callbacks {
    void *user;
    void (*failed)(void *user, const struct shoal_error *error); /* one could not be removed */
};

/*
 * Removes the copies of these names, as shoal_cache_list says them; `count` 0: all. Nothing is
 * removed if there is none of one of the names. What cannot be removed is left, and the others are
 * removed all the same: the callbacks (NULL allowed) are told of each, and the status and the error
 * are those of the first. Other files are never touched.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_cache_remove(const char *dir,
    const char *const *names, size_t count, const struct shoal_cache_callbacks *callbacks,
    uint64_t *removed_bytes, struct shoal_error *error);

/* The same of the copies that match no original any more, and of what was left of interrupted
 * ones. */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_cache_remove_stale(const char *dir,
    const struct shoal_cache_callbacks *callbacks, uint64_t *removed_bytes,
    struct shoal_error *error);

/* ---- machine ---- */

/*
 * The devices this build and this machine can compute on, and why not on the others; as text or
 * as one JSON object. *text is the caller's to free with shoal_text_free.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_devices(
    bool json, char **text, struct shoal_error *error);

/*
 * The samplers and the schedules that requests may name: what each is, how often a sampler calls
 * the model in a step (in the last step always once) and whether it adds noise; as text or as one
 * JSON object. *text is the caller's to free with shoal_text_free.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_samplers(
    bool json, char **text, struct shoal_error *error);

/* What is measured, and where the results go. */
struct shoal_links_request {
    const struct shoal_model *model; /* the DiT's largest file is read, if `file` is NULL */
    const char *file;                /* to measure the drive with: 15 MiB or more */
    const char *rates_path;          /* NULL: where plans look for this machine's rates */
    const char *device;              /* as struct shoal_request has it */
    int32_t threads;                 /* 0: one for each core */
};

/*
 * Measures how fast this machine copies, reads, packs and computes, in some twenty seconds; stores
 * the rates that plans predict by; and says them, as text or as one JSON object. *text is the
 * caller's to free with shoal_text_free.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_bench_links(
    const struct shoal_links_request *request, bool json, char **text, struct shoal_error *error);

#define SHOAL_STREAM_MOST_BLOCKS 1000
#define SHOAL_STREAM_MOST_TOKENS 65536

/*
 * A made-up model, and how it streams. The budgets are those of the streamed steps: what these are
 * held against, among it a few resident blocks, is measured beside them.
 */
struct shoal_stream_request {
    int32_t blocks;       /* 1..SHOAL_STREAM_MOST_BLOCKS; four of them differ */
    int32_t tokens;       /* rows that each computes with: the load of arithmetic */
    uint64_t block_bytes; /* of BF16 weights, 1 MiB to 1 TiB; the next size below that there is */
    int32_t steps;        /* 2..1000; the first one loads, and is left out of the figures */

    /* As struct shoal_request has them. */
    uint64_t vram_bytes, ram_bytes;
    int32_t resident_blocks, prefetch_slots;
    enum shoal_buffer buffer;
    enum shoal_wire wire;
    enum shoal_pin pin;
    const char *device;
    int32_t threads;

    /* For a file of four blocks, without a name, that is gone in the end; NULL: $TMPDIR, or
     * /var/tmp. */
    const char *folder;
    bool (*cancelled)(void *user); /* true: SHOAL_E_CANCELLED, soon. May be NULL */
    void *user;
};

/* 60 blocks of 648 MiB, as Qwen-Image has them, none resident; 4096 tokens, 4 steps; unlimited
 * memory. */
SHOAL_API void shoal_stream_request_init(struct shoal_stream_request *request);

/*
 * Measures the streaming loop alone: a step's time beside the physical limit, which is the greater
 * of the time of its arithmetic with resident weights and the time of its bytes over the link, both
 * measured in the same run. SHOAL_E_NUMERIC if streaming changed a bit of what is computed. Says it
 * as text or as one JSON object; *text is the caller's to free with shoal_text_free.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_bench_stream(
    const struct shoal_stream_request *request, bool json, char **text, struct shoal_error *error);

/* ---- stores: the blocks of somebody else's model ---- */

/*
 * A store keeps the weights of another framework's blocks in host memory or on disk, and ships each
 * block to the device a moment before that framework computes with it. The arithmetic stays where
 * it is:
 *
 *     shoal_store_create(blocks, count, &request, &store, &error);
 *     shoal_store_resume(store, 0, &error);
 *     for each step, for each block i:
 *         shoal_store_acquire(store, i, stream, addresses, &error);
 *         ... kernels on `stream` that read tensor t of the block at addresses[t] ...
 *         shoal_store_release(store, i, &error);
 *     shoal_store_suspend(store, &error);      // the device's memory is free, the weights stay
 *     shoal_store_destroy(&store);
 *
 * Tensors reach the device as the bytes they are, whatever the tier and the wire. The calls from
 * resume to suspend are made by one thread at a time.
 */
struct shoal_store;

/* A tensor lies in host memory, or in a file. Strings and descriptions need not outlive the call
 * that they are given to. */
struct shoal_store_tensor {
    const char *name;  /* within its block, for messages; may be NULL */
    const char *dtype; /* as safetensors calls it: "BF16", "F16", "F8_E4M3", ...; other names are
                          shipped as bytes */
    uint64_t bytes;
    /* In host memory: valid and unchanged until shoal_store_loaded says so. NULL: in the file. */
    const void *data;
    const char *path; /* a regular file, unchanged while the store lives */
    uint64_t offset;  /* of its first byte */
};

struct shoal_store_block {
    const char *name; /* for messages and the trace; may be NULL */
    const struct shoal_store_tensor *tensors;
    int32_t tensor_count; /* 1 or more */
};

/* The members are as struct shoal_request has them, but for what is said here. */
struct shoal_store_request {
    uint64_t vram_bytes; /* of the store alone: blocks that stay, the ring, the unpacking buffer;
                            what the driver takes is the caller's, as is the context */
    uint64_t ram_bytes;  /* of the store alone */
    int32_t resident_blocks; /* SHOAL_AUTO: as many as fit */
    int32_t prefetch_slots;
    enum shoal_buffer buffer;
    enum shoal_wire wire; /* AUTO: raw, unless block_seconds says that packing pays */
    enum shoal_pin pin;
    const char *device;
    int32_t threads;
    double block_seconds; /* of a block's arithmetic, for the plan; 0: not known */
    const char *rates_path;
    bool trace; /* records what happened when, for shoal_store_write_trace; beside ram_bytes */
};

/* Unlimited memory, everything auto but resident_blocks, which is 0. */
SHOAL_API void shoal_store_request_init(struct shoal_store_request *request);

/*
 * Looks at the tensors and plans. Reads no weights, but for samples where they may be packed. Fails
 * with SHOAL_E_BUDGET if a budget is too small, and says the least that works. On a card its
 * primary context is used, which the caller's framework has too.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_store_create(const struct shoal_store_block *blocks,
    int32_t block_count, const struct shoal_store_request *request, struct shoal_store **store,
    struct shoal_error *error);

/* Suspends it, if need be, and forgets everything. Accepts NULL and a pointer to NULL. */
SHOAL_API void shoal_store_destroy(struct shoal_store **store);

/* The plan, and if it has run what the store did, as text for a person and as one JSON object.
 * Owned by the store, until the next such call. NULL: out of memory. */
SHOAL_API const char *shoal_store_text(struct shoal_store *store);
SHOAL_API const char *shoal_store_json(struct shoal_store *store);

/* What resume takes on the device, in bytes. */
SHOAL_API uint64_t shoal_store_device_bytes(const struct shoal_store *store);

/*
 * Takes device memory: `memory`, shoal_store_device_bytes of it at a multiple of 4096, the caller's
 * again after suspend; or memory of its own, if it is 0. Begins to read, if it never did.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_store_resume(
    struct shoal_store *store, uint64_t memory, struct shoal_error *error);

/*
 * The block's weights are at addresses[t] for work given to `stream` (a CUstream; NULL: the default
 * stream) from now until release, which must come before the next acquire. Blocks are needed in
 * order, 0 to the last, walk after walk: to begin again at 0, or to leave some out, is possible,
 * and wastes what was fetched ahead. The host does not wait for the device.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_store_acquire(struct shoal_store *store,
    int32_t block, void *stream, uint64_t *addresses, struct shoal_error *error);
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_store_release(
    struct shoal_store *store, int32_t block, struct shoal_error *error);

/*
 * Waits for what is under way and gives the device's memory back; blocks that wait in host memory
 * stay there. If a read, a copy or the device had failed, its error; the store is suspended all the
 * same, and the next resume begins anew. Blocks that were resident are read again then. Does
 * nothing if it is suspended.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_store_suspend(
    struct shoal_store *store, struct shoal_error *error);

/* Whether host memory that tensors were described by is needed no more. Never, for blocks that are
 * read again in every walk or after every resume. */
SHOAL_API bool shoal_store_loaded(struct shoal_store *store);

/*
 * What the store did when since it was last resumed, as shoal_result_write_trace writes it; while
 * it is suspended. Of a long run the last 64 thousand spans are kept, which take 5 MiB.
 */
SHOAL_API SHOAL_CHECKED enum shoal_status shoal_store_write_trace(
    struct shoal_store *store, const char *path, struct shoal_error *error);

struct shoal_store_stats {
    uint64_t device_bytes; /* while it is not suspended */
    uint64_t host_bytes, pinned_bytes;
    uint64_t weight_bytes;      /* of all blocks */
    uint64_t walk_copied_bytes; /* to the device, a walk, as planned */
    uint64_t copied_bytes, read_bytes;
    double wait_seconds; /* the host waited in acquire for weights that were not read yet */
    int32_t blocks, resident_blocks, packed_blocks, disk_blocks, prefetch_slots;
};
SHOAL_API void shoal_store_stats(struct shoal_store *store, struct shoal_store_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
