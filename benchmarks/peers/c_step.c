/* One epoch of a dense network with Relu: matrix products by a BLAS, one loop for each other operation.
 *
 * The rows are in the order of the batches. The loss is softmax cross-entropy of `classes` columns; if classes is 0, it
 * is the mean of squares. Weights [in, out] and biases are one vector, layer after layer.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Product)(char *, char *, int *, int *, int *, float *, const float *, int *, const float *, int *,
                        float *, float *, int *);
static Product sgemm; /* Fortran's: the columns of a matrix are contiguous, so each call computes the transpose */

/* C[m,n] = bias[n] + A[m,k] B[k,n] */
static void forward(int m, int n, int k, const float *A, const float *B, const float *bias, float *C) {
    float one = 1;
    for (int i = 0; i < m; i++) memcpy(C + i * n, bias, n * sizeof(float));
    sgemm("N", "N", &n, &m, &k, &one, B, &n, A, &k, &one, C, &n);
}

/* W[k,n] = A[m,k]' G[m,n] */
static void weights(int m, int n, int k, const float *A, const float *G, float *W) {
    float one = 1, zero = 0;
    sgemm("N", "T", &n, &k, &m, &one, G, &n, A, &k, &zero, W, &n);
}

/* D[m,k] = G[m,n] B[k,n]' where A[m,k] > 0, else 0 */
static void rows(int m, int n, int k, const float *G, const float *B, const float *A, float *D) {
    float one = 1, zero = 0;
    sgemm("T", "N", &k, &m, &n, &one, B, &n, G, &n, &zero, D, &k);
    for (int i = 0; i < m * k; i++) D[i] = A[i] > 0 ? D[i] : 0;
}

static float losses(int m, int n, int classes, const float *score, const float *number, const long long *label, float *G) {
    float total = 0;
    for (int i = 0; i < m; i++) {
        const float *s = score + i * n;
        float *g = G + i * n;
        if (!classes) {
            float d = s[0] - number[i];
            total += d * d;
            g[0] = 2 * d / m;
            continue;
        }
        float top = s[0], sum = 0;
        for (int j = 1; j < n; j++) top = s[j] > top ? s[j] : top;
        for (int j = 0; j < n; j++) sum += g[j] = expf(s[j] - top);
        total += logf(sum) - (s[label[i]] - top);
        for (int j = 0; j < n; j++) g[j] = g[j] / sum / m;
        g[label[i]] -= 1.0f / m;
    }
    return total / m;
}

/* Train one epoch and return the mean of the steps' losses. `done` counts the steps before it; adam is 0 or 1. */
double epoch(Product product, int layers, const int *size, int batch, int steps, int classes, int adam, double lr, long long done,
             const float *X, const float *number, const long long *label, float *theta, float *mean, float *squares) {
    float *act[32], *W[32], *b[32], *g[32], *gb[32];
    int widest = 0, total = 0;
    for (int l = 0; l <= layers; l++) widest = size[l] > widest ? size[l] : widest;
    for (int l = 0; l < layers; l++) total += (size[l] + 1) * size[l + 1];
    float *gradient = malloc(total * sizeof(float)), *back = malloc((size_t)batch * widest * sizeof(float));
    float *ahead = malloc((size_t)batch * widest * sizeof(float));
    sgemm = product;
    for (int l = 0, at = 0; l < layers; l++) {
        W[l] = theta + at, g[l] = gradient + at, at += size[l] * size[l + 1];
        b[l] = theta + at, gb[l] = gradient + at, at += size[l + 1];
        act[l + 1] = malloc((size_t)batch * size[l + 1] * sizeof(float));
    }
    double sum = 0;
    for (int s = 0; s < steps; s++) {
        act[0] = (float *)X + (size_t)s * batch * size[0];
        for (int l = 0; l < layers; l++) {
            forward(batch, size[l + 1], size[l], act[l], W[l], b[l], act[l + 1]);
            for (int i = 0; l < layers - 1 && i < batch * size[l + 1]; i++) act[l + 1][i] = act[l + 1][i] > 0 ? act[l + 1][i] : 0;
        }
        size_t at = (size_t)s * batch;
        sum += losses(batch, size[layers], classes, act[layers], classes ? 0 : number + at, classes ? label + at : 0, back);
        for (int l = layers - 1; l >= 0; l--) {
            int n = size[l + 1], k = size[l];
            weights(batch, n, k, act[l], back, g[l]);
            memset(gb[l], 0, n * sizeof(float));
            for (int i = 0; i < batch; i++)
                for (int j = 0; j < n; j++) gb[l][j] += back[i * n + j];
            if (l) {
                rows(batch, n, k, back, W[l], act[l], ahead);
                float *swap = back;
                back = ahead, ahead = swap;
            }
        }
        float rate = lr, epsilon = 1e-8;
        if (adam) {
            double t = done + s + 1, root = sqrt(1 - pow(0.999, t));
            rate = lr * root / (1 - pow(0.9, t)), epsilon = 1e-8 * root;
        }
        for (int i = 0; !adam && i < total; i++) theta[i] -= rate * gradient[i];
        for (int i = 0; adam && i < total; i++) {
            float v = gradient[i];
            mean[i] = 0.9f * mean[i] + 0.1f * v;
            squares[i] = 0.999f * squares[i] + 0.001f * v * v;
            theta[i] -= rate * mean[i] / (sqrtf(squares[i]) + epsilon);
        }
    }
    for (int l = 0; l < layers; l++) free(act[l + 1]);
    free(gradient), free(back), free(ahead);
    return sum / steps;
}
