// Several checks as one.
#pragma once

#include "forms.h"
#include "same.h"

#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>


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

// All(checks, otherwise): True if all checks say yes, else what `otherwise()` says.
struct All {
  std::vector<Ref> checks;
  Ref otherwise;

  explicit All(PyObject* given) {
    Sequence args(given);
    if (args.size() != 2) refuse(PyExc_TypeError, "All takes two arguments");
    Sequence some = sequence(args[0]);
    for (size_t place = 0; place < some.size(); place++) checks.push_back(Ref::to(some[place]));
    otherwise = Ref::to(args[1]);
  }

  PyObject* call(Given given) const {
    given.expect(0);
    if (Py_EnterRecursiveCall(" in a check of checks")) raise();
    Recursion entered;
    for (const Ref& one : checks) {
      if (!says_yes(one.get())) return PyObject_CallNoArgs(otherwise.get());
    }
    Py_RETURN_TRUE;
  }

  // No frame of Python's, and no objects, for checks that are in this library.
  static bool says_yes(PyObject* check) {
    if (Same* same = Object<Same>::in(check)) return same->holds();
    if (Unmoved* unmoved = Object<Unmoved>::in(check)) return unmoved->holds();
    if (Modes* modes = Object<Modes>::in(check)) return modes->holds();
    Ref said = owned(PyObject_CallNoArgs(check));
    int truth = PyObject_IsTrue(said.get());
    if (truth < 0) raise();
    return truth != 0;
  }

  template <class Show>
  int visit(Show& show) const {
    if (int stop = show(otherwise)) return stop;
    return visit_all(checks, show);
  }
};

}  // namespace tensorplay
