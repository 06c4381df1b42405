package iavlsync_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/iavlsync/iavlsynctest"
)

// fetch requests a subtree as a joiner does: whole, in halves or in parts. It returns the subtree's
// leaves.
func fetch(t *testing.T, height, first int64, root *iavlsync.Image, answer func(q *iavlsync.Request) []byte, kinds map[iavlsync.AnswerKind]int) []iavlsync.Leaf {
	t.Helper()
	kind, b, err := iavlsync.SplitAnswer(answer(&iavlsync.Request{Height: height, Store: "bank", First: first, Leaves: root.Size}))
	require.NoError(t, err)
	kinds[kind]++
	switch kind {
	case iavlsync.AnswerHalves:
		left, right, err := iavlsync.VerifyHalves(root, height, b)
		require.NoError(t, err)
		leaves := fetch(t, height, first, left, answer, kinds)
		return append(leaves, fetch(t, height, first+left.Size, right, answer, kinds)...)
	case iavlsync.AnswerPart:
		var p iavlsync.Parts
		require.NoError(t, p.Add(root, b))
		for !p.Complete() {
			kind, b, err := iavlsync.SplitAnswer(answer(&iavlsync.Request{Height: height, Store: "bank", First: first, Leaves: 1, Offset: p.Offset()}))
			require.NoError(t, err)
			require.Equal(t, iavlsync.AnswerPart, kind)
			require.NoError(t, p.Add(root, b))
		}
		c, err := p.Verify(root)
		require.NoError(t, err)
		return c.Leaves
	}
	c, err := iavlsync.VerifyChunk(root, b)
	require.NoError(t, err)
	return c.Leaves
}

// A chunk that is too large is sent in halves, and a leaf that is too large in parts.
func TestLargeChunks(t *testing.T) {
	tree := &iavlsynctest.Tree{}
	for i := range 30 {
		size := 1 << 10
		switch i {
		case 3, 4, 5, 20:
			size = 6 << 20
		case 12:
			size = iavlsync.MaxAnswerBytes - 8 // its chunk has the maximum length
		case 13:
			size = iavlsync.MaxAnswerBytes - 6
		case 14:
			size = iavlsync.MaxLeafBytes - 1
		}
		tree.Set([]byte{byte(i)}, make([]byte, size))
	}
	tree.Save()
	h := newHonest(t, iavlsync.Format32, 1, iavlsynctest.State{"bank": tree.Root})
	r := &iavlsynctest.Reader{}
	answer := func(q *iavlsync.Request) []byte {
		b, err := iavlsync.Answer(q, r.Key(tree.Root), r)
		require.NoError(t, err)
		require.LessOrEqual(t, len(b), 1+iavlsync.MaxAnswerBytes)
		return b
	}
	kinds := map[iavlsync.AnswerKind]int{}
	root := &h.m.Stores[0].Entries[0].Root
	leaves := fetch(t, 1, 0, root, answer, kinds)
	i := 0
	tree.Root.Leaves(func(leaf *iavlsynctest.Node) {
		require.Equal(t, leaf.Key, leaves[i].Key)
		require.True(t, bytes.Equal(leaf.Value, leaves[i].Value))
		i++
	})
	require.Len(t, leaves, i)
	require.Equal(t, 2, kinds[iavlsync.AnswerPart])
	require.Positive(t, kinds[iavlsync.AnswerHalves])
	require.Positive(t, kinds[iavlsync.AnswerWhole])

	_, err := iavlsync.VerifyChunk(root, h.chunks[0])
	require.ErrorContains(t, err, "chunks of this length are sent in halves")
	_, err = iavlsync.Answer(&iavlsync.Request{Height: 1, Store: "bank", First: 14, Leaves: 1, Offset: 16 * iavlsync.PartBytes}, r.Key(tree.Root), r)
	require.ErrorIs(t, err, iavlsync.ErrNoSubtree)
	_, err = iavlsync.Answer(&iavlsync.Request{Height: 1, Store: "bank", First: 12, Leaves: 1, Offset: iavlsync.PartBytes}, r.Key(tree.Root), r)
	require.ErrorIs(t, err, iavlsync.ErrNoSubtree)

	tree.Set([]byte{14}, make([]byte, iavlsync.MaxLeafBytes))
	tree.Save()
	_, err = iavlsync.Answer(&iavlsync.Request{Height: 2, Store: "bank", First: 14, Leaves: 1}, r.Key(tree.Root), r)
	require.ErrorIs(t, err, iavlsync.ErrDamagedStore)
}

func TestParts(t *testing.T) {
	tree := &iavlsynctest.Tree{}
	value := make([]byte, 17<<20)
	tree.Set([]byte("key"), value)
	tree.Save()
	leaf := imageOf(tree.Root)
	r := &iavlsynctest.Reader{}
	part := func(offset int64) []byte {
		b, err := iavlsync.Answer(&iavlsync.Request{Height: 1, Store: "a", Leaves: 1, Offset: offset}, r.Key(tree.Root), r)
		require.NoError(t, err)
		return b[1:]
	}
	var p iavlsync.Parts
	first := part(0)
	_, n := binary.Uvarint(first)
	total := func(total uint64) []byte { return append(binary.AppendUvarint(nil, total), first[n:]...) }
	for name, bad := range map[string][]byte{
		"empty": {}, "short": first[:len(first)-1], "long": append(bytes.Clone(first), 0), "too small a total": total(iavlsync.MaxAnswerBytes),
		"too great a total": total(64_000_009), "another key": append(bytes.Clone(first[:n+2]), make([]byte, iavlsync.PartBytes-2)...),
	} {
		require.ErrorIs(t, p.Add(leaf, bad), iavlsync.ErrInvalidChunk, name)
		require.Zero(t, p.Offset())
	}
	require.NoError(t, p.Add(leaf, first))
	require.ErrorIs(t, p.Add(leaf, total(18<<20)), iavlsync.ErrInvalidChunk, "another total")
	_, err := p.Verify(leaf)
	require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
	for !p.Complete() {
		require.NoError(t, p.Add(leaf, part(p.Offset())))
	}
	require.ErrorIs(t, p.Add(leaf, first), iavlsync.ErrInvalidChunk)
	c, err := p.Verify(leaf)
	require.NoError(t, err)
	require.True(t, bytes.Equal(value, c.Leaves[0].Value))

	// A damaged part is detected when all parts are complete.
	for p.Add(leaf, first) == nil && !p.Complete() {
		first = part(p.Offset())
		first[len(first)/2] ^= 1
	}
	_, err = p.Verify(leaf)
	require.ErrorContains(t, err, "hash of the root does not match")
	require.Zero(t, p.Offset())
	require.ErrorIs(t, p.Add(imageOf(&iavlsynctest.Node{Left: tree.Root, Right: tree.Root}), part(0)), iavlsync.ErrInvalidChunk)
}

// allocated returns the bytes that fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Claimed lengths and counts must not reserve memory: a few bytes of input allocate a few
// kilobytes.
func TestClaimsAllocateNothing(t *testing.T) {
	const enough = 64 << 10
	claim := binary.AppendUvarint(nil, 1<<31-1)
	huge := binary.AppendUvarint(nil, math.MaxUint64)
	root := &iavlsync.Image{Height: 31, Size: 1<<31 - 1, Version: 5}
	for name, fn := range map[string]func(){
		"stores":  func() { _, _ = iavlsync.DecodeManifest(iavlsync.Format32, []byte{1, 1, 0x80, 0x20}) },
		"entries": func() { _, _ = iavlsync.DecodeManifest(iavlsync.Format32, append([]byte{1, 1, 1, 1, 'a'}, claim...)) },
		"name":    func() { _, _ = iavlsync.DecodeManifest(iavlsync.Format32, append([]byte{1, 1, 1}, claim...)) },
		"key": func() {
			_, _ = iavlsync.DecodeManifest(iavlsync.Format32, []byte{1, 1, 1, 1, 'a', 1, 0, 0, 0xff, 0xff, 7})
		},
		"leaves":      func() { _, _ = iavlsync.VerifyChunk(root, []byte{0, 1, 'a', 0, 1, 0, 0, 1, 'b', 0}) },
		"leaf's key":  func() { _, _ = iavlsync.VerifyChunk(root, append([]byte{0}, huge...)) },
		"value":       func() { _, _ = iavlsync.VerifyChunk(root, append([]byte{0, 1, 'a'}, claim...)) },
		"request":     func() { _, _ = iavlsync.DecodeRequest(append([]byte{1}, huge...)) },
		"halves' key": func() { _, _, _ = iavlsync.VerifyHalves(root, 5, []byte{0, 0, 0xff, 0xff, 7}) },
		"parts": func() {
			_ = new(iavlsync.Parts).Add(&iavlsync.Image{Size: 1, Version: 1, Key: []byte("a")}, binary.AppendUvarint(nil, 64_000_000))
		},
	} {
		require.Less(t, allocated(fn), uint64(enough), name)
	}
}

// TestInvalid checks the error of each kind of invalid encoding.
func TestInvalid(t *testing.T) {
	hash := make([]byte, 32)
	leaf := append([]byte{0, 0, 1, 'k'}, hash...) // of version H
	// after height, version, size
	inner := func(b ...byte) []byte { return append(b, append(hash, hash...)...) }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for want, b := range map[string][]byte{
		"the message ends before the end of this field":                 {1},
		"version at offset 1: 2, only 1 is supported":                   {2, 1, 0},
		"height 0: blocks are counted from 1":                           {1, 0, 0},
		"1 more bytes follow":                                           {1, 1, 0, 0},
		"the uvarint is not minimal":                                    {0x81, 0},
		"4097 is more than 4096":                                        {1, 1, 0x81, 0x20},
		"a store without a name":                                        {1, 1, 1, 0, 0},
		`store "a" after "b": names must ascend`:                        {1, 1, 2, 1, 'b', 0, 1, 'a', 0},
		`store "a" after "a": names must ascend`:                        {1, 1, 2, 1, 'a', 0, 1, 'a', 0},
		"1025 is more than 1024":                                        {1, 1, 1, 0x81, 8},
		"1 is more than 0":                                              {1, 1, 1, 1, 'a', 1, 0, 1},
		"key of 0 bytes":                                                join([]byte{1, 1, 1, 1, 'a', 1, 0, 0, 0}, hash),
		"node of height 6 with 20 leaves: impossible in an AVL tree":    join([]byte{1, 1, 1, 1, 'a', 1}, inner(6, 0, 20)),
		"node of height 1 with 3 leaves: impossible in an AVL tree":     join([]byte{1, 1, 1, 1, 'a', 1}, inner(1, 0, 3)),
		"node of height 45 with 1 leaves: at most 44":                   join([]byte{1, 1, 1, 1, 'a', 1}, inner(45, 0, 1)),
		"chunk of 33 leaves, more than 32":                              join([]byte{1, 1, 1, 1, 'a', 1}, inner(6, 0, 33)),
		"inner node of 2 leaves above two chunks: it is a chunk":        join([]byte{1, 1, 1, 1, 'a', 2}, leaf, []byte{1, 0}, leaf),
		"inner node of 32 leaves above two chunks: it is a chunk":       join([]byte{1, 1, 1, 1, 'a', 2}, inner(4, 0, 16), []byte{5, 0}, inner(4, 0, 16)),
		"inner node of height 2 with children of 0 and 0":               join([]byte{1, 1, 1, 1, 'a', 2}, leaf, []byte{2, 0}, leaf),
		"inner node of height 6 with children of 3 and 5":               join([]byte{1, 1, 1, 1, 'a', 2}, inner(3, 0, 8), []byte{6, 0}, inner(5, 0, 32)),
		"inner node of version 1 with a child of version 2":             join([]byte{1, 2, 1, 1, 'a', 2}, inner(5, 0, 32), []byte{6, 1}, inner(5, 0, 32)),
		"two inner nodes of height 6 without a higher one between them": join([]byte{1, 1, 1, 1, 'a', 3}, inner(5, 0, 32), []byte{6, 0}, inner(5, 0, 32), []byte{6, 0}, inner(5, 0, 32)),
		"an inner node of height 255":                                   join([]byte{1, 1, 1, 1, 'a', 2}, leaf, []byte{255, 0}, leaf),
		": app hash ":                                                   join([]byte{1, 1, 1, 1, 'a', 2}, inner(5, 0, 32), []byte{6, 0}, inner(5, 0, 32)),
	} {
		_, err := iavlsync.VerifyManifest(iavlsync.Format32, b, max(1, int64(append(b, 0, 0)[1])), iavlsync.Hash{})
		require.ErrorIs(t, err, iavlsync.ErrInvalidManifest)
		require.ErrorContains(t, err, want)
	}
	_, err := iavlsync.DecodeManifest(iavlsync.Format32, make([]byte, iavlsync.MaxManifestBytes+1))
	require.ErrorContains(t, err, "67108865 bytes, at most 67108864 are supported")
	_, err = iavlsync.VerifyManifest(3, []byte{1, 1, 0}, 1, iavlsync.Hash{})
	require.ErrorContains(t, err, "format 0x3 is not supported, only 0x5301, 0x5302 and 0x5303")
	_, err = iavlsync.VerifyManifest(iavlsync.Format32, []byte{1, 1, 0}, 2, iavlsync.Hash(sha256.Sum256(nil)))
	require.ErrorContains(t, err, "height 1, expected 2")

	root := &iavlsync.Image{Height: 1, Size: 2, Version: 5}
	for want, b := range map[string][]byte{
		"0 leaves, the root has 2":                                             {},
		"1 leaves, the root has 2":                                             {0, 1, 'a', 0},
		"key at offset 8: the message ends before the end of this field":       {0, 1, 'a', 0, 1, 0, 0, 1},
		"5 bytes after the last of 2 leaves":                                   {0, 1, 'a', 0, 1, 0, 0, 1, 'b', 0, 2, 0, 0, 1, 'c'},
		"leaf 1: keys do not ascend":                                           {0, 1, 'a', 0, 1, 0, 0, 1, 'a', 0},
		"leaf 0: malformed message: version at offset 0: 5 is more than 4":     {5, 1, 'a', 0},
		"leaf 0: key of 0 bytes":                                               {0, 0, 0},
		"key at offset 1: 131072 is more than 131071":                          {0, 0x80, 0x80, 8},
		"value at offset 3: 64000001 is more than 64000000":                    {0, 1, 'a', 0x81, 0xa0, 0xc2, 0x1e},
		"inner node 2 versions above its children's 4, in a tree of version 5": {1, 1, 'a', 0, 1, 2, 2, 1, 'b', 0},
		"versions above at offset 5: 6 is more than 5":                         {1, 1, 'a', 0, 1, 6, 2, 1, 'b', 0},
		"inner node of height 0 with children of 0 and 0":                      {0, 1, 'a', 0, 0, 0, 0, 1, 'b', 0},
		"hash of the root does not match":                                      {0, 1, 'a', 0, 1, 0, 0, 1, 'b', 0},
		"the uvarint is not minimal, or has more than 64 bits":                 {0x80, 0},
		"uvarint is not minimal, or has more than 64 bits":                     {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
	} {
		_, err := iavlsync.VerifyChunk(root, b)
		require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
		require.ErrorContains(t, err, want)
	}
	for want, b := range map[string][]byte{
		"height 0": {0, 1, 'a', 0, 1, 0}, "no store": {1, 0, 0, 1, 0}, "no leaves": {1, 1, 'a', 0, 0, 0}, "the message ends": {1, 1, 'a', 0, 1},
		"1 more bytes follow": {1, 1, 'a', 0, 1, 0, 0}, "2 more bytes follow": {1, 1, 'a', 0, 1, 0, 1, 1}, "offset 1 in 1 leaves": {1, 1, 'a', 0, 1, 1},
		"offset 4194304 in 2": {1, 1, 'a', 0, 2, 0x80, 0x80, 0x80, 2},
		"at most 2147483647":  {1, 1, 'a', 0xff, 0xff, 0xff, 0xff, 7, 1, 0},
	} {
		_, err := iavlsync.DecodeRequest(b)
		require.ErrorIs(t, err, iavlsync.ErrInvalidRequest)
		require.ErrorContains(t, err, want)
	}
	for _, b := range [][]byte{nil, {3}, {255, 0}} {
		_, _, err := iavlsync.SplitAnswer(b)
		require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
	}
}

// The largest store has 2^31 − 1 leaves: 2^18 − 1 chunks of 2^13 leaves, and one with a leaf less.
func TestLargestStore(t *testing.T) {
	const chunks, size = 1 << 18, 1 << 13
	image := iavlsync.Image{Height: 13, Size: size, Version: 1}
	m := &iavlsync.Manifest{Format: iavlsync.Format8192, Height: 1, Stores: []iavlsync.Store{{Name: "a"}}}
	for k := range chunks {
		e := iavlsync.Entry{Root: image}
		if k > 0 {
			e.Boundary = iavlsync.Boundary{Height: uint8(14 + bits.TrailingZeros(uint(k))), Version: 1}
		}
		m.Stores[0].Entries = append(m.Stores[0].Entries, e)
	}
	_, err := m.AppHash()
	require.ErrorContains(t, err, "2147483648 leaves: at most 2147483647 are supported")
	m.Stores[0].Entries[5].Root.Size--
	app, err := m.AppHash()
	require.NoError(t, err)
	b := m.Encode()
	require.Less(t, len(b), 20<<20)
	got, err := iavlsync.VerifyManifest(iavlsync.Format8192, b, 1, app)
	require.NoError(t, err)
	require.Equal(t, chunks, got.Chunks())
	u, err := got.Upper(0)
	require.NoError(t, err)
	require.EqualValues(t, 1<<31-1-size, u.First[chunks-1])
}

// The images of the halves can match the root's hashes and still not fit the root. The state was
// built wrongly then.
func TestHalvesOfBrokenState(t *testing.T) {
	tree := &iavlsynctest.Tree{}
	for i := range 5 {
		tree.Set([]byte{byte(i)}, nil)
		tree.Save()
	}
	for name, change := range map[string]func(root *iavlsync.Image){
		"size": func(root *iavlsync.Image) { root.Size++ }, "height": func(root *iavlsync.Image) { root.Height++ },
		"version": func(root *iavlsync.Image) { root.Version = 1 },
	} {
		root := imageOf(tree.Root)
		_, _, err := iavlsync.VerifyHalves(root, 5, tree.Root.Halves(5)[1:])
		require.NoError(t, err)
		change(root)
		_, _, err = iavlsync.VerifyHalves(root, 5, tree.Root.Halves(5)[1:])
		require.ErrorContains(t, err, "halves do not fit their root", name)
	}
}

// A damaged database causes an error, not an endless walk.
func TestDamagedStore(t *testing.T) {
	tree := &iavlsynctest.Tree{}
	for i := range 100 {
		tree.Set([]byte{byte(i)}, []byte{1})
	}
	tree.Save()
	r := &iavlsynctest.Reader{}
	root := r.Key(tree.Root)
	for name, change := range map[string]func(n *iavlsync.Node){
		"a loop":         func(n *iavlsync.Node) { n.Right = root },
		"too high":       func(n *iavlsync.Node) { n.Height++ },
		"a size":         func(n *iavlsync.Node) { n.Size++ },
		"a version":      func(n *iavlsync.Node) { n.Version = 0 },
		"later":          func(n *iavlsync.Node) { n.Version = 2 },
		"height 255":     func(n *iavlsync.Node) { n.Height = 255 },
		"huge":           func(n *iavlsync.Node) { n.Size = 1 << 62 },
		"negative":       func(n *iavlsync.Node) { n.Size = -1 },
		"missing child":  func(n *iavlsync.Node) { n.Left = []byte("nowhere") },
		"missing childs": func(n *iavlsync.Node) { n.Left, n.Right = nil, nil },
	} {
		for _, damaged := range []*iavlsynctest.Node{tree.Root, tree.Root.Left, tree.Root.Right.Left} {
			bad := changedReader{r, string(r.Key(damaged)), change}
			_, err := iavlsync.Cut(iavlsync.Format32, 1, "a", root, bad)
			require.Error(t, err, name)
			if !errors.Is(err, iavlsync.ErrDamagedStore) {
				require.ErrorContains(t, err, "no such node", name)
			}
			_, err = iavlsync.Answer(&iavlsync.Request{Height: 1, Store: "a", Leaves: 100}, root, bad)
			require.Error(t, err, name)
		}
	}
}

// A single leaf is also checked.
func TestDamagedLeaf(t *testing.T) {
	tree := &iavlsynctest.Tree{}
	tree.Set([]byte("key"), nil)
	tree.Save()
	r := &iavlsynctest.Reader{}
	root := r.Key(tree.Root)
	for name, change := range map[string]func(n *iavlsync.Node){
		"version 0":  func(n *iavlsync.Node) { n.Version = 0 },
		"two leaves": func(n *iavlsync.Node) { n.Size = 2 },
		"no key":     func(n *iavlsync.Node) { n.Key = nil },
		"long key":   func(n *iavlsync.Node) { n.Key = make([]byte, iavlsync.MaxKeyBytes+1) },
	} {
		_, err := iavlsync.Cut(iavlsync.Format32, 1, "a", root, changedReader{r, string(root), change})
		require.ErrorIs(t, err, iavlsync.ErrDamagedStore, name)
	}
}

type changedReader struct {
	*iavlsynctest.Reader
	key    string
	change func(n *iavlsync.Node)
}

func (r changedReader) Node(key []byte) (*iavlsync.Node, error) {
	n, err := r.Reader.Node(key)
	if err == nil && string(key) == r.key {
		r.change(n)
	}
	return n, err
}

func TestBetween(t *testing.T) {
	tree := &iavlsynctest.Tree{}
	tree.Set([]byte("b"), nil)
	tree.Set([]byte("c"), nil)
	tree.Save()
	c, err := iavlsync.VerifyChunk(imageOf(tree.Root), tree.Root.Chunk())
	require.NoError(t, err)
	require.NoError(t, c.Between(nil, nil))
	require.NoError(t, c.Between([]byte("a"), []byte("d")))
	require.ErrorIs(t, c.Between([]byte("b"), nil), iavlsync.ErrInvalidChunk)
	require.ErrorIs(t, c.Between(nil, []byte("c")), iavlsync.ErrInvalidChunk)
}
