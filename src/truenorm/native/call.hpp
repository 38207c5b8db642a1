// One normalization of tensors, forward and then backward: what is real, and the moments in between.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan.hpp"
#include "running.hpp"
#include "tensor.hpp"

namespace truenorm {

class Call {
public:
    Call(const Plan& plan, std::int64_t elements, nb::handle lengths, nb::handle starts, nb::handle valid,
         nb::handle sample_weight, bool keep_padding)
        : plan(plan), problem(plan.prepare(elements, real, lengths, starts, valid, sample_weight, keep_padding)), runs(problem) {
        moments.resize(static_cast<std::size_t>(problem.statistics()));
    }
    // lengths: none, or one for each sequence; in their range.
    Call(const Plan& plan, std::vector<std::int64_t> lengths_, bool keep_padding)
        : plan(plan),
          lengths(std::move(lengths_)),
          problem(plan.whole(lengths.empty() ? nullptr : lengths.data(), keep_padding)),
          runs(problem) {
        moments.resize(static_cast<std::size_t>(problem.statistics()));
    }
    Call(const Call&) = delete;

    // Statistics that do not depend on x, as moments of so many elements that m2 is the variance.
    void fix(nb::handle mean_, nb::handle var_) {
        Tensor mean, var;
        if (!mean.see(mean_, "d") || !var.see(var_, "d") || mean.count != size() || var.count != size())
            throw nb::value_error("mean, var: one for each statistic, in float64.");
        fixed = true;
        for (std::size_t i = 0; i < moments.size(); ++i)
            moments[i] = {1.0 + problem.ddof, mean.at<double>()[i], var.at<double>()[i]};
    }

    // False, and nothing done, where a tensor does not fit or cannot be read where it is.
    bool forward(nb::handle x_, nb::handle y_, nb::handle weight_, nb::handle bias_) {
        Tensor x, y, weight, bias;
        if (!like_x(x, x_) || !like_x(y, y_) || !parameter(weight, weight_) || !parameter(bias, bias_)) return false;
        nb::gil_scoped_release released;
        Problem call = problem;
        Team team(call.elements());
        call.team = &team;
        const std::vector<double> w = widened(stored(weight), call.width(), 1), b = widened(stored(bias), call.width(), 0);
        plan.dispatch([&](auto t) {
            using T = decltype(t);
            truenorm::forward<T>(call, runs, x.at<const T>(), y.at<T>(), moments.data(), fixed, Affine{w.data(), b.data()});
        });
        return true;
    }

    // The same; hooks may have had x and weight in between. None where a gradient is not asked for.
    bool backward(nb::handle x_, nb::handle dy_, nb::handle weight_, nb::handle dx_, nb::handle dweight_, nb::handle dbias_) {
        Tensor x, dy, dx, weight, dweight, dbias;
        if (!like_x(x, x_) || !like_x(dy, dy_) || !(dx_.is_none() || like_x(dx, dx_)) || !parameter(weight, weight_) ||
            !parameter(dweight, dweight_) || !parameter(dbias, dbias_) || Tensor::negated(x_) || Tensor::negated(dy_) ||
            (weight && Tensor::negated(weight_)))
            return false;
        nb::gil_scoped_release released;
        Problem call = problem;
        Team team(call.elements());
        call.team = &team;
        const std::vector<double> w = widened(stored(weight), call.width(), 1), b(w.size());
        std::vector<double> into_weight(w.size()), into_bias(w.size());
        std::vector<Sums> sums(moments.size());
        plan.dispatch([&](auto t) {
            using T = decltype(t);
            truenorm::backward<T>(call, runs, x.at<const T>(), dy.at<const T>(), dx.at<T>(), moments.data(),
                                  Affine{w.data(), b.data()}, nullptr, fixed, sums.data(), into_weight.data(),
                                  into_bias.data());
        });
        narrow(into_weight, stored(dweight));
        narrow(into_bias, stored(dbias));
        return true;
    }

    // `Running.update` of a layer's own buffers, one element for each statistic, and of its counter. 2 where they cannot be
    // written where they are.
    int update_running(nb::handle mean_, nb::handle var_, double momentum, int ddof, nb::handle counter_) {
        Tensor mean, var, counter;
        if (!mean.read(mean_, "fd") || !var.read(var_, "fd") || mean.letter != var.letter || mean.count != size() ||
            var.count != size() || !(counter_.is_none() || (counter.see(counter_, "q") && counter.count == 1)))
            return 2;
        const int done =
            mean.letter == 'f'
                ? update(moments.data(), mean.at<float>(), var.at<float>(), size(), momentum, ddof)
                : update(moments.data(), mean.at<double>(), var.at<double>(), size(), momentum, ddof);
        if (done == 1 && counter) ++*counter.at<std::int64_t>();
        return done;
    }

    // The lengths of all sequences, as bytes of int64; empty where none were given to `Usual.call`.
    nb::bytes get_lengths() const { return nb::bytes(lengths.data(), lengths.size() * sizeof(std::int64_t)); }

    // How many elements are real.
    std::int64_t real_elements() const {
        std::int64_t rows = 0;
        for (const std::int64_t count : runs.count) rows += count;
        return rows * problem.width();
    }

    // Whether it is worth sharing among threads.
    bool large() const { return Team::shares(problem.elements()); }

    // count, mean and m2 of each statistic, as bytes of doubles.
    nb::bytes get_moments() const { return nb::bytes(moments.data(), moments.size() * sizeof(Moments)); }

    void set_moments(nb::handle from_) {
        Array from;
        from.take(from_, "moments", "d", false);
        from.has("moments", 3 * size());
        std::copy_n(from.at<Moments>(), moments.size(), moments.data());
    }

    static constexpr const char* FLOATS = "fdeH";

private:
    const Plan plan;
    Real real;
    const std::vector<std::int64_t> lengths;
    Problem problem;
    const Runs runs;
    bool fixed = false;
    std::vector<Moments> moments;

    bool like_x(Tensor& tensor, nb::handle object) const {
        return tensor.see(object, plan.format()) && tensor.count == problem.elements();
    }
    bool parameter(Tensor& tensor, nb::handle object) const {
        return object.is_none() || (tensor.see(object, FLOATS) && tensor.count == problem.width());
    }
    static Stored stored(const Tensor& tensor) { return {tensor.data, tensor.letter}; }
    std::int64_t size() const { return static_cast<std::int64_t>(moments.size()); }
};

// Calls of one normalization where all of x is real, or the first so many steps of each sample: the kernels of the shapes
// that were seen last, found by looking at x.
class Usual {
public:
    // None where there is no kernel for this x yet, where x, weight, bias or lengths cannot be read where they are, or where
    // something does not fit. With the call comes what `add` was given.
    nb::object call(nb::handle x_, nb::handle weight_, nb::handle bias_, nb::handle lengths_, bool keep_padding) {
        Tensor x, weight, bias, lengths;
        if (!x.read(x_, Call::FLOATS) || !given(weight, weight_, Call::FLOATS) || !given(bias, bias_, Call::FLOATS) ||
            !given(lengths, lengths_, "q"))
            return nb::none();
        // Whoever asks torch or Python for something may find another thread's `add` done behind it: from here to the
        // copies nobody does.
        const auto same = [&](const Known& one) { return one.letter == x.letter && x.has_shape(one.shape); };
        const auto found = std::find_if(known.begin(), known.end(), same);
        if (found == known.end()) return nb::none();
        if ((weight && !weight.has_shape(found->weight_shape)) || (bias && !bias.has_shape(found->weight_shape)))
            return nb::none();
        std::vector<std::int64_t> steps;
        if (lengths && !found->read(lengths, steps)) return nb::none();
        const nb::object kernel = found->kernel;
        Call* const call = new Call(found->plan, std::move(steps), keep_padding);
        return nb::make_tuple(nb::cast(call, nb::rv_policy::take_ownership), kernel);
    }

    // repeats: how often each sample's length stands in a row, one for each sequence; 0 where there are no lengths.
    void add(const Plan& plan, const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& weight_shape,
             std::int64_t repeats, nb::object kernel) {
        const auto same = [&](const Known& one) { return one.letter == *plan.format() && one.shape == shape; };
        std::vector<Known> gone;  // what they hold is let go of when all is done: that may run anything
        const auto found = std::find_if(known.begin(), known.end(), same);
        if (found != known.end()) gone.push_back(*found), known.erase(found);
        else if (known.size() == MOST) gone.push_back(known.back()), known.pop_back();
        known.insert(known.begin(), {plan, *plan.format(), shape, weight_shape, repeats, kernel});
    }

private:
    struct Known {
        Plan plan;
        char letter;
        std::vector<std::int64_t> shape, weight_shape;
        std::int64_t repeats;
        nb::object kernel;

        // The steps of each sequence, from the lengths of the samples.
        bool read(const Tensor& told, std::vector<std::int64_t>& steps) const {
            if (!repeats || !told.has_shape({plan.sequences() / repeats})) return false;
            steps.reserve(static_cast<std::size_t>(plan.sequences()));
            for (std::int64_t i = 0; i < told.count; ++i) {
                const std::int64_t length = told.at<std::int64_t>()[i];
                if (length < 0 || length > plan.extent()) return false;
                steps.insert(steps.end(), static_cast<std::size_t>(repeats), length);
            }
            return true;
        }
    };
    static constexpr std::size_t MOST = 16;
    std::vector<Known> known;

    static bool given(Tensor& tensor, nb::handle object, const char* letters) {
        return object.is_none() || tensor.read(object, letters);
    }
};

}  // namespace truenorm
