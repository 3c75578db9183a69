/* Predict, then train $steps batches; compare the predictions and losses with Python's. */
#include "model.h"
#include <math.h>
#include <stdio.h>

$test_rows
$expected_losses
$expected_predictions
static model_state state;
static $loss losses[$steps];
static $prediction predictions[MODEL_BATCH * MODEL_PREDICTION];

static int differs(const char *what, int i, double actual, double expected) {
  const double allowed = $tolerance * fmax(1, fabs(expected));
  printf("%s %d: %.7g (Python: %.7g)\n", what, i, actual, expected);
  return !(isnan(expected) ? isfinite(actual) : fabs(actual - expected) <= allowed);
}

int main(void) {
  int wrong = 0;
  model_init(&state);
  model_predict(&state, MODEL_BATCH, $input_names, predictions);
  for (int i = 0; i < MODEL_BATCH * MODEL_PREDICTION; i++)
    wrong += differs("prediction", i, (double) predictions[i], (double) expected_predictions[i]);
  model_train_epoch(&state, $steps, $row_names, losses);
  for (int i = 0; i < $steps; i++) wrong += differs("loss", i, (double) losses[i], (double) expected_losses[i]);
  printf("%s\n", wrong ? "different" : "equal");
  return wrong != 0;
}
