// The Python extension module of the conductor. Settings come as dictionaries of integers (sizes, addresses);
// machines/captured/conductor.py knows their names.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "conductor/conductor.h"

namespace nb = nanobind;
using namespace moesaic;

namespace {

class Settings {
 public:
  explicit Settings(const nb::dict& given) : given_(given) {}

  template <class T>
  void read(const char* name, T& value) const {
    if (!given_.contains(name)) throw nb::key_error(name);
    const std::int64_t number = nb::cast<std::int64_t>(given_[name]);
    if constexpr (std::is_pointer_v<T>)
      value = reinterpret_cast<T>(std::uintptr_t(number));
    else
      value = T(number);
  }

 private:
  const nb::dict& given_;
};

#define READ(from, to, name) from.read(#name, to.name)

TableLayout table_layout(const nb::dict& given) {
  const Settings s(given);
  TableLayout t{};
  READ(s, t, experts), READ(s, t, blocks_at), READ(s, t, fills_at), READ(s, t, waits_at);
  READ(s, t, firsts_at), READ(s, t, rows_at), READ(s, t, shares_at);
  return t;
}

// Empty: no token runs again.
Wants wants_of(const nb::dict& given) {
  Wants w;
  if (!given.size()) return w;
  const Settings s(given);
  READ(s, w, ids), READ(s, w, scores), READ(s, w, seen_ids), READ(s, w, seen_scores), READ(s, w, distance);
  READ(s, w, whole), READ(s, w, trusted), READ(s, w, right), READ(s, w, judged);
  return w;
}

ConductorConfig configuration(const nb::dict& sizes, const nb::dict& brain,
                              const nb::dict& mailbox, const nb::dict& cpu) {
  ConductorConfig c;
  const Settings s(sizes), b(brain), m(mailbox), e(cpu);
  READ(s, c, layers), READ(s, c, experts), READ(s, c, top_k), READ(s, c, ranks), READ(s, c, hidden);
  READ(s, c, hidden_type), READ(s, c, slots), READ(s, c, block_bytes), READ(s, c, store), READ(s, c, slab);
  READ(s, c, watchdog_ns), READ(s, c, ahead_ns), READ(s, c, core), READ(s, c, records);
  READ(s, c, staging), READ(s, c, copy_from), READ(s, c, look_ahead_to), READ(s, c, stream_ahead);
  READ(s, c, background_copies);
  READ(b, c.brain, state), READ(b, c.brain, decide), READ(b, c.brain, look_ahead), READ(b, c.brain, learn);
  READ(b, c.brain, begin_look_ahead), READ(b, c.brain, finish_look_ahead);
  READ(b, c.brain, choose_read_ahead);
  READ(s, c, forecast_depth), READ(s, c, forecast_rows);
  c.brain.check();
  READ(m, c.mailbox, start), READ(m, c.mailbox, routed), READ(m, c.mailbox, hidden_ready);
  READ(m, c.mailbox, planned), READ(m, c.mailbox, summed), READ(m, c.mailbox, forecast_ready);
  READ(m, c.mailbox, forecast_ids), READ(m, c.mailbox, forecast_scores);
  READ(m, c.mailbox, hidden), READ(m, c.mailbox, ids), READ(m, c.mailbox, weights);
  READ(m, c.mailbox, ranked), READ(m, c.mailbox, scores), READ(m, c.mailbox, table), READ(m, c.mailbox, sum);
  READ(e, c.cpu, runner), READ(e, c.cpu, submit), READ(e, c.cpu, wait), READ(e, c.cpu, error);
  READ(e, c.cpu, read_ahead), READ(e, c.cpu, read_some);
  return c;
}

nb::list times_of(const Conductor& conductor) {
  nb::list found;
  for (const LayerTimes& t : conductor.times())
    found.append(nb::make_tuple(t.routed, t.planned, t.submitted, t.looked_ahead, t.summed, t.on_gpu, t.on_cpu,
                                t.transfers, t.background, t.hits, t.publishing, t.cpu_begun, t.cpu_ended, t.summing));
  return found;
}

nb::list work_of(const Conductor& conductor) {
  nb::list found;
  for (const LayerWork& w : conductor.work())
    found.append(nb::make_tuple(w.gpu, w.gpu_pairs, w.in_place, w.cpu, w.cpu_pairs, w.there));
  return found;
}

nb::list copies_of(Conductor& conductor) {
  nb::list found;
  for (const CopyTimes& c : conductor.take_copies())
    found.append(nb::make_tuple(c.index, bool(c.background), c.submitted, c.unseen, c.seen));
  return found;
}

nb::list decisions_of(const Conductor& conductor) {
  nb::list found;
  for (const Decision& d : conductor.decisions())
    found.append(nb::make_tuple(std::vector<int>(d.resident.begin(), d.resident.end()), d.held, d.flights, d.plan,
                                d.background, d.occupied, d.link_busy_ns, d.report_start_ns, d.report_end_ns,
                                d.hits, d.report_cpu_ns));
  return found;
}

}  // namespace

NB_MODULE(_conductor, m) {
  nb::class_<Conductor>(m, "Conductor")
      .def("__init__",
           [](Conductor* self, const nb::dict& sizes, const nb::dict& brain,
              const nb::dict& mailbox, const nb::dict& cpu, std::uintptr_t flag,
              std::uintptr_t context, std::uintptr_t stream, std::uintptr_t device_flag, std::int64_t host_copy_ns) {
             std::uint32_t* ended = reinterpret_cast<std::uint32_t*>(flag);
             auto copies =
                 context ? cuda_copies(context, stream, ended, device_flag) : host_copies(ended, host_copy_ns);
             new (self) Conductor(configuration(sizes, brain, mailbox, cpu), std::move(copies));
           })
      .def("place", &Conductor::place)
      .def("slots", &Conductor::slots, nb::call_guard<nb::gil_scoped_release>())
      .def("load_slots", &Conductor::load_slots, nb::call_guard<nb::gil_scoped_release>())
      .def("begin",
           [](Conductor& self, std::int64_t number, int tokens, const nb::dict& layout, int forecasts, bool recorded,
              bool is_long, const nb::dict& wants) {
             self.begin({number, tokens, table_layout(layout), {forecasts, recorded}, is_long}, wants_of(wants));
           })
      .def("release", &Conductor::release)
      .def("expect", [](Conductor& self, std::uintptr_t active) { self.expect(reinterpret_cast<std::int64_t*>(active)); })
      .def("claim", &Conductor::claim)
      .def("let_through", &Conductor::let_through, nb::call_guard<nb::gil_scoped_release>())
      .def("finish", &Conductor::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("times", &times_of)
      .def("work", &work_of)
      .def("take_copies", &copies_of)
      .def("decisions", &decisions_of)
      .def_prop_ro("right_wants", [](const Conductor& self) { return self.wants().right; })
      .def_prop_ro("judged_wants", [](const Conductor& self) { return self.wants().judged; })
      .def_prop_ro("forecasts_in_time", &Conductor::forecasts_in_time)
      .def_prop_ro("forecasts_late", &Conductor::forecasts_late)
      .def_prop_ro("cpu_experts", &Conductor::cpu_experts)
      .def_prop_ro("experts_read_ahead", &Conductor::experts_read_ahead)
      .def_prop_ro("bytes_moved", &Conductor::bytes_moved);
}
