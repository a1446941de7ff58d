/* What core has in C: the launch of an executable in the common case, with no frame of Python's around
 * it, and short looks at graphs. The same in Python is the specification.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "graphs.h"
#include "launch.h"

static PyMethodDef functions[] = {
    {"count", (PyCFunction)(void (*)(void))count_nodes, METH_FASTCALL, "Counts a graph's nodes."},
    {"functions", (PyCFunction)(void (*)(void))functions_of, METH_FASTCALL, "What nodes run."},
    {"refresh", (PyCFunction)(void (*)(void))refresh, METH_FASTCALL, "Updates an executable."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "launch", NULL, -1, functions};

PyMODINIT_FUNC
PyInit_launch(void)
{
    PyObject *module = PyModule_Create(&definition), *type;
    if (module == NULL)
        return NULL;
    /* Who imports the library by another name gets the same tokens. */
    if (stream_name == NULL)
        stream_name = PyUnicode_InternFromString("stream");
    if (token_type == NULL)
        token_type = (PyTypeObject *)PyType_FromSpec(&token_spec);
    type = PyType_FromSpec(&launch_spec);
    if (stream_name == NULL || token_type == NULL || type == NULL ||
        PyModule_AddType(module, token_type) < 0 ||
        PyModule_AddType(module, (PyTypeObject *)type) < 0) {
        Py_XDECREF(type);
        Py_DECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    return module;
}
