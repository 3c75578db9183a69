/* One epoch of a dense network with Relu, written by hand: what the processor can do where nothing is dispatched.
 *
 * Rows lie in the order of their batches. The loss is softmax cross-entropy of `classes` columns, or the mean of
 * squares where classes is 0. Weights [in, out] and biases are one vector, layer after layer.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* C[m,n] = bias[n] + A[m,k] B[k,n] */
static void forward(int m, int n, int k, const float *A, const float *B, const float *bias, float *C) {
    for (int i = 0; i < m; i += 4) {
        int rows = m - i < 4 ? m - i : 4;
        for (int r = 0; r < rows; r++) memcpy(C + (i + r) * n, bias, n * sizeof(float));
        for (int p = 0; p < k; p++)
            for (int r = 0; r < rows; r++) {
                float a = A[(i + r) * k + p], *c = C + (i + r) * n;
                for (int j = 0; j < n; j++) c[j] += a * B[p * n + j];
            }
    }
}

/* W[k,n] = A[m,k]' G[m,n] */
static void weights(int m, int n, int k, const float *A, const float *G, float *W) {
    memset(W, 0, (size_t)k * n * sizeof(float));
    for (int p = 0; p < k; p++) {
        float *w = W + p * n;
        for (int i = 0; i < m; i++) {
            float a = A[i * k + p];
            for (int j = 0; j < n; j++) w[j] += a * G[i * n + j];
        }
    }
}

/* D[m,k] = G[m,n] B[k,n]' where A[m,k] > 0, else 0; T [n,k] is scratch */
static void rows(int m, int n, int k, const float *G, const float *B, const float *A, float *T, float *D) {
    for (int p = 0; p < k; p++)
        for (int j = 0; j < n; j++) T[j * k + p] = B[p * n + j];
    for (int i = 0; i < m; i++) {
        float *d = D + i * k;
        memset(d, 0, k * sizeof(float));
        for (int j = 0; j < n; j++) {
            float g = G[i * n + j];
            for (int p = 0; p < k; p++) d[p] += g * T[j * k + p];
        }
        for (int p = 0; p < k; p++) d[p] = A[i * k + p] > 0 ? d[p] : 0;
    }
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

/* Trains one epoch; returns the mean of the steps' losses. `done` steps came before; adam is 0 or 1. */
double epoch(int layers, const int *size, int batch, int steps, int classes, int adam, double lr, long long done,
             const float *X, const float *number, const long long *label, float *theta, float *mean, float *squares) {
    float *act[32], *W[32], *b[32], *g[32], *gb[32];
    int widest = 0, total = 0;
    for (int l = 0; l <= layers; l++) widest = size[l] > widest ? size[l] : widest;
    for (int l = 0; l < layers; l++) total += (size[l] + 1) * size[l + 1];
    float *gradient = malloc(total * sizeof(float)), *back = malloc((size_t)batch * widest * sizeof(float));
    float *ahead = malloc((size_t)batch * widest * sizeof(float)), *T = malloc((size_t)widest * widest * sizeof(float));
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
                rows(batch, n, k, back, W[l], act[l], T, ahead);
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
    free(gradient), free(back), free(ahead), free(T);
    return sum / steps;
}
