// The Python extension module. It takes addresses and keeps none of them after a call;
// moesaic/kernels/native.py checks tensors and shapes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "products/roofline.h"
#include "products/cpu_features.h"
#include "moesaic_native.h"
#include "router/router.h"
#include "layer/runner.h"

namespace nb = nanobind;
using namespace moesaic;

namespace {

template <class T>
T* at(std::uintptr_t address) { return reinterpret_cast<T*>(address); }

LayerCall call_of(std::uintptr_t hidden, int hidden_type, std::size_t stride, int tokens, int top_k,
                  std::uintptr_t ids, std::uintptr_t weights, int experts_total, std::uintptr_t out,
                  int out_type, bool add, bool strict) {
  LayerCall call;
  call.hidden = at<const void>(hidden);
  call.hidden_type = FloatType(hidden_type);
  call.hidden_stride = stride;
  call.tokens = tokens;
  call.top_k = top_k;
  call.ids = at<const std::int64_t>(ids);
  call.weights = at<const float>(weights);
  call.experts_total = experts_total;
  call.out = at<void>(out);
  call.out_type = FloatType(out_type);
  call.add = add;
  call.strict = strict;
  return call;
}

// `table` holds the addresses of all experts' blocks; those listed are computed.
void submit(Runner& runner, std::uintptr_t table, const std::vector<int>& experts,
            std::uintptr_t hidden, int hidden_type, std::size_t stride, int tokens, int top_k,
            std::uintptr_t ids, std::uintptr_t weights, int experts_total, std::uintptr_t out,
            int out_type, bool add, bool strict) {
  LayerCall call = call_of(hidden, hidden_type, stride, tokens, top_k, ids, weights, experts_total,
                           out, out_type, add, strict);
  const std::uintptr_t* blocks = at<const std::uintptr_t>(table);
  std::vector<const std::uint8_t*> addresses(experts.size());
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (experts[i] < 0 || experts[i] >= experts_total)
      throw InvalidCall("expert " + std::to_string(experts[i]) + " is to be computed, but there are " +
                    std::to_string(experts_total));
    addresses[i] = at<const std::uint8_t>(blocks[experts[i]]);
  }
  call.count = int(experts.size());
  call.experts = experts.data();
  call.blocks = addresses.data();
  const nb::gil_scoped_release released;
  runner.submit(call);
}

// Returns nanoseconds.
std::int64_t run(Runner& runner, std::uintptr_t table, const std::vector<int>& experts, std::uintptr_t hidden,
         int hidden_type, std::size_t stride, int tokens, int top_k, std::uintptr_t ids,
                 std::uintptr_t weights, int experts_total, std::uintptr_t out, int out_type,
                 bool add, bool strict) {
  const std::int64_t started = now_ns();
  submit(runner, table, experts, hidden, hidden_type, stride, tokens, top_k, ids, weights,
         experts_total, out, out_type, add, strict);
  const nb::gil_scoped_release released;
  runner.wait(true);
  return now_ns() - started;
}

void pack(Runner& runner, std::uintptr_t gate, std::uintptr_t up, std::uintptr_t down, int type,
          std::size_t up_stride, std::size_t down_stride, std::uintptr_t block) {
  const nb::gil_scoped_release released;
  const FloatType as = FloatType(type);
  runner.pack({{at<const void>(gate), as, up_stride}, {at<const void>(up), as, up_stride},
               {at<const void>(down), as, down_stride}},
              at<std::uint8_t>(block));
}

// One model's routing rule.
class Router {
 public:
  Router(int isa, int experts, int top_k, bool sigmoid, bool renormalize, bool in_fp32,
         bool round_weights, float scaling_factor, int groups, int top_groups, bool top2_group_score)
      : kernels_(kernels_for(Isa(isa))),
        config_{experts, top_k, sigmoid, renormalize, in_fp32, round_weights,
              scaling_factor, groups, top_groups, top2_group_score} {
    if (!kernels_) throw InvalidCall("this CPU does not support the instruction set asked for");
    if (top_k < 1 || top_k > experts || groups < 1 || experts % groups || top_groups < 1 ||
        top_groups > groups || (top2_group_score && groups > 1 && experts / groups < 2))
      throw InvalidCall("a router's settings contradict each other");
  }

  void route(std::uintptr_t residual, std::uintptr_t norm, std::uintptr_t gate, std::uintptr_t bias,
             int type, int tokens, int hidden, float eps, std::uintptr_t normalized,
             std::uintptr_t ids, std::uintptr_t weights, std::uintptr_t scores,
             std::uintptr_t selection_scores) const {
    RouterCall call;
    call.residual = at<const void>(residual);
    call.norm = at<const void>(norm);
    call.gate = at<const void>(gate);
    call.bias = at<const float>(bias);
    call.type = FloatType(type);
    call.tokens = tokens;
    call.hidden = hidden;
    call.eps = eps;
    call.normalized = at<void>(normalized);
    call.ids = at<std::int64_t>(ids);
    call.weights = at<float>(weights);
    call.scores = at<float>(scores);
    call.selection_scores = at<float>(selection_scores);
    moesaic::route(*kernels_, config_, call);
  }

 private:
  const Kernels* kernels_;
  RouterConfig config_;
};

// Seconds from the submission of a job to its end.
double timed(Pool& pool, std::shared_ptr<Job> job, bool help) {
  const std::int64_t start = now_ns();
  pool.wait(pool.submit(std::move(job)), help);
  return double(now_ns() - start) * 1e-9;
}

class StartJob : public Job {
 public:
  int phases() const override { return 1; }
  int items(int) override { return 1; }
  void run(int, int, int) override { started = now_ns(); }
  std::int64_t started = 0;
};

// Nanoseconds from the submission of a job to its first item on a worker, `count` times.
std::vector<std::int64_t> start_latencies(Pool& pool, int count) {
  const nb::gil_scoped_release released;
  std::vector<std::int64_t> latencies;
  for (int i = 0; i < count; ++i) {
    auto job = std::make_shared<StartJob>();
    const std::int64_t submitted = now_ns();
    const std::uint64_t ticket = pool.submit(job);
    pool.wait(ticket, false);
    latencies.push_back(job->started - submitted);
  }
  return latencies;
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // pools may live until the interpreter ends
  m.doc() = "CPU expert kernels; see moesaic.kernels.native";
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void*) {
        try {
          std::rethrow_exception(error);
        } catch (const InvalidCall& bad) {
          PyErr_SetString(PyExc_ValueError, bad.what());
        } catch (const std::domain_error& bad_weights) {
          PyErr_SetString(PyExc_ArithmeticError, bad_weights.what());
        }
      });

  m.def("isas", [] {
    std::vector<std::string> names;
    if (kernels_for(Isa::amx)) names.push_back("amx");
    if (kernels_for(Isa::avx512)) names.push_back("avx512");
    if (kernels_for(Isa::avx2)) names.push_back("avx2");
    return names;
  });
  m.def("block_bytes", [](int dtype, int hidden, int intermediate) {
    return ExpertLayout(Dtype(dtype), hidden, intermediate).bytes;
  });
  m.def("unpack", [](int dtype, int hidden, int intermediate, std::uintptr_t block,
                     std::uintptr_t gate, std::uintptr_t up, std::uintptr_t down) {
    unpack(ExpertLayout(Dtype(dtype), hidden, intermediate), at<const std::uint8_t>(block),
           at<float>(gate), at<float>(up), at<float>(down));
  });
  m.attr("peak_item_flops") = kPeakItemFlops;

  nb::class_<Pool>(m, "Pool")
      .def("__init__",
           [](Pool* pool, const std::vector<int>& cores, double spin_us) {
             new (pool) Pool(cores, std::int64_t(spin_us * 1000));
           },
           nb::arg("cores"), nb::arg("spin_us"))
      .def_prop_ro("workers", &Pool::workers)
      .def_prop_ro("pinned", &Pool::pinned)
      .def("start_latencies", &start_latencies, nb::arg("count"))
      .def("stream_seconds",
           [](Pool& pool, std::uintptr_t memory, std::size_t bytes, bool multi_stream) {
             const nb::gil_scoped_release released;
             return timed(pool, stream_job(at<const std::uint8_t>(memory), bytes, multi_stream, pool.worker_slots()), true);
           },
           nb::arg("memory"), nb::arg("bytes"), nb::arg("multi_stream"))
      .def("peak_seconds", [](Pool& pool, int items) {
        auto job = peak_job(items);
        if (!job) throw InvalidCall("this CPU has no matrix tiles");
        const nb::gil_scoped_release released;
        return timed(pool, job, true);
      });

  nb::class_<Runner>(m, "Runner")
      .def("__init__",
           [](Runner* runner, std::shared_ptr<Pool> pool, int dtype, int hidden, int intermediate,
              int activation, int isa, int tiles_from) {
             new (runner) Runner(std::move(pool), Dtype(dtype), hidden, intermediate,
                                 Activation(activation), Isa(isa), tiles_from);
           })
      .def_prop_ro("isa", [](const Runner& runner) { return runner.config().kernels->name; })
      .def_prop_ro("block_bytes", [](const Runner& runner) { return runner.config().layout.bytes; })
      .def("workspace_bytes", &Runner::workspace_bytes)
      .def("pack", &pack)
      .def("submit", &submit,
           nb::arg("table"), nb::arg("experts"), nb::arg("hidden"), nb::arg("hidden_type"),
           nb::arg("stride"), nb::arg("tokens"), nb::arg("top_k"), nb::arg("ids"),
           nb::arg("weights"), nb::arg("experts_total"), nb::arg("out"),
           nb::arg("out_type"), nb::arg("add"), nb::arg("strict") = true)
      .def("run", &run,
           nb::arg("table"), nb::arg("experts"), nb::arg("hidden"), nb::arg("hidden_type"),
           nb::arg("stride"), nb::arg("tokens"), nb::arg("top_k"), nb::arg("ids"),
           nb::arg("weights"), nb::arg("experts_total"), nb::arg("out"),
           nb::arg("out_type"), nb::arg("add"), nb::arg("strict") = true)
      .def("done", &Runner::done)
      .def("wait", [](Runner& runner, bool help) {
        const nb::gil_scoped_release released;
        runner.wait(help);
      });

  nb::class_<Router>(m, "Router")
      .def(nb::init<int, int, int, bool, bool, bool, bool, float, int, int, bool>())
      .def("route", &Router::route);

  // Addresses of the C functions, for callers that hold no Python interpreter.
  nb::dict functions;
  const auto add = [&](const char* name, auto* function) {
    functions[name] = reinterpret_cast<std::uintptr_t>(function);
  };
  add("moesaic_submit", &moesaic_submit);
  add("moesaic_wait", &moesaic_wait);
  add("moesaic_done", &moesaic_done);
  m.attr("c_functions") = functions;
}
