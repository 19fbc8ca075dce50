"""Pieces of a call by lists, arrays and layouts."""

import array
import unittest

import handfast
import numpy

MIB = 1 << 20
REQUESTS_MAX = 8 << 20


class WholeArray(numpy.ndarray):
    """An array that is taken as a whole."""

    def __iter__(self):
        raise AssertionError("read one by one")


class WholeBuffer(array.array):
    """An object of the buffer protocol that is taken as a whole."""

    def __iter__(self):
        raise AssertionError("read one by one")


class Pieces(unittest.TestCase):
    def setUp(self):
        self.owner, self.user = handfast.Engine(transport="tcp"), handfast.Engine(transport="tcp")
        self.cache = numpy.zeros(4 * MIB, dtype=numpy.uint8)
        self.block = (numpy.arange(4 * MIB) * 7 % 251).astype(numpy.uint8)
        self.to = self.owner.register(self.cache).address
        self.of = self.user.register(self.block).address
        self.peer = self.user.peer(self.owner.address)

    def tearDown(self):
        self.user.close()
        self.owner.close()

    def check(self, from_offsets, to_offsets, nbytes):
        """Check that the pieces are there, and clear them."""
        for source, target in zip(numpy.ravel(from_offsets), numpy.ravel(to_offsets)):
            piece = self.block[source : source + nbytes]
            self.assertTrue((self.cache[target : target + nbytes] == piece).all(), target)
            self.cache[target : target + nbytes] = 0
        self.assertFalse(self.cache.any())

    def test_arrays_are_taken_without_a_loop(self):
        offsets = numpy.arange(500, dtype=numpy.uint64) * 4096
        here, there = offsets + self.of, offsets + self.to
        lengths = numpy.full(500, 100, dtype=numpy.uint64)
        kinds = [
            lambda numbers: numbers.view(WholeArray),
            lambda numbers: numbers.astype(numpy.int64).view(WholeArray),
            lambda numbers: numpy.repeat(numbers, 3).view(WholeArray)[::3],
            lambda numbers: WholeBuffer("Q", numbers.tolist()),
            lambda numbers: WholeBuffer("q", numbers.tolist()),
            lambda numbers: memoryview(WholeBuffer("Q", numpy.repeat(numbers, 2).tolist()))[::2],
        ]
        for number, kind in enumerate(kinds):
            with self.subTest(kind=number):
                self.peer.write_many(kind(here), kind(there), kind(lengths))
                self.check(offsets.astype(int), offsets.astype(int), 100)

    def test_negative_elements_of_arrays_are_named(self):
        for wrong in (numpy.array([self.to, -5]), array.array("q", [self.to, -5])):
            with self.assertRaisesRegex(TypeError, r"peer_buffer_addresses\[1\] is negative"):
                self.peer.write_many([self.of, self.of], wrong, 4)
        wrong = array.array("q", [4, 4, -1])
        with self.assertRaisesRegex(TypeError, r"lengths\[2\] is negative"):
            self.peer.write_many([self.of] * 3, [self.to] * 3, wrong)

    def test_lists_that_change_while_they_are_read_are_refused(self):
        class Clearing:
            def __init__(self, numbers):
                self.numbers = numbers

            def __index__(self):
                self.numbers.clear()
                return 0

        numbers = []
        numbers += [Clearing(numbers), self.of]
        with self.assertRaisesRegex(ValueError, "buffers became shorter"):
            self.peer.write_many(numbers, [self.to] * 2, 4)

    def test_lists_and_tuples_have_every_kind_of_integer(self):
        class Own(int):
            pass

        class Index:
            def __init__(self, number):
                self.number = number

            def __index__(self):
                return self.number

        kinds = [int, Own, Index, numpy.uint64, numpy.int64]
        offsets = [place * 64 for place in range(len(kinds))]
        for sequence in (list, tuple):
            here = sequence(kind(self.of + offset) for kind, offset in zip(kinds, offsets))
            there = sequence(kind(self.to + offset) for kind, offset in zip(kinds, offsets))
            self.peer.write_many(here, there, sequence([True, 1, 1, 1, 1]))
            self.check(offsets, offsets, 1)
        for wrong in (2**64, -1, 1.0, None, "1"):
            with self.assertRaisesRegex(TypeError, r"lengths\[1\] is not an integer"):
                self.peer.write_many([self.of] * 2, [self.to] * 2, [1, wrong])
        with self.assertRaises(handfast.NotServed):
            self.peer.write_many([self.of], [2**64 - 1], [1])

    def test_layouts_are_those_of_numpy(self):
        """A tensor of layers, blocks and heads, of which every second head is sent in other orders."""
        shape, strides = (5, 7, 3), (MIB // 2, 65536, 8192)
        index = numpy.indices(shape)
        here = sum(place * stride for place, stride in zip(index, strides))
        for name, to_strides in {
            "same": strides,
            "blocks outside": (8192, MIB // 2, 65536),
            "from the end": (-MIB // 2, 65536, 8192),
        }.items():
            with self.subTest(name):
                there = sum(place * stride for place, stride in zip(index, to_strides))
                first = -int(there.min())
                local = handfast.Strided(self.of, shape, strides)
                remote = handfast.Strided(self.to + first, shape, to_strides)
                self.assertEqual(len(remote), 105)
                transfer = self.peer.start_write(local, remote, 200)
                self.assertEqual(transfer.wait(), 105 * 200)
                self.assertEqual(transfer.landed(), [200] * 105)
                self.check(here, there + first, 200)

    def test_layouts_arrays_and_lists_are_mixed(self):
        offsets = numpy.arange(32) * 4096
        blocks = numpy.random.default_rng(7).permutation(32) * 16384
        regular = handfast.Strided(self.of, 32, 4096)
        self.peer.write_many(regular, blocks + self.to, [64] * 32)
        self.check(offsets, blocks, 64)
        # One source for all targets.
        same = handfast.Strided(self.of + 9, (4, 8), (0, 0))
        self.peer.write_many(same, (blocks + self.to).tolist(), 64)
        self.check([9] * 32, blocks, 64)
        back = numpy.arange(32) * 64
        self.cache[: 32 * 64] = numpy.arange(32 * 64) % 256
        self.peer.read_many(back + self.of, handfast.Strided(self.to, 32, 64), 64)
        self.assertTrue((self.block[: 32 * 64] == numpy.arange(32 * 64) % 256).all())

    def test_layout_tells_what_it_is(self):
        layout = handfast.Strided(4096, (2, 3), (100, 10))
        self.assertEqual((layout.address, layout.shape, layout.strides), (4096, [2, 3], [100, 10]))
        self.assertEqual(repr(layout), "Strided(0x1000, shape=[2, 3], strides=[100, 10])")
        self.assertEqual(len(handfast.Strided(4096, (2, 0), (100, 10))), 0)
        self.assertEqual(len(handfast.Strided(4096, [], [])), 1)

    def test_layouts_out_of_range_are_refused(self):
        cases = [
            ((4096, (2, 3), 10), "2 dimensions have 1 strides"),
            ((4096, 2, -4097), "not an address"),
            ((2**64 - 10, (2, 2), (5, 5)), "not an address"),
            ((0, (1,) * 17, (1,) * 17), "at most 16 dimensions"),
            ((0, REQUESTS_MAX + 1, 1), f"more than {REQUESTS_MAX}"),
            ((0, (2**40, 2**40), (0, 0)), f"more than {REQUESTS_MAX}"),
        ]
        for arguments, text in cases:
            with self.assertRaisesRegex(ValueError, text):
                handfast.Strided(*arguments)
        self.assertEqual(len(handfast.Strided(0, REQUESTS_MAX, 1)), REQUESTS_MAX)
        handfast.Strided(4096, 2, -4096)
        handfast.Strided(2**64 - 10, (2, 2), (5, 4))
        for wrong in ((-1, 1, 1), (0, -1, 1), (0, "a", 1), (0, 1, 2**63)):
            with self.assertRaises((TypeError, OverflowError)):
                handfast.Strided(*wrong)
        with self.assertRaisesRegex(TypeError, "strides is neither an integer nor a sequence"):
            handfast.Strided(0, (1, 2), (1.5, 1))
        with self.assertRaisesRegex(ValueError, "different lengths: 3 buffers, 4 addresses"):
            locals, remotes = handfast.Strided(self.of, 3, 8), handfast.Strided(self.to, 4, 8)
            self.peer.write_many(locals, remotes, 8)

    def test_hundred_thousand_pieces_are_one_call(self):
        count = 100_000
        offsets = numpy.arange(count, dtype=numpy.uint64) * 32
        self.peer.write_many(self.of + offsets, self.to + offsets, 16)
        sent, come = (it[: count * 32].reshape(count, 32) for it in (self.block, self.cache))
        self.assertTrue((come[:, :16] == sent[:, :16]).all())
        self.assertFalse(come[:, 16:].any())
        layout = handfast.Strided(self.of, count, 32), handfast.Strided(self.to, count, 32)
        transfer = self.peer.start_write(*layout, 32)
        self.assertEqual(transfer.wait(), count * 32)
        self.assertTrue((come == sent).all())
        self.assertEqual(transfer.landed(), [32] * count)


if __name__ == "__main__":
    unittest.main()
