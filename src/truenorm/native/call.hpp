// One normalization of tensors, forward and then backward: the valid elements, and the moments in between. `PlanCache`
// finds the plan for a call by the shape, dtype and memory order of x.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plan.hpp"
#include "running.hpp"
#include "tensor.hpp"

namespace truenorm {

// What forward reads and writes; those that are not given are empty. With a residual x + residual is normalized, and
// written to `total`.
struct ForwardTensors {
    Tensor x, y, weight, bias, residual, total;
};
// What backward reads and writes. bias: only used if there is an activation. dtotal: added to dx. Gradients that are
// not needed are not given.
struct BackwardTensors {
    Tensor x, dy, dx, weight, bias, dweight, dbias, dtotal;
};

class Call {
public:
    Call(const Plan& plan, std::int64_t elements, nb::handle lengths, nb::handle starts, nb::handle valid,
         nb::handle sample_weight, bool keep_padding, bool channels_last)
        : plan(plan),
          order(channels_last ? MemoryOrder::channels_last : MemoryOrder::contiguous),
          params(plan.prepare(elements, ragged, {lengths, starts, valid, sample_weight}, keep_padding)),
          runs(params) {
        moments.resize(static_cast<std::size_t>(params.statistics()));
    }
    // lengths: one for each sequence, in their range. valid: one for each row. At most one of them; neither is kept.
    Call(const Plan& plan, MemoryOrder order, const std::int64_t* lengths, const std::uint8_t* valid, bool keep_padding)
        : plan(plan),
          order(order),
          masked(lengths || valid),
          params(plan.whole(nullptr, nullptr, keep_padding)),
          runs(plan.whole(lengths, valid, keep_padding)) {
        moments.resize(static_cast<std::size_t>(params.statistics()));
    }
    Call(const Call&) = delete;

    // Statistics that do not depend on x, copied: moments of so many elements that m2 is the variance. False, and
    // nothing done, if they do not fit or cannot be read in place.
    bool fix(nb::handle mean_, nb::handle var_) {
        Tensor mean, var;
        if (!dense(mean, mean_) || !dense(var, var_) || mean.count != size() || var.count != size()) return false;
        const std::vector<double> means = widened(stored(mean), size(), 0.0), vars = widened(stored(var), size(), 0.0);
        fixed = true;
        for (std::size_t i = 0; i < moments.size(); ++i) moments[i] = {1.0 + params.ddof, means[i], vars[i]};
        return true;
    }

    // False, and nothing done, if a tensor does not fit. Needs no lock of the interpreter.
    bool forward(const ForwardTensors& with) {
        const bool sums = with.residual || with.total;
        if (!like_x(with.x) || !like_x(with.y) || !is_parameter(with.weight) || !is_parameter(with.bias) ||
            (sums && (params.layout != Layout::rows || !like_x(with.residual) || !like_x(with.total))))
            return false;
        truenorm::forward(params, runs, plan.dtype,
                          {with.x.data, with.y.data, moments.data(), fixed, stored(with.weight), stored(with.bias),
                           with.residual.data, with.total.data});
        return true;
    }

    // The same. Checks x and weight again: hooks on saved tensors may have replaced them.
    bool backward(const BackwardTensors& with) {
        if (!like_x(with.x) || !like_x(with.dy) || (with.dx && !like_x(with.dx)) ||
            (with.dtotal && !like_x(with.dtotal)) || !is_parameter(with.weight) || !is_parameter(with.bias) ||
            !is_parameter(with.dweight) || !is_parameter(with.dbias))
            return false;
        truenorm::backward(
            params, runs, plan.dtype,
            {with.x.data, with.dy.data, with.dx.data, moments.data(), fixed, nullptr, false, stored(with.weight),
             stored(with.bias), stored(with.dweight), stored(with.dbias), with.dtotal.data});
        return true;
    }

    // Whether backward needs the bias.
    bool activated() const { return params.activation != Activation::none; }

    // `Running.update` of a layer's own buffers, one element for each statistic, and of its counter. 2 if they cannot
    // be written in place.
    int update_running(nb::handle mean_, nb::handle var_, double momentum, int ddof, nb::handle counter_) {
        Tensor mean, var, counter;
        if (!dense(mean, mean_, "fd") || !dense(var, var_, "fd") || mean.letter != var.letter || mean.count != size() ||
            var.count != size() || !(counter_.is_none() || (counter.read(counter_, "q") && counter.count == 1)))
            return 2;
        const int done = mean.letter == 'f'
                             ? update(moments.data(), mean.at<float>(), var.at<float>(), size(), momentum, ddof)
                             : update(moments.data(), mean.at<double>(), var.at<double>(), size(), momentum, ddof);
        if (done == 1 && counter) ++*counter.at<std::int64_t>();
        return done;
    }

    // Which rows are valid, as bytes of booleans; empty if `PlanCache.find` was given neither lengths nor valid.
    nb::bytes get_valid() const {
        std::vector<char> rows(static_cast<std::size_t>(masked ? params.rows : 0));
        for (std::size_t i = 0; masked && i < runs.runs.size(); ++i)
            std::fill_n(rows.data() + runs.runs[i].start, runs.runs[i].length, 1);
        return nb::bytes(rows.data(), rows.size());
    }

    // The number of valid elements of the statistic that has most of them.
    std::int64_t max_count() const {
        std::int64_t most = 0;
        if (params.layout == Layout::planes) {  // a statistic is over `reduced` lists, one for each sequence
            const std::int64_t each = params.outer ? runs.lists() / params.outer : 0;
            for (std::int64_t first = 0; each && first < runs.lists(); first += each) {
                std::int64_t rows = 0;
                for (std::int64_t i = first; i < first + each; ++i) rows += runs.count[static_cast<std::size_t>(i)];
                most = std::max(most, rows);
            }
        } else {
            for (const std::int64_t rows : runs.count) most = std::max(most, rows);
            if (params.layout == Layout::rows) most = std::min<std::int64_t>(most, 1);
        }
        return most * params.channels;
    }

    bool channels_last() const { return order == MemoryOrder::channels_last; }

    // Whether it is worth sharing among threads.
    bool large() const { return Team::shares(params.elements()); }

    // count, mean and m2 of each statistic, as bytes of doubles.
    nb::bytes get_moments() const { return nb::bytes(moments.data(), moments.size() * sizeof(Moments)); }

    void set_moments(nb::handle from_) {
        Array from;
        from.require(from_, "moments", "d", false, 3 * size());
        std::copy_n(from.at<Moments>(), moments.size(), moments.data());
    }

private:
    const Plan plan;
    const MemoryOrder order;  // of x, y and their gradients
    RaggedBuffers ragged;
    const bool masked = false;  // by `PlanCache.find`
    CallParams params;
    const ValidRuns runs;
    bool fixed = false;
    std::vector<Moments> moments;

    bool like_x(const Tensor& tensor) const {
        return tensor && tensor.letter == *plan.format() && tensor.count == params.elements() &&
               tensor.has_order(order);
    }
    // Or none.
    bool is_parameter(const Tensor& tensor) const {
        return !tensor || (tensor.count == params.width() && tensor.has_order(MemoryOrder::contiguous));
    }
    static bool dense(Tensor& tensor, nb::handle object, const char* letters = FLOATS) {
        return tensor.read(object, letters) && tensor.has_order(MemoryOrder::contiguous);
    }
    static Buffer stored(const Tensor& tensor) { return {tensor.data, tensor.letter}; }
    std::int64_t size() const { return static_cast<std::int64_t>(moments.size()); }
};

// Why `PlanCache.find` found no plan.
enum class Miss {
    unknown_shape,  // no plan yet for the shape, dtype and memory order of x
    x_strided,      // x can be read, but its memory order has no plan: copy it
    x_unreadable,   // x cannot be read in place
    parameters,     // weight or bias do not fit x, or cannot be read in place
    ragged,         // lengths or valid do not fit x, or cannot be read in place
};

// The plans of one normalization, for the shapes that were seen last.
class PlanCache {
public:
    // channels_last: whether there are plans for this memory order too.
    explicit PlanCache(bool channels_last) : has_channels_last(channels_last) {}

    // A new call and the `owner` that was added with its plan; or a Miss.
    nb::object find(nb::handle x_, nb::handle weight_, nb::handle bias_, nb::handle lengths_, nb::handle valid_,
                    bool keep_padding) const {
        Tensor x, weight, bias, lengths, valid;
        if (!x.read(x_, FLOATS)) return nb::cast(Miss::x_unreadable);
        const MemoryOrder order = x.order();
        if (order == MemoryOrder::strided || (order == MemoryOrder::channels_last && !has_channels_last))
            return nb::cast(Miss::x_strided);
        if (!given(weight, weight_, FLOATS) || !given(bias, bias_, FLOATS)) return nb::cast(Miss::parameters);
        if (!given(lengths, lengths_, "q") || !given(valid, valid_, "?")) return nb::cast(Miss::ragged);
        std::unique_ptr<Call> call;
        nb::object owner;
        const auto miss = look_up(x, order, weight, bias, lengths, valid, keep_padding, call, owner);
        if (miss) return nb::cast(*miss);
        return nb::make_tuple(nb::cast(call.release(), nb::rv_policy::take_ownership), owner);
    }

    // shape: of x, which is the plan's with its channel axis second where x is channels_last.
    // repeats, steps: for how many sequences in a row each sample's length holds, and how many rows a position is; 0 if
    // this norm takes no lengths. mask_shapes: those in which `valid` has one element for each row, in their order.
    void add(const Plan& plan, bool channels_last, const std::vector<std::int64_t>& shape,
             const std::vector<std::int64_t>& weight_shape, std::int64_t repeats, std::int64_t steps,
             const std::vector<std::vector<std::int64_t>>& mask_shapes, nb::object owner) {
        const MemoryOrder order = channels_last ? MemoryOrder::channels_last : MemoryOrder::contiguous;
        const auto same = [&](const Entry& one) {
            return one.letter == *plan.format() && one.order == order && one.shape == shape;
        };
        std::vector<Entry> removed;  // freed after the lock: releasing what they hold may run any Python code
        const nb::ft_lock_guard guard(mutex);
        const auto found = std::find_if(entries.begin(), entries.end(), same);
        if (found != entries.end()) removed.push_back(*found), entries.erase(found);
        else if (entries.size() == MOST) removed.push_back(entries.back()), entries.pop_back();
        entries.insert(entries.begin(),
                       {plan, *plan.format(), order, shape, weight_shape, repeats, steps, mask_shapes, owner});
    }

private:
    struct Entry {
        Plan plan;
        char letter;
        MemoryOrder order;
        std::vector<std::int64_t> shape, weight_shape;
        std::int64_t repeats, steps;
        std::vector<std::vector<std::int64_t>> mask_shapes;
        nb::object owner;

        // The rows of each sequence that are valid, from the lengths of the samples.
        bool read(const Tensor& given, std::vector<std::int64_t>& rows) const {
            if (!repeats || !given.has_shape({plan.sequences() / repeats})) return false;
            rows.reserve(static_cast<std::size_t>(plan.sequences()));
            for (std::int64_t i = 0; i < given.count; ++i) {
                const std::int64_t length = given.at<std::int64_t>()[i];
                if (length < 0 || length > plan.extent() / steps) return false;
                rows.insert(rows.end(), static_cast<std::size_t>(repeats), length * steps);
            }
            return true;
        }
        bool is_mask(const Tensor& given) const {
            return std::any_of(mask_shapes.begin(), mask_shapes.end(),
                               [&](const auto& shape) { return given.has_shape(shape); });
        }
    };
    static constexpr std::size_t MOST = 16;
    const bool has_channels_last;
    mutable nb::ft_mutex mutex;  // nothing in builds that have the interpreter's lock
    std::vector<Entry> entries;

    // The call and the owner of the plan for tensors that were read; or why there is none. Nothing in it calls into
    // torch or Python: another thread could run `add` meanwhile, or wait for the lock.
    std::optional<Miss> look_up(const Tensor& x, MemoryOrder order, const Tensor& weight, const Tensor& bias,
                                const Tensor& lengths, const Tensor& valid, bool keep_padding,
                                std::unique_ptr<Call>& call, nb::object& owner) const {
        const auto same = [&](const Entry& one) {
            return one.letter == x.letter && one.order == order && x.has_shape(one.shape);
        };
        const nb::ft_lock_guard guard(mutex);
        const auto found = std::find_if(entries.begin(), entries.end(), same);
        if (found == entries.end()) return Miss::unknown_shape;
        if ((weight && !weight.has_shape(found->weight_shape)) || (bias && !bias.has_shape(found->weight_shape)))
            return Miss::parameters;
        std::vector<std::int64_t> rows;
        if ((lengths && valid) || (lengths && !found->read(lengths, rows)) || (valid && !found->is_mask(valid)))
            return Miss::ragged;
        call = std::make_unique<Call>(found->plan, order, lengths ? rows.data() : nullptr,
                                      valid.at<const std::uint8_t>(), keep_padding);
        owner = found->owner;
        return std::nullopt;
    }

    static bool given(Tensor& tensor, nb::handle object, const char* letters) {
        return object.is_none() || (tensor.read(object, letters) && tensor.has_order(MemoryOrder::contiguous));
    }
};

}  // namespace truenorm
