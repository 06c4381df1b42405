package server_test

import (
	"encoding/binary"
	"path"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm/server"
	"github.com/starling-kv/starling/internal/crc32c"
	"github.com/starling-kv/starling/internal/spectest"
)

// TestSpecExample: docs/spec/storagenode.md has the files of a log. The salt, which is random, is
// replaced in LABEL before the first record.
func TestSpecExample(t *testing.T) {
	r := avlstar.KeyRange{First: []byte("b")}
	c := &chain{ranges: []avlstar.KeyRange{r}}
	var err error
	c.first, err = avlstar.Empty(512)
	require.NoError(t, err)
	defer c.first.Release()
	c.add(t, []avlstar.Change{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: []byte("2")}})
	defer c.at(1).Release()

	fsys := newCrashFS(t)
	require.NoError(t, openRedo(t, fsys).Close())
	dir := redoOptions(fsys).Dir
	label := readFile(t, fsys, path.Join(dir, "LABEL"))
	copy(label[len("SEGLOG1"):], "sixteen bytes!!!")
	binary.BigEndian.PutUint32(label[len(label)-4:], crc32c.Sum(label[:len(label)-4]))
	writeFile(t, fsys, path.Join(dir, "LABEL"), label)

	l := openRedo(t, fsys)
	require.NoError(t, l.Append(server.RangeIDOf(r), 1, c.blocks[0].updates[0]))
	require.NoError(t, l.Close())
	spectest.Require(t, "storagenode.md", label, readFile(t, fsys, path.Join(dir, "000001.seg")))
}
