"""Operands of captured work: found by the addresses that nodes mention, whatever died meanwhile."""

from __future__ import annotations

import gc
import weakref

from tensorplay_cupy.operands import Operands, witnesses


class Foreign:
    """An array of another library."""

    def __init__(self, address, shape=(4,), strides=None):
        self._told = {
            "data": (address, False),
            "shape": shape,
            "typestr": "<f8",
            "strides": strides,
        }

    @property
    def __cuda_array_interface__(self):
        return self._told


class Unreadable:
    """One that has no memory on a GPU to speak of, as a tensor that requires a gradient."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("use detach()")


class Tensor:
    """A torch tensor, as far as its storage goes."""

    def __init__(self, address, nbytes, is_cuda=True):
        self.is_cuda, self._address, self._nbytes = is_cuda, address, nbytes

    __cuda_array_interface__ = property(lambda self: {})

    def untyped_storage(self):
        return self

    def data_ptr(self):
        return self._address

    def nbytes(self):
        return self._nbytes


def memories(operands):
    return {id(one.memory) for one in operands}


def test_arrays_whose_memory_is_mentioned_are_found(fake):
    first, second, other = fake((4,)), fake((4,)), fake((4,))
    looking = Operands()
    found = looking.used([7, first.data.ptr, second.data.ptr + 8, 2**63], set())
    assert memories(found) == {id(first.data.mem), id(second.data.mem)}
    assert id(other.data.mem) not in memories(found)


def test_the_address_after_the_end_is_not_mentioned_memory(fake):
    one = fake((4,))
    assert not Operands().used([one.data.ptr + one.data.mem.size], set())
    assert not Operands().used([one.data.ptr - 1], set())


def test_a_view_is_found_by_the_memory_of_its_base(fake):
    base = fake((64,))
    view = base[16:32]
    start = int(base.data.ptr)
    looking = Operands()
    del base
    (found,) = looking.used([int(view.data.ptr)], set())
    assert found.start == start
    assert found.array is view.base


def test_an_array_that_dies_in_the_capture_is_still_found(fake):
    class Owner:
        """Of the memory."""

    owner = Owner()
    seen = weakref.ref(owner)
    array = fake((4,), owner=owner)
    address = int(array.data.ptr)
    looking = Operands()
    del array, owner
    found = looking.used([address], set())
    assert len(found) == 1
    assert seen() is not None
    kept = found[0].memory
    del found, looking
    gc.collect()
    assert seen() is not None
    del kept
    assert seen() is None


def test_what_is_not_mentioned_is_let_go(fake):
    class Owner:
        """Of the memory."""

    owner = Owner()
    seen = weakref.ref(owner)
    array = fake((4,), owner=owner)
    looking = Operands()
    del array, owner
    assert not looking.used([1], set())
    del looking
    assert seen() is None


def test_an_array_made_during_the_capture_is_found(fake):
    looking = Operands()
    gc.disable()
    try:
        late = fake((4,))
        assert memories(looking.used([late.data.ptr], set())) == {id(late.data.mem)}
    finally:
        gc.enable()


def test_what_was_born_in_the_capture_is_none_of_its_operands(fake):
    born = fake((4,))
    assert not Operands().used([born.data.ptr], {int(born.data.mem.ptr)})


def test_arrays_of_other_libraries_are_found():
    whole, strided = Foreign(0x5000, (2, 3)), Foreign(0x9000, (2, 3), (-64, 8))
    tensor, elsewhere, broken = Tensor(0x20000, 256), Tensor(0x40000, 256, False), Unreadable()
    looking = Operands()
    words = [0x5000 + 40, 0x9000 + 16, 0x20000 + 255, 0x40000]
    found = looking.used(words, set())
    assert {id(one.array) for one in found} == {id(whole), id(strided), id(tensor)}
    assert broken is not None
    assert elsewhere is not None


def test_a_witness_dies_with_the_last_array_on_its_memory(fake):
    base = fake((64,))
    twin = fake((64,), at=int(base.data.ptr))
    (witness,) = witnesses(Operands().used([base.data.ptr], set()))
    seen = weakref.ref(witness)
    assert "shape (64,)" in repr(witness)
    assert hex(int(base.data.ptr)) in repr(witness)
    del witness, base
    gc.collect()
    assert seen() is not None
    del twin
    gc.collect()
    assert seen() is None
