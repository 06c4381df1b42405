package nodedb

import (
	"bufio"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file of a part gives back its sorted pieces, and is refused if the disk has changed or cut it.
func TestPartFile(t *testing.T) {
	write := func() *part {
		f, err := os.CreateTemp(t.TempDir(), temporary)
		require.NoError(t, err)
		p := &part{file: f, w: bufio.NewWriter(f)}
		require.NoError(t, p.add([]piece{{nodeAt{0, 2, 7}, []byte("\x00\x00\x00\x07second")}, {nodeAt{0, 1, 9}, []byte("\x00\x00\x00\x09first")}}))
		require.NoError(t, p.w.Flush())
		return p
	}
	pieces, err := write().take()
	require.NoError(t, err)
	require.Len(t, pieces, 2)
	require.Equal(t, nodeAt{0, 1, 9}, pieces[0].at)
	require.Equal(t, "\x00\x00\x00\x07second", string(pieces[1].b))

	whole, err := os.ReadFile(write().file.Name())
	require.NoError(t, err)
	for n := range whole {
		p := write()
		require.NoError(t, os.Truncate(p.file.Name(), int64(n)))
		_, err := p.take()
		require.ErrorIs(t, err, ErrInvalidRecord, "cut to %d bytes", n)
		require.NoError(t, p.remove())

		p = write()
		changed := append([]byte{}, whole...)
		changed[n] ^= 1
		require.NoError(t, os.WriteFile(p.file.Name(), changed, 0o600))
		_, err = p.take()
		require.ErrorIs(t, err, ErrInvalidRecord, "byte %d is changed", n)
		require.NoError(t, p.remove())
	}
}
