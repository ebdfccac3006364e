// What the files of the Python extension module share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "api/codes.h"

namespace nb = nanobind;
using namespace moesaic;

void define_linear(nb::module_& m);  // linear_module.cpp
void define_step(nb::module_& m);    // step_module.cpp

template <class T>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

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
        [member](Struct& s, int type) { s.*member = checked_type(type); });
    return *this;
  }
  nb::class_<Struct>& type() { return type_; }

 private:
  nb::class_<Struct> type_;
};
