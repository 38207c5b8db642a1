// One normalization of tensors, forward and then backward: what is real, and the moments in between.
//
// Tensors do not know the buffer protocol. They come as addresses of contiguous memory, 0 for none, and the caller answers for
// their sizes; so that a call on a small tensor is not spent on looking at arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "plan.hpp"
#include "running.hpp"

namespace truenorm {

class Call {
public:
    using Address = std::uintptr_t;

    Call(const Plan& plan, std::int64_t elements, nb::handle lengths, nb::handle starts, nb::handle valid,
         nb::handle sample_weight, bool keep_padding)
        : plan(plan), problem(plan.prepare(elements, real, lengths, starts, valid, sample_weight, keep_padding)) {
        moments.resize(static_cast<std::size_t>(problem.statistics()));
    }
    Call(const Call&) = delete;

    // Statistics that do not depend on x, as moments of so many elements that m2 is the variance.
    void fix(Address mean, Address var, char letter) {
        fixed = true;
        const std::vector<double> means = widened(at(mean, letter), size(), 0), vars = widened(at(var, letter), size(), 0);
        for (std::size_t i = 0; i < moments.size(); ++i) moments[i] = {1.0 + problem.ddof, means[i], vars[i]};
    }

    void forward(Address x, Address y, Address weight, char weight_letter, Address bias, char bias_letter) {
        check(x);
        nb::gil_scoped_release released;
        Problem call = problem;
        Team team(call.elements());
        call.team = &team;
        const std::int64_t width = call.width();
        const std::vector<double> w = widened(at(weight, weight_letter), width, 1), b = widened(at(bias, bias_letter), width, 0);
        const Runs runs(call);
        plan.dispatch([&](auto t) {
            using T = decltype(t);
            truenorm::forward<T>(call, runs, reinterpret_cast<const T*>(x), reinterpret_cast<T*>(y), moments.data(), fixed,
                                 Affine{w.data(), b.data()});
        });
    }

    void backward(Address x, Address dy, Address dx, Address weight, char weight_letter, Address dweight, Address dbias,
                  char bias_letter) {
        check(x);
        check(dy);
        nb::gil_scoped_release released;
        Problem call = problem;
        Team team(call.elements());
        call.team = &team;
        const std::vector<double> w = widened(at(weight, weight_letter), call.width(), 1), b(w.size());
        std::vector<double> into_weight(w.size()), into_bias(w.size());
        std::vector<Sums> sums(moments.size());
        const Runs runs(call);
        plan.dispatch([&](auto t) {
            using T = decltype(t);
            truenorm::backward<T>(call, runs, reinterpret_cast<const T*>(x), reinterpret_cast<const T*>(dy),
                                  reinterpret_cast<T*>(dx), moments.data(), Affine{w.data(), b.data()}, nullptr, fixed,
                                  sums.data(), into_weight.data(), into_bias.data());
        });
        narrow(into_weight, at(dweight, weight_letter));
        narrow(into_bias, at(dbias, bias_letter));
    }

    // `Running.update` of a layer's own buffers, one element for each statistic, and of its counter.
    int update_running(Address mean, Address var, char letter, double momentum, int ddof, Address counter) {
        const int done = letter == 'f' ? update(moments.data(), reinterpret_cast<float*>(mean), reinterpret_cast<float*>(var),
                                                size(), momentum, ddof)
                                       : update(moments.data(), reinterpret_cast<double*>(mean),
                                                reinterpret_cast<double*>(var), size(), momentum, ddof);
        if (done == 1 && counter) ++*reinterpret_cast<std::int64_t*>(counter);
        return done;
    }

    // count, mean and m2 of each statistic, as bytes of doubles.
    nb::bytes get_moments() const { return nb::bytes(moments.data(), moments.size() * sizeof(Moments)); }

    void set_moments(nb::handle from_) {
        Array from;
        from.take(from_, "moments", "d", false);
        from.has("moments", 3 * size());
        std::copy_n(from.at<Moments>(), moments.size(), moments.data());
    }

private:
    const Plan plan;
    Real real;
    Problem problem;
    bool fixed = false;
    std::vector<Moments> moments;

    // Some tensors of zeros have no memory; one made from bytes may begin anywhere in it.
    void check(Address tensor) const {
        if (!tensor || tensor % plan.itemsize()) throw nb::value_error("x, dy: in memory of their own, aligned. Clone them.");
    }

    static Stored at(Address address, char letter) { return {reinterpret_cast<void*>(address), letter}; }
    std::int64_t size() const { return static_cast<std::int64_t>(moments.size()); }
};

}  // namespace truenorm
