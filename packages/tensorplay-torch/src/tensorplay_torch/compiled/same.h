// Whether lists and dicts hold the very objects that they held.
#pragma once

#include "objects.h"

namespace tensorplay {

// Same(whole, parts, sized, classed): `whole` are lists and dicts of which every entry counts, `parts` are
// tuples of a dict and of the keys that count, `sized` are dicts of which the number of entries
// does, `classed` are objects whose class does. True as long as every entry is the very object it
// was.
struct Same {
  std::vector<Ref> lists, dicts, parts, sized, classed, classes;
  std::vector<Ref> held;  // Of all of them, in order; null for a key that was not there.
  std::vector<size_t> counts;
  std::vector<Ref> keys;  // Of `dicts` and `parts`, in order.
  bool told = true;  // An OrderedDict's order is not that of the dict beneath it.

  explicit Same(PyObject* given) {
    Sequence args(given);
    if (args.size() != 4) refuse(PyExc_TypeError, "Same takes four arguments");
    Sequence whole = sequence(args[0]), some = sequence(args[1]), more = sequence(args[2]);
    for (size_t place = 0; place < whole.size(); place++) {
      bool dict = PyDict_Check(whole[place]);
      if (PyODict_Check(whole[place])) told = false;
      if (!dict && !PyList_Check(whole[place])) refuse(PyExc_TypeError, "expected dicts and lists");
      (dict ? dicts : lists).push_back(Ref::to(whole[place]));
    }
    for (const Ref& one : lists) {
      Sequence items(one.get());
      counts.push_back(items.size());
      for (size_t n = 0; n < items.size(); n++) held.push_back(Ref::to(items[n]));
    }
    for (const Ref& one : dicts) {
      counts.push_back(static_cast<size_t>(PyDict_Size(one.get())));
      Py_ssize_t at = 0;
      PyObject *key = nullptr, *value = nullptr;
      while (PyDict_Next(one.get(), &at, &key, &value)) {
        keys.push_back(Ref::to(key));
        held.push_back(Ref::to(value));
      }
    }
    for (size_t place = 0; place < some.size(); place++) {
      Sequence pair = sequence(some[place]);
      if (pair.size() != 2 || !PyDict_Check(pair[0])) refuse(PyExc_TypeError, "expected a dict");
      Sequence names = sequence(pair[1]);
      parts.push_back(Ref::to(pair[0]));
      counts.push_back(names.size());
      for (size_t n = 0; n < names.size(); n++) {
        keys.push_back(Ref::to(names[n]));
        held.push_back(Ref::to(found(pair[0], names[n])));
      }
    }
    for (size_t place = 0; place < more.size(); place++) {
      if (!PyDict_Check(more[place])) refuse(PyExc_TypeError, "expected a dict");
      sized.push_back(Ref::to(more[place]));
      counts.push_back(static_cast<size_t>(PyDict_Size(more[place])));
    }
    Sequence objects = sequence(args[3]);
    for (size_t place = 0; place < objects.size(); place++) {
      classed.push_back(Ref::to(objects[place]));
      classes.push_back(Ref::to(reinterpret_cast<PyObject*>(Py_TYPE(objects[place]))));
    }
  }

  static PyObject* found(PyObject* dict, PyObject* key) {
    PyObject* value = PyDict_GetItemWithError(dict, key);
    if (value == nullptr && PyErr_Occurred()) raise();
    return value;
  }

  bool holds() const {
    if (!told) return false;
    auto expected = held.begin();
    auto key_held = keys.begin();
    auto count = counts.begin();
    for (const Ref& one : lists) {
      Sequence items(one.get());
      if (items.size() != *count++) return false;
      for (size_t n = 0; n < items.size(); n++) {
        if (items[n] != (expected++)->get()) return false;
      }
    }
    for (const Ref& one : dicts) {
      if (static_cast<size_t>(PyDict_Size(one.get())) != *count++) return false;
      Py_ssize_t at = 0;
      PyObject *key = nullptr, *value = nullptr;
      while (PyDict_Next(one.get(), &at, &key, &value)) {
        if (key != (key_held++)->get() || value != (expected++)->get()) return false;
      }
    }
    for (const Ref& one : parts) {
      for (size_t left = *count++; left > 0; left--) {
        if (found(one.get(), (key_held++)->get()) != (expected++)->get()) return false;
      }
    }
    for (const Ref& one : sized) {
      if (static_cast<size_t>(PyDict_Size(one.get())) != *count++) return false;
    }
    for (size_t place = 0; place < classed.size(); place++) {
      if (reinterpret_cast<PyObject*>(Py_TYPE(classed[place].get())) != classes[place].get()) {
        return false;
      }
    }
    return true;
  }

  PyObject* call(PyObject*, PyObject*) const { return PyBool_FromLong(holds()); }

  template <class Show>
  int visit(Show& show) const {
    for (const auto* refs : {&lists, &dicts, &parts, &sized, &classed, &classes, &held, &keys}) {
      if (int stop = visit_all(*refs, show)) return stop;
    }
    return 0;
  }
};

}  // namespace tensorplay
