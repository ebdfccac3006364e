// The Python extension module. It takes addresses and keeps none of them after a call;
// moesaic/kernels/native.py checks tensors and shapes.
#include "api/module_parts.h"
#include "moesaic_native.h"
#include "products/cpu_features.h"
#include "products/roofline.h"
#include "router/router.h"

namespace {

// `LayerCall` as Python fills it in. `block_table` is the address of an array with the addresses of all
// experts' blocks, of which those of `experts` are computed.
struct PythonLayerCall : LayerCall {
  const std::uintptr_t* block_table = nullptr;
  std::vector<int> listed;
};

void submit(Runner& runner, const PythonLayerCall& arguments) {
  LayerCall call = arguments;
  const std::vector<int>& experts = arguments.listed;
  if (!experts.empty() && !arguments.block_table) throw InvalidCall("the table of blocks is missing");
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
  if (!gate || !up || !down || !block) throw InvalidCall("a matrix or a block is missing");
  const FloatType as = checked_type(type);
  const nb::gil_scoped_release released;
  runner.pack({{at<const void>(gate), as, up_stride},
               {at<const void>(up), as, up_stride},
               {at<const void>(down), as, down_stride}},
              at<std::uint8_t>(block));
}

// One model's routing rule.
class Router {
 public:
  Router(int isa, const RouterConfig& config) : kernels_(kernels_for(checked_isa(isa))), config_(config) {
    if (!kernels_) throw InvalidCall("this CPU does not support the instruction set asked for");
    check_router(config);
  }

  void route(const RouterCall& call) const {
    check_route(call);
    moesaic::route(*kernels_, config_, call);
  }

 private:
  const Kernels* kernels_;
  RouterConfig config_;
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
    for (const NamedIsa& each : supported_isas()) names.push_back(each.name);
    return names;
  });
  m.def("block_bytes", [](int dtype, int hidden, int intermediate) {
    return checked_layout(checked_dtype(dtype), hidden, intermediate).bytes;
  });
  m.def("unpack", [](int dtype, int hidden, int intermediate, std::uintptr_t block, std::uintptr_t gate,
                     std::uintptr_t up, std::uintptr_t down) {
    const ExpertLayout layout = checked_layout(checked_dtype(dtype), hidden, intermediate);
    if (!gate || !up || !down || !block) throw InvalidCall("a matrix or a block is missing");
    unpack(layout, at<const std::uint8_t>(block), at<float>(gate), at<float>(up), at<float>(down));
  });
  m.def("peaks", [] {  // operations of one item, by unit
    nb::dict found;
    for (const Peak& peak : peaks()) found[peak.name] = peak.item_ops;
    return found;
  });

  define_structs(m);

  nb::class_<Pool>(m, "Pool")
      .def(
          "__init__",
          [](Pool* pool, const std::vector<int>& cores, double spin_us) {
            new (pool) Pool(cores, checked_spin_ns(spin_us));
          },
          nb::arg("cores"), nb::arg("spin_us"))
      .def_prop_ro("workers", &Pool::workers)
      .def_prop_ro("pinned", &Pool::pinned)
      .def("start_latencies", &start_latencies, nb::arg("count"))
      .def(
          "stream_seconds",
          [](Pool& pool, std::uintptr_t memory, std::size_t bytes, bool multi_stream) {
            if (!memory && bytes) throw InvalidCall("there is no memory to read");
            const nb::gil_scoped_release released;
            return timed(pool,
                         stream_job(at<const std::uint8_t>(memory), bytes, multi_stream, pool.worker_slots()),
                         true);
          },
          nb::arg("memory"), nb::arg("bytes"), nb::arg("multi_stream"))
      .def("peak_seconds", [](Pool& pool, const std::string& unit, int items) {
        if (items < 1) throw InvalidCall("a peak is measured with at least one item");
        const Peak* found = nullptr;
        for (const Peak& peak : peaks())
          if (unit == peak.name) found = &peak;
        if (!found) throw InvalidCall("this CPU has no unit " + unit);
        const nb::gil_scoped_release released;
        return timed(pool, peak_job(*found, items), true);
      });

  nb::class_<Runner>(m, "Runner")
      .def("__init__",
           [](Runner* runner, std::shared_ptr<Pool> pool, int dtype, int hidden, int intermediate,
              int activation, int isa, int tiles_from) {
             if (!pool) throw InvalidCall("a runner needs a pool");
             new (runner) Runner(std::move(pool), checked_dtype(dtype), hidden, intermediate,
                                 checked_activation(activation), checked_isa(isa), tiles_from);
           })
      .def_prop_ro("isa", [](const Runner& runner) { return runner.config().kernels->name; })
      .def_prop_ro("block_bytes", [](const Runner& runner) { return runner.config().layout.bytes; })
      .def("workspace_bytes",
           [](const Runner& runner, int tokens, int top_k) {
             if (tokens < 0 || top_k < 0 || std::int64_t(tokens) * top_k > kMaxRows)
               throw InvalidCall("a layer cannot have so many tokens and experts");
             return runner.workspace_bytes(tokens, top_k);
           })
      .def("pack", &pack)
      .def("submit", &submit)
      .def("run", &run)
      .def("done", &Runner::done)
      .def("wait", [](Runner& runner, bool help) {
        const nb::gil_scoped_release released;
        runner.wait(help);
      });

  nb::class_<Router>(m, "Router").def(nb::init<int, const RouterConfig&>()).def("route", &Router::route);

  define_linear(m);
  define_step(m);

  // Addresses of the C functions, for callers that hold no Python interpreter.
  nb::dict functions;
  const auto add = [&](const char* name, auto* function) {
    functions[name] = reinterpret_cast<std::uintptr_t>(function);
  };
  add("moesaic_submit", &moesaic_submit);
  add("moesaic_wait", &moesaic_wait);
  add("moesaic_read_ahead", &moesaic_read_ahead);
  add("moesaic_read_some", &moesaic_read_some);
  add("moesaic_done", &moesaic_done);
  m.attr("c_functions") = functions;
}
