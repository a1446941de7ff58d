// Whether lists and dicts hold the very objects that they held.
#pragma once

#include "objects.h"

namespace tensorplay {

// Tells at one look that a dict was not changed, where the interpreter counts its changes.
struct Version {
#if PY_VERSION_HEX < 0x030D0000
  uint64_t seen;
  explicit Version(PyObject* dict) : seen(of(dict)) {}
  static uint64_t of(PyObject* dict) {
    return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
  }
  bool stands(PyObject* dict) const { return of(dict) == seen; }
#else
  explicit Version(PyObject*) {}
  bool stands(PyObject*) const { return false; }
#endif
};

// Same(whole, parts, sized, classed, named), of which the last may be left out: `whole` are lists and dicts of which every entry
// counts, `parts` are tuples of a dict and of the keys that count, with how many it has, `sized` are
// dicts of which only that does, `classed` are objects whose class does, `named` are tuples of an object
// and the name of an attribute that counts. True as long as every entry is the very object it was.
struct Same {
  // Entries of a dict that count, keys and values in turn; a value is null if it was not there.
  struct Dict {
    PyObject* dict;
    Version version;
    size_t begin, end;  // In `held`.
    Py_ssize_t size;    // How many entries it has to have.
    bool all;           // They are all of its entries, in order.
  };
  struct List {
    PyObject* list;
    size_t begin, end;
  };
  struct Attribute {
    PyObject *object, *name, *value;
  };
  struct Class {
    PyObject* object;
    PyTypeObject* type;
  };
  std::vector<List> lists;
  std::vector<Dict> dicts;
  std::vector<Attribute> attributes;
  std::vector<Class> classes;
  std::vector<PyObject*> held;
  std::vector<Ref> kept;  // All that the others point to.
  bool told = true;       // An OrderedDict's order is not that of the dict beneath it.

  explicit Same(PyObject* given) {
    Sequence args(given);
    if (args.size() > 5) refuse(PyExc_TypeError, "Same takes at most five arguments");
    auto nth = [&](size_t n) { return n < args.size() ? sequence(args[n]) : Sequence(); };
    Sequence whole = nth(0), parts = nth(1), sized = nth(2), classed = nth(3), named = nth(4);
    for (size_t place = 0; place < whole.size(); place++) {
      PyObject* one = whole[place];
      if (PyODict_Check(one)) told = false;
      if (PyDict_Check(one)) {
        add_dict(one);
      } else if (PyList_Check(one)) {
        Sequence items(one);
        size_t begin = held.size();
        for (size_t n = 0; n < items.size(); n++) held.push_back(keep(items[n]));
        lists.push_back({keep(one), begin, held.size()});
      } else {
        refuse(PyExc_TypeError, "expected dicts and lists");
      }
    }
    for (size_t place = 0; place < parts.size(); place++) {
      Sequence pair = pair_of(parts[place]), names = sequence(pair[1]);
      size_t begin = held.size();
      for (size_t n = 0; n < names.size(); n++) {
        held.push_back(keep(names[n]));
        held.push_back(keep(found(dict(pair[0]), names[n])));
      }
      Py_ssize_t size = PyDict_Size(pair[0]);
      dicts.push_back({keep(pair[0]), Version(pair[0]), begin, held.size(), size, false});
    }
    for (size_t place = 0; place < sized.size(); place++) {
      PyObject* one = keep(dict(sized[place]));
      dicts.push_back({one, Version(one), held.size(), held.size(), PyDict_Size(one), false});
    }
    for (size_t place = 0; place < classed.size(); place++) {
      PyObject* one = keep(classed[place]);
      PyObject* type = keep(reinterpret_cast<PyObject*>(Py_TYPE(one)));
      classes.push_back({one, reinterpret_cast<PyTypeObject*>(type)});
    }
    for (size_t place = 0; place < named.size(); place++) {
      Sequence pair = pair_of(named[place]);
      Ref value = owned(PyObject_GetAttr(pair[0], pair[1]));
      attributes.push_back({keep(pair[0]), keep(pair[1]), keep(value.get())});
    }
  }

  void add_dict(PyObject* dict) {
    size_t begin = held.size();
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(dict, &at, &key, &value)) {
      held.push_back(keep(key));
      held.push_back(keep(value));
    }
    dicts.push_back({keep(dict), Version(dict), begin, held.size(), PyDict_Size(dict), true});
  }

  PyObject* keep(PyObject* object) {
    if (object != nullptr) kept.push_back(Ref::to(object));
    return object;
  }

  static PyObject* dict(PyObject* object) {
    if (!PyDict_Check(object)) refuse(PyExc_TypeError, "expected a dict");
    return object;
  }

  static Sequence pair_of(PyObject* object) {
    Sequence pair = sequence(object);
    if (pair.size() != 2) refuse(PyExc_TypeError, "expected pairs");
    return pair;
  }

  static PyObject* found(PyObject* dict, PyObject* key) {
    PyObject* value = PyDict_GetItemWithError(dict, key);
    if (value == nullptr && PyErr_Occurred()) raise();
    return value;
  }

  bool holds() {
    if (!told) return false;
    for (const List& one : lists) {
      Sequence items(one.list);
      if (items.size() != one.end - one.begin) return false;
      for (size_t n = 0; n < items.size(); n++) {
        if (items[n] != held[one.begin + n]) return false;
      }
    }
    for (Dict& one : dicts) {
      if (one.version.stands(one.dict)) continue;
      Version now(one.dict);
      if (!holds(one)) return false;
      one.version = now;
    }
    for (const Class& one : classes) {
      if (Py_TYPE(one.object) != one.type) return false;
    }
    for (const Attribute& one : attributes) {
      Ref value(PyObject_GetAttr(one.object, one.name));
      if (!value) PyErr_Clear();
      if (value.get() != one.value) return false;
    }
    return true;
  }

  bool holds(const Dict& one) const {
    if (PyDict_Size(one.dict) != one.size) return false;
    const PyObject* const* expected = held.data() + one.begin;
    if (one.all) {
      Py_ssize_t at = 0;
      PyObject *key = nullptr, *value = nullptr;
      for (; PyDict_Next(one.dict, &at, &key, &value); expected += 2) {
        if (key != expected[0] || value != expected[1]) return false;
      }
      return true;
    }
    for (const PyObject* const* end = held.data() + one.end; expected != end; expected += 2) {
      if (found(one.dict, const_cast<PyObject*>(expected[0])) != expected[1]) return false;
    }
    return true;
  }

  PyObject* call(Given given) {
    given.expect(0);
    return PyBool_FromLong(holds());
  }

  template <class Show>
  int visit(Show& show) const {
    return visit_all(kept, show);
  }
};

}  // namespace tensorplay
