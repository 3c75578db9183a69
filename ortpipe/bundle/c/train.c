#ifdef MODEL_CMSIS_DSP
#include "cmsis.h"
#endif
$train
#define MODEL_WEIGHTS
#include "model.h"

/* The optimizer's numbers for each step; the last ones count for all later steps. */
$scalars
$train_constants

void model_init(model_state *state) {
$starts
  state->steps = 0;
}

$loss model_train_batch(model_state *state, $rows) {
  $loss losses[1];
  model_train_steps(1, $seed$train_call);
  state->steps++;
  return losses[0];
}

void model_train_epoch(model_state *state, int64_t batches, $rows, $loss *losses) {
  for (int64_t i = 0; i < batches; i++)
    losses[i] = model_train_batch(state, $rows_of_batch);
}
