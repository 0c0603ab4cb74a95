/*
 * Finding the embedded model. It is a folder of ordinary files beside the program, not bytes in
 * it, so that the default goes through the same readers as any model.
 */
#include "model_path.h"

#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The checkout's models/, for a program that runs from its build folder; "" in a release. */
#ifndef SHOAL_SOURCE_MODELS
#define SHOAL_SOURCE_MODELS ""
#endif

#define MINI_FOLDER "shoal-mini"

/* buffer = folder/below/shoal-mini. True if that is a folder. */
static bool try_folder(const char *folder, const char *below, char buffer[MODEL_PATH_BYTES])
{
    struct stat status;
    int length;

    if (!folder || !*folder) return false;
    length = snprintf(buffer, MODEL_PATH_BYTES, "%s%s/%s", folder, below, MINI_FOLDER);
    return length < MODEL_PATH_BYTES && stat(buffer, &status) == 0 && S_ISDIR(status.st_mode);
}

/* The folder that holds the running program, "" if that cannot be told. */
static void program_folder(char folder[MODEL_PATH_BYTES])
{
    ssize_t length = readlink("/proc/self/exe", folder, MODEL_PATH_BYTES - 1);
    char *slash;

    folder[length > 0 ? length : 0] = '\0';
    slash = strrchr(folder, '/');
    if (slash) *slash = '\0';
}

const char *model_path_find(const char *name, char buffer[MODEL_PATH_BYTES])
{
    const char *models = getenv("SHOAL_MODELS");
    char beside[MODEL_PATH_BYTES];

    if (strcmp(name, MODEL_DEFAULT) != 0) return name;
    if (models && *models) {
        if (try_folder(models, "", buffer)) return buffer;
        cli_error(
            "SHOAL_MODELS is %s, which holds no " MINI_FOLDER ": correct it, or unset it", models);
        return NULL;
    }
    program_folder(beside);
    if (try_folder(beside, "/../models", buffer) ||
        try_folder(beside, "/../share/shoal/models", buffer) ||
        try_folder(SHOAL_SOURCE_MODELS, "", buffer))
        return buffer;
    cli_error("the embedded model " MINI_FOLDER " is neither in "
              "%s/../models nor in %s/../share/shoal/models: set SHOAL_MODELS to the folder that "
              "holds it, or name a model with -m",
        beside, beside);
    return NULL;
}
