package tablebench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// randomBytes returns a source of random bytes; each slice is the caller's.
func randomBytes(seed uint64) func(n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(n int) []byte {
		b := make([]byte, 0, n+7)
		for len(b) < n {
			b = binary.BigEndian.AppendUint64(b, rng.Uint64())
		}
		return b[:n:n]
	}
}

var errContent = errors.New("the table is not what was written")

// checkTable reads the table of a chunk with Pebble.
func checkTable(path string, chunk []record) (err error) {
	file, err := vfs.Default.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	reader, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	defer func() { err = errors.Join(err, reader.Close()) }()
	if err := reader.ValidateBlockChecksums(); err != nil {
		return err
	}
	it, err := reader.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	kv := it.First()
	for i, r := range chunk {
		if kv == nil {
			return fmt.Errorf("%s ends after %d of %d records: %w", path, i, len(chunk), errContent)
		}
		got, _, err := kv.Value(nil)
		if err != nil {
			return err
		}
		if key := kv.K.UserKey; key[0] != leafPrefix || !bytes.Equal(key[1:], r.key) || !bytes.Equal(got, r.value) {
			return fmt.Errorf("%s, record %d: %w", path, i, errContent)
		}
		kv = it.Next()
	}
	if kv != nil {
		return fmt.Errorf("%s has more than %d records: %w", path, len(chunk), errContent)
	}
	return it.Error()
}
