#ifdef MODEL_CMSIS_DSP
#include "cmsis.h"
#endif
$predict
#include "model.h"

$predict_constants

void model_predict(model_state *state, int64_t rows, $inputs, $prediction *predictions) {
  model_predict_rows(rows, $predict_call);
}
