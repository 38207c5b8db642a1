// Two small loops of the lab that NumPy has no single call for. `lab/layers.py` has both in NumPy.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace truenorm {

// The mean of -log softmax(logits)[target]; dlogits = (softmax - onehot) / rows.
template <class T> double cross_entropy(const T* logits, const std::int64_t* targets, std::int64_t rows,
                                        std::int64_t classes, T* dlogits) {
    double loss = 0;
    for (std::int64_t i = 0; i < rows; ++i, logits += classes, dlogits += classes) {
        const T top = *std::max_element(logits, logits + classes);  // so that no exp overflows
        T total = 0;
        for (std::int64_t c = 0; c < classes; ++c) total += dlogits[c] = std::exp(logits[c] - top);
        loss += std::log(total) - (logits[targets[i]] - top);
        const T share = 1 / (total * static_cast<T>(rows));
        for (std::int64_t c = 0; c < classes; ++c) dlogits[c] *= share;
        dlogits[targets[i]] -= 1 / static_cast<T>(rows);
    }
    return loss / static_cast<double>(rows);
}

// table = 0, then table[numbers[i]] += rows[i]: the gradient of an embedding.
template <class T> void add_rows(const std::int64_t* numbers, const T* rows, std::int64_t count, std::int64_t width,
                                 std::int64_t size, T* table) {
    std::fill_n(table, size, T{0});
    for (std::int64_t i = 0; i < count; ++i, rows += width) {
        T* to = table + numbers[i] * width;
        for (std::int64_t j = 0; j < width; ++j) to[j] += rows[j];
    }
}

}  // namespace truenorm
