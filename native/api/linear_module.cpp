// Python's view of packed matrices and of what prompts compute between them; see
// moesaic/kernels/native_linear.py, which checks tensors and shapes.
#include "api/module_parts.h"
#include "linear/linear.h"
#include "rows/rows.h"

namespace {

void define_matrices(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def(nb::init<>())
      .def("__init__",
           [](PackedMatrix* matrix, int dtype, int outputs, int inputs, std::uintptr_t data) {
             if (outputs < 1 || inputs < 1) throw InvalidCall("a matrix has outputs and inputs");
             new (matrix) PackedMatrix(checked_dtype(dtype), outputs, inputs, at<const std::uint8_t>(data));
           })
      .def_prop_ro("bytes", &PackedMatrix::bytes);
  m.def("matrix_bytes", [](int dtype, int outputs, int inputs) {
    return PackedMatrix(checked_dtype(dtype), outputs, inputs, nullptr).bytes();
  });
  m.def("unpack_rows", [](const PackedMatrix& matrix, int first, int count, std::uintptr_t to) {
    if (!matrix.data || first < 0 || count < 0 || first + count > matrix.layout.outputs)
      throw InvalidCall("a matrix has no such rows");
    unpack_rows(matrix.dtype, matrix.layout, matrix.data, first, count, at<float>(to));
  });
}

void define_products(nb::module_& m) {
  Fields<LinearProduct>(m, "LinearProduct")
      .value("matrix", &LinearProduct::matrix)
      .address("bias", &LinearProduct::bias)
      .address("out", &LinearProduct::out);
  Fields<LinearCall>(m, "LinearCall")
      .address("x", &LinearCall::x)
      .type("type", &LinearCall::type)
      .value("stride", &LinearCall::stride)
      .value("tokens", &LinearCall::tokens);
  nb::class_<LinearRunner>(m, "LinearRunner")
      .def("__init__",
           [](LinearRunner* runner, std::shared_ptr<Pool> pool, int isa, const std::vector<int>& tiles_from) {
             if (tiles_from.size() != 3) throw InvalidCall("there are three precisions");
             new (runner)
                 LinearRunner(std::move(pool), checked_isa(isa), tiles_from[0], tiles_from[1], tiles_from[2]);
           })
      .def("pack",
           [](LinearRunner& runner, std::uintptr_t data, int type, std::size_t stride,
              const PackedMatrix& to) {
             const nb::gil_scoped_release released;
             runner.pack({at<const void>(data), checked_type(type), stride}, to);
           })
      .def("run",
           [](LinearRunner& runner, const LinearCall& call, const std::vector<LinearProduct>& products) {
             const nb::gil_scoped_release released;
             runner.run(call, products);
           });
}

void define_row_calls(nb::module_& m) {
  Fields<NormCall>(m, "NormCall")
      .address("x", &NormCall::x)
      .address("added", &NormCall::added)
      .address("weight", &NormCall::weight)
      .type("type", &NormCall::type)
      .value("stride", &NormCall::stride)
      .value("rows", &NormCall::rows)
      .value("width", &NormCall::width)
      .value("eps", &NormCall::eps)
      .address("sum", &NormCall::sum)
      .address("out", &NormCall::out);
  Fields<Heads>(m, "Heads")
      .address("x", &Heads::x)
      .value("heads", &Heads::heads)
      .value("width", &Heads::width)
      .address("norm", &Heads::norm)
      .value("whole", &Heads::whole)
      .address("sums", &Heads::sums);
  Fields<HeadsCall>(m, "HeadsCall")
      .value("queries", &HeadsCall::queries)
      .value("keys", &HeadsCall::keys)
      .value("tokens", &HeadsCall::tokens)
      .value("eps", &HeadsCall::eps)
      .address("cos", &HeadsCall::cos)
      .address("sin", &HeadsCall::sin)
      .value("rope_dim", &HeadsCall::rope_dim)
      .value("interleaved", &HeadsCall::interleaved);
  Fields<ManyTokens>(m, "ManyTokens")
      .address("counts", &ManyTokens::counts)
      .address("added", &ManyTokens::added)
      .address("sum", &ManyTokens::sum);
}

void define_attention(nb::module_& m) {
  Fields<CachedHeads>(m, "CachedHeads")
      .address("data", &CachedHeads::data)
      .value("stride", &CachedHeads::stride)
      .value("head_stride", &CachedHeads::head_stride)
      .address("codes", &CachedHeads::codes)
      .address("scales", &CachedHeads::scales);
  Fields<AttendedSequence>(m, "AttendedSequence")
      .address("queries", &AttendedSequence::queries)
      .value("keys", &AttendedSequence::keys)
      .value("values", &AttendedSequence::values)
      .address("new_keys", &AttendedSequence::new_keys)
      .address("new_values", &AttendedSequence::new_values)
      .value("tokens", &AttendedSequence::tokens)
      .value("positions", &AttendedSequence::positions)
      .value("first", &AttendedSequence::first)
      .address("blocks", &AttendedSequence::blocks)
      .address("out", &AttendedSequence::out);
  Fields<AttendedBatch>(m, "AttendedBatch")
      .address("queries", &AttendedBatch::queries)
      .address("new_keys", &AttendedBatch::new_keys)
      .address("new_values", &AttendedBatch::new_values)
      .value("keys", &AttendedBatch::keys)
      .value("values", &AttendedBatch::values)
      .address("out", &AttendedBatch::out)
      .address("sequences", &AttendedBatch::sequences)
      .value("count", &AttendedBatch::count);
  Fields<AttentionShape>(m, "AttentionShape")
      .value("heads", &AttentionShape::heads)
      .value("kv_heads", &AttentionShape::kv_heads)
      .value("width", &AttentionShape::width)
      .value("value_width", &AttentionShape::value_width)
      .value("scale", &AttentionShape::scale)
      .value("window", &AttentionShape::window)
      .address("sinks", &AttentionShape::sinks);
}

void define_rows(nb::module_& m) {
  define_row_calls(m);
  define_attention(m);
  nb::class_<RowRunner>(m, "RowRunner")
      .def("__init__",
           [](RowRunner* runner, std::shared_ptr<Pool> pool, int isa) {
             if (!pool) throw InvalidCall("a runner needs a pool");
             new (runner) RowRunner(std::move(pool), checked_isa(isa));
           })
      .def("norm", &RowRunner::norm, nb::call_guard<nb::gil_scoped_release>())
      .def("heads", &RowRunner::heads, nb::call_guard<nb::gil_scoped_release>())
      .def("route", &RowRunner::route, nb::call_guard<nb::gil_scoped_release>())
      .def("attend", &RowRunner::attend, nb::call_guard<nb::gil_scoped_release>())
      .def("attend_batch", &RowRunner::attend_batch, nb::call_guard<nb::gil_scoped_release>())
      .def("attention_bytes", &RowRunner::attention_bytes, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void define_linear(nb::module_& m) {
  define_matrices(m);
  define_products(m);
  define_rows(m);
}
