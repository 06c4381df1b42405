package syncbench

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/workload"
)

// buildSDK builds the program of bench/sdkstore in dir.
func buildSDK(ctx context.Context, dir string) (string, error) {
	program, err := harness.BuildBeside(ctx, "sdkstore", dir)
	if err != nil {
		err = fmt.Errorf("the SDK's store (--against memiavl needs none): %w", err)
	}
	return program, err
}

// sdkStore is the process of bench/sdkstore, as the parent sees it.
type sdkStore struct{ *harness.Process }

func startSDK(ctx context.Context, program, dir string, args ...string) (sdkStore, error) {
	p, err := harness.StartProgram(ctx, nameSDK, program, append([]string{"--dir", dir}, args...)...)
	return sdkStore{p}, err
}

// commit makes a block of changes; snapshot starts a snapshot of its state.
func (s sdkStore) commit(changes []workload.Change, snapshot bool) (a sdkAnswer, err error) {
	r := sdkRequest{Op: "commit", N: len(changes), Snapshot: snapshot}
	err = s.AskWith(r, func(w *bufio.Writer) error { return writeChanges(w, changes) }, &a)
	return a, err
}

// create makes the snapshot that restore restores.
func (s sdkStore) create() (a sdkAnswer, err error) {
	err = s.Ask(sdkRequest{Op: "create"}, &a)
	return a, err
}

func (s sdkStore) restore() (a sdkAnswer, err error) {
	err = s.Ask(sdkRequest{Op: "restore"}, &a)
	return a, err
}

// join makes a home from the source's database by verified chunks.
func (s sdkStore) join() (a sdkAnswer, err error) {
	err = s.Ask(sdkRequest{Op: "join"}, &a)
	return a, err
}

// writeChanges is the inverse of sdkstore's readChanges, which describes the format.
func writeChanges(w *bufio.Writer, changes []workload.Change) error {
	var b []byte
	for _, c := range changes {
		b = binary.AppendUvarint(b[:0], uint64(len(c.Key)))
		b = append(b, c.Key...)
		if c.Value == nil {
			b = binary.AppendUvarint(b, 0)
		} else {
			b = binary.AppendUvarint(b, uint64(len(c.Value))+1)
			b = append(b, c.Value...)
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
