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

// Same(whole, parts, sized, classed, named), of which the last may be left out: `whole` are lists and
// dicts of which every entry counts, `parts` are tuples of a dict, of which the keys count, and of the
// keys whose values do, `sized` are dicts of which the number of entries does, `classed` are objects
// whose class does, and which dict has their attributes, `named` are tuples of an object and the name
// of an attribute that counts. True as long as every entry is the very object it was.
struct Same {
  // Entries of a dict, keys and values in turn; a value is null where it does not count.
  struct Dict {
    PyObject* dict;
    Version version;
    size_t begin, end;  // In `held`; nothing where only the size counts.
    Py_ssize_t size;
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
    PyObject* attributes;  // Null where it has no dict of them.
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
      Sequence pair = pair_of(parts[place]);
      sequence(pair[1]);
      Ref counting = owned(PySet_New(pair[1]));
      add_dict(dict(pair[0]), counting.get());
    }
    for (size_t place = 0; place < sized.size(); place++) {
      PyObject* one = keep(dict(sized[place]));
      dicts.push_back({one, Version(one), held.size(), held.size(), PyDict_Size(one)});
    }
    for (size_t place = 0; place < classed.size(); place++) {
      PyObject* one = keep(classed[place]);
      PyObject* type = keep(reinterpret_cast<PyObject*>(Py_TYPE(one)));
      Ref attributes = attributes_of(one);
      classes.push_back({one, reinterpret_cast<PyTypeObject*>(type), keep(attributes.get())});
    }
    for (size_t place = 0; place < named.size(); place++) {
      Sequence pair = pair_of(named[place]);
      Ref value = owned(PyObject_GetAttr(pair[0], pair[1]));
      attributes.push_back({keep(pair[0]), keep(pair[1]), keep(value.get())});
    }
  }

  // `counting` is a set of the keys whose values count; all do if it is null.
  void add_dict(PyObject* dict, PyObject* counting = nullptr) {
    size_t begin = held.size();
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(dict, &at, &key, &value)) {
      int counts = counting == nullptr ? 1 : PySet_Contains(counting, key);
      if (counts < 0) raise();
      held.push_back(keep(key));
      held.push_back(counts ? keep(value) : nullptr);
    }
    dicts.push_back({keep(dict), Version(dict), begin, held.size(), PyDict_Size(dict)});
  }

  // The dict of an object's attributes; null, without an error, if it has none.
  static Ref attributes_of(PyObject* object) {
    if (Py_TYPE(object)->tp_dictoffset == 0 && !has_managed_dict(object)) return Ref();
    Ref found(PyObject_GenericGetDict(object, nullptr));
    if (!found) PyErr_Clear();
    return found;
  }

  static bool has_managed_dict(PyObject* object) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT);
#else
    return false;
#endif
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
      if (one.attributes != nullptr && attributes_of(one.object).get() != one.attributes) return false;
    }
    for (const Attribute& one : attributes) {
      Ref value(PyObject_GetAttr(one.object, one.name));
      if (!value) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) raise();
        PyErr_Clear();
      }
      if (value.get() != one.value) return false;
    }
    return true;
  }

  bool holds(const Dict& one) const {
    if (PyDict_Size(one.dict) != one.size) return false;
    if (one.begin == one.end) return true;
    const PyObject* const* expected = held.data() + one.begin;
    Py_ssize_t at = 0;
    PyObject *key = nullptr, *value = nullptr;
    for (; PyDict_Next(one.dict, &at, &key, &value); expected += 2) {
      if (key != expected[0] || (expected[1] != nullptr && value != expected[1])) return false;
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
