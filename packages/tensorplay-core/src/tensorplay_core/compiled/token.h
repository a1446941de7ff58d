/* Token() is what a turn is taken with: `take()` raises IndexError while somebody has it, `give(None)`
 * brings it back, and is harmless where it is there. `flag` is the address of a byte, 1 while it is
 * there, for code that holds the GIL.
 */

#include <Python.h>

typedef struct {
    PyObject_HEAD
    char there;
} Token;

static PyTypeObject *token_type;

static PyObject *
token_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Token *self;
    if (PyTuple_GET_SIZE(args) != 0 || (kwargs != NULL && PyDict_GET_SIZE(kwargs) != 0)) {
        PyErr_SetString(PyExc_TypeError, "Token takes no arguments");
        return NULL;
    }
    self = (Token *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->there = 1;
    return (PyObject *)self;
}

static void
token_destroy(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *
token_take(PyObject *object, PyObject *unused)
{
    Token *self = (Token *)object;
    if (!self->there) {
        PyErr_SetString(PyExc_IndexError, "somebody has it");
        return NULL;
    }
    self->there = 0;
    Py_RETURN_NONE;
}

static PyObject *
token_give(PyObject *object, PyObject *unused)
{
    ((Token *)object)->there = 1;
    Py_RETURN_NONE;
}

static PyObject *
token_flag(PyObject *object, void *unused)
{
    return PyLong_FromVoidPtr(&((Token *)object)->there);
}

static PyMethodDef token_methods[] = {
    {"take", token_take, METH_NOARGS, "Takes it, or raises IndexError."},
    {"give", token_give, METH_O, "Brings it back."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef token_getters[] = {
    {"flag", token_flag, NULL, "The address of a byte: 1 while it is there.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot token_slots[] = {
    {Py_tp_new, token_new},
    {Py_tp_dealloc, token_destroy},
    {Py_tp_methods, token_methods},
    {Py_tp_getset, token_getters},
    {Py_tp_doc, "What a turn is taken with."},
    {0, NULL},
};

static PyType_Spec token_spec = {
    "launch.Token", sizeof(Token), 0, Py_TPFLAGS_DEFAULT, token_slots,
};
