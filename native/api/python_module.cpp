// The Python extension module. It takes addresses and keeps none of them after a call;
// moesaic/kernels/native.py checks tensors and shapes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "layer/runner.h"
#include "moesaic_native.h"
#include "products/cpu_features.h"
#include "products/roofline.h"
#include "router/router.h"

namespace nb = nanobind;
using namespace moesaic;

namespace {

template <class T>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

// `LayerCall` as Python fills it in. `block_table` is the address of an array with the addresses of all
// experts' blocks, of which those of `experts` are computed.
struct PythonLayerCall : LayerCall {
  const std::uintptr_t* block_table = nullptr;
  std::vector<int> listed;
};

void submit(Runner& runner, const PythonLayerCall& arguments) {
  LayerCall call = arguments;
  const std::vector<int>& experts = arguments.listed;
  std::vector<const std::uint8_t*> addresses(experts.size());
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (experts[i] < 0 || experts[i] >= call.experts_total)
      throw InvalidCall("expert " + std::to_string(experts[i]) + " is to be computed, but there are " +
                        std::to_string(call.experts_total));
    addresses[i] = at<const std::uint8_t>(arguments.block_table[experts[i]]);
  }
  call.count = int(experts.size());
  call.experts = experts.data();
  call.blocks = addresses.data();
  const nb::gil_scoped_release released;
  runner.submit(call);
}

// Returns nanoseconds.
std::int64_t run(Runner& runner, const PythonLayerCall& arguments) {
  const std::int64_t started = now_ns();
  submit(runner, arguments);
  const nb::gil_scoped_release released;
  runner.wait(true);
  return now_ns() - started;
}

void pack(Runner& runner, std::uintptr_t gate, std::uintptr_t up, std::uintptr_t down, int type,
          std::size_t up_stride, std::size_t down_stride, std::uintptr_t block) {
  const nb::gil_scoped_release released;
  const FloatType as = FloatType(type);
  runner.pack({{at<const void>(gate), as, up_stride},
               {at<const void>(up), as, up_stride},
               {at<const void>(down), as, down_stride}},
              at<std::uint8_t>(block));
}

// One model's routing rule.
class Router {
 public:
  Router(int isa, const RouterConfig& config) : kernels_(kernels_for(Isa(isa))), config_(config) {
    if (!kernels_) throw InvalidCall("this CPU does not support the instruction set asked for");
    const int experts = config.experts, top_k = config.top_k, groups = config.groups;
    if (top_k < 1 || top_k > experts || groups < 1 || experts % groups || config.top_groups < 1 ||
        config.top_groups > groups || (config.top2_group_score && groups > 1 && experts / groups < 2))
      throw InvalidCall("a router's settings contradict each other");
  }

  void route(const RouterCall& call) const { moesaic::route(*kernels_, config_, call); }

 private:
  const Kernels* kernels_;
  RouterConfig config_;
};

// A struct with read-write attributes; Python sees addresses and enums as integers.
template <class Struct>
class Fields {
 public:
  Fields(nb::module_& m, const char* name) : type_(m, name) { type_.def(nb::init<>()); }

  template <class T, class Base>
  Fields& value(const char* name, T Base::* member) {
    type_.def_rw(name, static_cast<T Struct::*>(member));
    return *this;
  }
  template <class T, class Base>
  Fields& address(const char* name, T* Base::* member) {
    type_.def_prop_rw(
        name, [member](const Struct& s) { return reinterpret_cast<std::uintptr_t>(s.*member); },
        [member](Struct& s, std::uintptr_t address) { s.*member = at<T>(address); });
    return *this;
  }
  template <class Base>
  Fields& type(const char* name, FloatType Base::* member) {
    type_.def_prop_rw(
        name, [member](const Struct& s) { return int(s.*member); },
        [member](Struct& s, int type) { s.*member = FloatType(type); });
    return *this;
  }

 private:
  nb::class_<Struct> type_;
};

void define_structs(nb::module_& m) {
  Fields<PythonLayerCall>(m, "LayerCall")
      .address("block_table", &PythonLayerCall::block_table)
      .value("experts", &PythonLayerCall::listed)
      .address("hidden", &LayerCall::hidden)
      .type("hidden_type", &LayerCall::hidden_type)
      .value("hidden_stride", &LayerCall::hidden_stride)
      .value("tokens", &LayerCall::tokens)
      .value("top_k", &LayerCall::top_k)
      .value("experts_total", &LayerCall::experts_total)
      .address("ids", &LayerCall::ids)
      .address("weights", &LayerCall::weights)
      .address("out", &LayerCall::out)
      .type("out_type", &LayerCall::out_type)
      .value("add", &LayerCall::add)
      .value("strict", &LayerCall::strict);
  Fields<RouterConfig>(m, "RouterConfig")
      .value("experts", &RouterConfig::experts)
      .value("top_k", &RouterConfig::top_k)
      .value("sigmoid", &RouterConfig::sigmoid)
      .value("renormalize", &RouterConfig::renormalize)
      .value("in_fp32", &RouterConfig::in_fp32)
      .value("round_weights", &RouterConfig::round_weights)
      .value("scaling_factor", &RouterConfig::scaling_factor)
      .value("groups", &RouterConfig::groups)
      .value("top_groups", &RouterConfig::top_groups)
      .value("top2_group_score", &RouterConfig::top2_group_score);
  Fields<RouterCall>(m, "RouterCall")
      .address("residual", &RouterCall::residual)
      .address("norm", &RouterCall::norm)
      .address("gate", &RouterCall::gate)
      .address("bias", &RouterCall::bias)
      .type("type", &RouterCall::type)
      .value("tokens", &RouterCall::tokens)
      .value("hidden", &RouterCall::hidden)
      .value("eps", &RouterCall::eps)
      .address("normalized", &RouterCall::normalized)
      .address("ids", &RouterCall::ids)
      .address("weights", &RouterCall::weights)
      .address("scores", &RouterCall::scores)
      .address("selection_scores", &RouterCall::selection_scores);
}

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
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
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
  m.def("unpack", [](int dtype, int hidden, int intermediate, std::uintptr_t block, std::uintptr_t gate,
                     std::uintptr_t up, std::uintptr_t down) {
    unpack(ExpertLayout(Dtype(dtype), hidden, intermediate), at<const std::uint8_t>(block), at<float>(gate),
           at<float>(up), at<float>(down));
  });
  m.attr("peak_item_flops") = kPeakItemFlops;

  define_structs(m);

  nb::class_<Pool>(m, "Pool")
      .def(
          "__init__",
          [](Pool* pool, const std::vector<int>& cores, double spin_us) {
            new (pool) Pool(cores, std::int64_t(spin_us * 1000));
          },
          nb::arg("cores"), nb::arg("spin_us"))
      .def_prop_ro("workers", &Pool::workers)
      .def_prop_ro("pinned", &Pool::pinned)
      .def("start_latencies", &start_latencies, nb::arg("count"))
      .def(
          "stream_seconds",
          [](Pool& pool, std::uintptr_t memory, std::size_t bytes, bool multi_stream) {
            const nb::gil_scoped_release released;
            return timed(pool,
                         stream_job(at<const std::uint8_t>(memory), bytes, multi_stream, pool.worker_slots()),
                         true);
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
             new (runner) Runner(std::move(pool), Dtype(dtype), hidden, intermediate, Activation(activation),
                                 Isa(isa), tiles_from);
           })
      .def_prop_ro("isa", [](const Runner& runner) { return runner.config().kernels->name; })
      .def_prop_ro("block_bytes", [](const Runner& runner) { return runner.config().layout.bytes; })
      .def("workspace_bytes", &Runner::workspace_bytes)
      .def("pack", &pack)
      .def("submit", &submit)
      .def("run", &run)
      .def("done", &Runner::done)
      .def("wait", [](Runner& runner, bool help) {
        const nb::gil_scoped_release released;
        runner.wait(help);
      });

  nb::class_<Router>(m, "Router").def(nb::init<int, const RouterConfig&>()).def("route", &Router::route);

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
