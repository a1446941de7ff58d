// Modes of this thread: compared with what they were, and put back.
#pragma once

#include "objects.h"

#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

namespace tensorplay {

// Modes(kind): whether this thread's autocast on that kind of device, and the default dtype, are
// what they were.
struct Modes {
  c10::DeviceType kind;
  bool enabled;
  at::ScalarType dtype;
  caffe2::TypeMeta usual;

  explicit Modes(PyObject* args) : kind(named(only(args))) {
    enabled = at::autocast::is_autocast_enabled(kind);
    dtype = at::autocast::get_autocast_dtype(kind);
    usual = c10::get_default_dtype();
  }

  static c10::DeviceType named(PyObject* name) {
    const char* found = PyUnicode_AsUTF8(name);
    if (found == nullptr) raise();
    return c10::Device(found).type();
  }

  bool holds() const {
    return c10::get_default_dtype() == usual &&
           at::autocast::is_autocast_enabled(kind) == enabled &&
           (!enabled || at::autocast::get_autocast_dtype(kind) == dtype);
  }

  PyObject* call(Given given) const {
    given.expect(0);
    return PyBool_FromLong(holds());
  }

  template <class Show>
  int visit(Show&) const {
    return 0;
  }
};

// Around(): grad mode and autocast of this thread. A call puts them back, grad mode not where inference
// mode is another by then. Autocast's copies of parameters are dropped here and there.
struct Around {
  struct Autocast {
    c10::DeviceType kind;
    bool enabled;
    at::ScalarType dtype;
  };
  bool grad, inference, cached;
  Autocast autocast[2] = {{c10::kCPU, false, at::kFloat}, {c10::kCUDA, false, at::kFloat}};

  explicit Around(PyObject* args) {
    if (PyTuple_GET_SIZE(args) != 0) refuse(PyExc_TypeError, "Around takes no arguments");
    grad = c10::GradMode::is_enabled();
    inference = c10::InferenceMode::is_enabled();
    for (Autocast& one : autocast) {
      one.enabled = at::autocast::is_autocast_enabled(one.kind);
      one.dtype = at::autocast::get_autocast_dtype(one.kind);
    }
    cached = at::autocast::is_autocast_cache_enabled();
    at::autocast::clear_cache();
  }

  PyObject* call(Given given) const {
    given.expect(0);
    if (c10::InferenceMode::is_enabled() == inference) c10::GradMode::set_enabled(grad);
    for (const Autocast& one : autocast) {
      at::autocast::set_autocast_enabled(one.kind, one.enabled);
      at::autocast::set_autocast_dtype(one.kind, one.dtype);
    }
    at::autocast::set_autocast_cache_enabled(cached);
    at::autocast::clear_cache();
    Py_RETURN_NONE;
  }

  template <class Show>
  int visit(Show&) const {
    return 0;
  }
};

}  // namespace tensorplay
