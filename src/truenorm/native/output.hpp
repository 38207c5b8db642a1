// Large outputs are written past the caches: an ordinary store first reads the line that it overwrites, and evicts
// inputs that are needed again. Two kinds are not: padding would end in parts of lines, each of which waits for memory,
// and two bytes an element take longer to compute than to store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "loops.hpp"

#if defined(TRUENORM_X86)
#include <emmintrin.h>
#endif
#if defined(__unix__)
#include <unistd.h>
#endif

namespace truenorm {

// Outputs of more bytes than the last cache holds are streamed. Most processors share it among more threads than a call
// has, so it counts up to MOST_CACHED; it is not always known.
constexpr std::int64_t LEAST_CACHED = std::int64_t{1} << 24, MOST_CACHED = std::int64_t{1} << 25;
inline std::int64_t cached_bytes() {
    static const std::int64_t found = [] {
#if defined(_SC_LEVEL3_CACHE_SIZE)
        return std::clamp<std::int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), LEAST_CACHED, MOST_CACHED);
#else
        return LEAST_CACHED;
#endif
    }();
    return found;
}

constexpr std::int64_t PIECE = 1024;  // elements that are gathered before they are streamed

constexpr std::size_t LINE = 64;

// In steps of SIZE <= bytes, the last of which may overlap the one before. from: null writes zeros.
template <std::size_t SIZE> inline void write_in_steps(char* to, const char* from, std::size_t bytes) {
    const auto write = [&](std::size_t at) {
        if (from) std::memcpy(to + at, from + at, SIZE);
        else std::memset(to + at, 0, SIZE);
    };
    for (std::size_t at = 0; at + SIZE < bytes; at += SIZE) write(at);
    write(bytes - SIZE);
}

// bytes: of whole elements, each at least 2. from: null writes zeros. For a few bytes a call of the library would take
// longer than writing them.
inline void write_cached(char* to, const char* from, std::size_t bytes) {
    if (bytes == 0) return;
    if (bytes < 8) write_in_steps<2>(to, from, bytes);
    else if (bytes < 16) write_in_steps<8>(to, from, bytes);
    else if (bytes < 128) write_in_steps<16>(to, from, bytes);
    else if (from) std::memcpy(to, from, bytes);
    else std::memset(to, 0, bytes);
}

// Whole lines go past the caches. Parts of a line are stored as usual, which is faster for them.
inline void write_past_caches(char* to, const char* from, std::size_t bytes) {
    const std::size_t head = (LINE - reinterpret_cast<std::uintptr_t>(to) % LINE) % LINE;
    if (bytes <= head) return write_cached(to, from, bytes);
    const std::size_t lines = (bytes - head) / LINE * LINE, tail = bytes - head - lines;
    write_cached(to, from, head);
    loop_table().write_lines(to + head, from + head, lines);
    write_cached(to + head + lines, from + head + lines, tail);
}

template <class T> void fill(T* to, const T* from, std::int64_t n) {
    write_cached(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from),
                 static_cast<std::size_t>(n) * sizeof(T));
}

// Where a kernel writes: y or dx. Null: nothing is written.
template <class T> class Output {
public:
    // padded: whether a part of the elements is padding.
    Output(T* base, std::int64_t elements, bool padded, Activation activation = Activation::none,
           const T* more = nullptr)
        : base(base),
          streamed(!padded && sizeof(T) >= sizeof(float) &&
                   elements * static_cast<std::int64_t>(sizeof(T)) > cached_bytes()),
          activation(activation),
          more(more) {}

    explicit operator bool() const { return base != nullptr; }

    // write(to, i, count) is to write elements i to i + count of the n that start at `at`. The activation follows, or
    // `more` is added, while they are in the first-level cache.
    template <class Write> void put(std::int64_t at, std::int64_t n, Write write) const {
        put_pieces(at, n, follows(), [&](T* to, std::int64_t i, std::int64_t count) {
            write(to, i, count);
            follow(to, at + i, count);
        });
    }

    // write(to, row, i, m) is to write elements i to i + m of a row: of `rows` rows of n elements that lie one after
    // another from `at` on. What follows is done as by `put`.
    template <class Write> void put_rows(std::int64_t at, std::int64_t rows, std::int64_t n, Write write) const {
        put_block(at, rows, n, [&](T* to, std::int64_t row, std::int64_t count, std::int64_t i, std::int64_t m) {
            for (std::int64_t r = 0; r < count; ++r) write(to + r * n, row + r, i, m);
        });
    }

    // The same for several rows at once, as in `put_together`.
    template <class Write> void put_block(std::int64_t at, std::int64_t rows, std::int64_t n, Write write) const {
        const auto of_all = [&](T* to, std::int64_t row, std::int64_t count, std::int64_t i, std::int64_t m) {
            write(to, row, count, i, m);
            follow(to, at + row * n + i, count * m);
        };
        put_together(at, rows, n, of_all, follows());
    }

    // `put_block` without what follows. Short rows are streamed together, as their ends are parts of lines.
    template <class Write>
    void put_together(std::int64_t at, std::int64_t rows, std::int64_t n, Write write, bool in_pieces = false) const {
        if (!streamed && !in_pieces) return write(base + at, std::int64_t{0}, rows, std::int64_t{0}, n);
        const std::int64_t most = n < PIECE ? PIECE / n : 1;
        for (std::int64_t row = 0; row < rows; row += most) {
            const std::int64_t here = rows - row < most ? rows - row : most;
            put_pieces(at + row * n, here * n, in_pieces,
                       [&](T* to, std::int64_t i, std::int64_t m) { write(to, row, here, i, here == 1 ? m : n); });
        }
    }

    // Writes padding: 0, or what `from` holds; and `more`.
    void fill(const T* from, std::int64_t at, std::int64_t n) const {
        if (n <= 0) return;
        if (more && from)
            return put(at, n,
                       [&](T* to, std::int64_t i, std::int64_t count) { std::copy_n(from + at + i, count, to); });
        if (more) from = more;
        truenorm::fill(base + at, from ? from + at : nullptr, n);
    }

    // Where the elements from `at` on are written. Not for outputs that go past the caches: they have no padding.
    T* padded(std::int64_t at) const { return base + at; }

    // After this, other threads see what was written past the caches.
    void finish() const {
#if defined(TRUENORM_X86)
        if (streamed) _mm_sfence();
#endif
    }

private:
    bool follows() const { return more || activation != Activation::none; }
    void follow(T* to, std::int64_t at, std::int64_t n) const {
        const auto& after = loops<T, typename Accumulator<T>::type>();
        if (activation != Activation::none) after.activate(activation, to, n);
        if (more) after.add(to, more + at, to, n);
    }

    // Outputs that go past the caches are written in pieces, others if they are to be.
    template <class Write> void put_pieces(std::int64_t at, std::int64_t n, bool in_pieces, Write write) const {
        if (!streamed && !in_pieces) return write(base + at, std::int64_t{0}, n);
        T piece[PIECE];
        for (std::int64_t i = 0; i < n; i += PIECE) {
            const std::int64_t count = n - i < PIECE ? n - i : PIECE;
            T* const to = streamed ? piece : base + at + i;
            write(to, i, count);
            if (streamed)
                write_past_caches(reinterpret_cast<char*>(base + at + i), reinterpret_cast<const char*>(piece),
                                  static_cast<std::size_t>(count) * sizeof(T));
        }
    }

    T* base;
    bool streamed;
    Activation activation;
    const T* more;  // of the same size as base, or null
};

}  // namespace truenorm
