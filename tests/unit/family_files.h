/* Writing checkpoints of models, and what opening them says. */
#ifndef TESTS_UNIT_FAMILY_FILES_H
#define TESTS_UNIT_FAMILY_FILES_H

#include "unit/checkpoint_files.h"
#include "unit/tensor_file.h"

#include "models/family.h"

static const char *write_tensors(const char *name, const struct tensor_spec *tensors, size_t count)
{
    struct shoal_error error = {0};
    const char *path = at(name);

    assert_ok(tensor_file_write(path, tensors, count, NULL, false, &error));
    return path;
}

static void assert_says(const struct shoal_error *error, const char *part)
{
    if (!strstr(error->text, part)) fail_msg("\"%s\" is not in \"%s\"", part, error->text);
}

/* What family_open says of one file, as a model of that kind. */
static void assert_open_says(const char *path, enum family_kind kind, const char *config_path,
    enum shoal_status status, const char *says)
{
    struct shoal_error error = {0};
    struct checkpoint *checkpoint;
    struct model *model;

    assert_ok(checkpoint_open(path, &checkpoint, &error));
    assert_int_equal(family_open(checkpoint, kind, config_path, &model, &error), status);
    assert_null(model);
    assert_says(&error, says);
    checkpoint_close(&checkpoint);
}

#endif
