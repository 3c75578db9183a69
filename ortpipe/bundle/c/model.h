/* A model that trains. Classes, in the order of predictions, as labels from 0 on: $classes */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum {
  MODEL_BATCH = $batch, /* rows of a batch */
  MODEL_PREDICTION = $width /* numbers of a prediction */
};

typedef struct {
  double work[$work]; /* without a meaning between two calls */
$fields
  int64_t steps; /* so far */
} model_state;

/* Start from the exported weights. */
void model_init(model_state *state);

/* Train one batch of MODEL_BATCH rows, and return its loss before the update. */
$loss model_train_batch(model_state *state, $rows);

/* Train batches that follow each other in memory, and write the loss of each. */
void model_train_epoch(model_state *state, int64_t batches, $rows, $loss *losses);

/* Write MODEL_PREDICTION numbers for each row. */
void model_predict(model_state *state, int64_t rows, $inputs, $prediction *predictions);

#ifdef MODEL_WEIGHTS
$weights
#endif

#endif
