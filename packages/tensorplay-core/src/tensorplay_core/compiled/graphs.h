/* Of graphs, by the addresses of the driver's functions.
 *
 * count(get_nodes, graph): how many nodes a graph has; -1 if the driver does not say.
 *
 * functions(get_nodes, get_type, get_parameters, graph): a tuple of what the nodes run: the handle of a
 * kernel's function, -1 less the kind of another node. It is None where a node holds a graph, whose
 * nodes would count too, and where the driver does not say.
 *
 * refresh(get_current, exchange, update, context, executable, graph): the code of an update, asked for
 * in relaxed mode; None, with nothing done, where another context than that is current.
 *
 * The first arguments are the addresses of `cuGraphGetNodes`, `cuGraphNodeGetType`,
 * `cuGraphKernelNodeGetParams`, `cuCtxGetCurrent`, `cuThreadExchangeStreamCaptureMode` and
 * `cuGraphExecUpdate`.
 */

#include <Python.h>

typedef int (*GetNodes)(void *graph, void **nodes, size_t *count);
typedef int (*GetType)(void *node, int *kind);
typedef int (*GetParameters)(void *node, void *parameters);
typedef int (*GetCurrent)(void **context);
typedef int (*Exchange)(int *mode);
typedef int (*Update)(void *executable, void *graph, void *told);

enum { KERNEL = 0, GRAPH = 4, CONDITIONAL = 13 }; /* of CUgraphNodeType */
enum { RELAXED = 2 };                             /* of CUstreamCaptureMode */

/* CUDA_KERNEL_NODE_PARAMS_v2. */
typedef struct {
    void *function;
    unsigned int shape[7];
    void **parameters, **extra;
    void *kernel, *context;
    void *room[8];
} Parameters;

/* `given` addresses, none of them 0 but the last, which may be a graph's. */
static int
addresses(PyObject *const *args, Py_ssize_t given, Py_ssize_t wanted, void **found)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments are taken, not %zd", wanted, given);
        return -1;
    }
    for (Py_ssize_t index = 0; index < given; ++index) {
        found[index] = PyLong_AsVoidPtr(args[index]);
        if (found[index] != NULL || index == given - 1)
            continue;
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the address of a function is 0");
        return -1;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *
count_nodes(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    void *found[2];
    size_t count = 0;
    if (addresses(args, given, 2, found) < 0)
        return NULL;
    if (((GetNodes)found[0])(found[1], NULL, &count) != 0)
        return PyLong_FromLong(-1);
    return PyLong_FromSize_t(count);
}

/* What one node runs, as in `functions`; NULL without an error where that is not known. */
static PyObject *
function_of(GetType get_type, GetParameters get_parameters, void *node)
{
    Parameters read = {0};
    int kind = GRAPH;
    /* Most nodes are kernels: of others the driver refuses to tell their parameters. */
    if (get_parameters(node, &read) == 0) {
        if (read.function == NULL && read.kernel == NULL)
            return NULL;
        return PyLong_FromVoidPtr(read.function != NULL ? read.function : read.kernel);
    }
    if (get_type(node, &kind) != 0 || kind == KERNEL || kind == GRAPH || kind == CONDITIONAL)
        return NULL;
    return PyLong_FromLong(-1 - kind);
}

/* The nodes of a graph: in `some` if there are fewer than `room` of them, else in memory of their
 * own, which is the caller's. NULL, with an error or without, where they cannot be had. */
static void **
nodes_of(GetNodes get_nodes, void *graph, void **some, size_t room, size_t *count)
{
    void **nodes;
    *count = room;
    if (get_nodes(graph, some, count) != 0)
        return NULL;
    if (*count < room)
        return some;
    if (get_nodes(graph, NULL, count) != 0)
        return NULL;
    room = *count;
    nodes = PyMem_Calloc(room, sizeof *nodes);
    if (nodes == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (get_nodes(graph, nodes, count) != 0 || *count != room) {
        PyMem_Free(nodes);
        return NULL;
    }
    return nodes;
}

static PyObject *
functions_of(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    void *found[4], *some[64] = {0}, **nodes;
    size_t count = 0;
    PyObject *made = NULL;
    if (addresses(args, given, 4, found) < 0)
        return NULL;
    nodes = nodes_of((GetNodes)found[0], found[3], some, sizeof some / sizeof *some, &count);
    if (nodes != NULL)
        made = PyTuple_New((Py_ssize_t)count);
    for (size_t index = 0; made != NULL && index < count; ++index) {
        PyObject *one =
            function_of((GetType)found[1], (GetParameters)found[2], nodes[index]);
        if (one == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, (Py_ssize_t)index, one);
    }
    if (nodes != some)
        PyMem_Free(nodes);
    if (made == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return made;
}

static PyObject *
refresh(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    void *found[6], *current = NULL, *told[8] = {0};
    int mode = RELAXED, code;
    if (addresses(args, given, 6, found) < 0)
        return NULL;
    if (((GetCurrent)found[0])(&current) != 0 || current != found[3])
        Py_RETURN_NONE;
    if (((Exchange)found[1])(&mode) != 0)
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    code = ((Update)found[2])(found[4], found[5], told);
    Py_END_ALLOW_THREADS
    ((Exchange)found[1])(&mode);
    return PyLong_FromLong(code);
}
