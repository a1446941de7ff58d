// What a call of a captured graph does in each launch, compiled. The same in Python is the
// specification: each part here either does just that or leaves it to Python.

#include "all.h"
#include "calls.h"
#include "forms.h"
#include "modes.h"
#include "rail.h"
#include "same.h"
#include "strangers.h"

using namespace tensorplay;

static PyMethodDef functions[] = {
    {"aliases", aliases, METH_O, nullptr},
    {"born", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(born)), METH_FASTCALL, nullptr},
    {"connect", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(connect)), METH_FASTCALL, nullptr},
    {"settled", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(settled)), METH_FASTCALL, nullptr},
    {"strangers", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(strangers)), METH_FASTCALL, nullptr},
    {"written", written, METH_O, nullptr},
    {"versions", versions, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "parts", nullptr, -1, functions};

PyMODINIT_FUNC PyInit_parts() {
  HANDLE_TH_ERRORS
  Ref module = owned(PyModule_Create(&definition));
  Object<Forms>::add(module.get(), "parts.Forms", "Tensors that others are compared with.");
  Object<Unmoved>::add(module.get(), "parts.Unmoved", "Tensors that must stay as they are.");
  Object<Same>::add(module.get(), "parts.Same", "Lists and dicts that must hold the same.");
  Object<Modes>::add(module.get(), "parts.Modes", "Modes of this thread that must be the same.");
  Object<Around>::add(module.get(), "parts.Around", "Modes of this thread, to put them back.");
  Object<All>::add(module.get(), "parts.All", "Checks that must all say yes.");
  Object<Rail>::add(module.get(), "parts.Rail", "A staged launch.");
  return module.release();
  END_HANDLE_TH_ERRORS
}
