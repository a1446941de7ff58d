// Several checks as one.
#pragma once

#include "forms.h"
#include "modes.h"
#include "same.h"

namespace tensorplay {

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
