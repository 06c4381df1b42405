package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
	"github.com/cosmos/iavl"
	"github.com/prometheus/client_golang/prometheus"
)

// A snapshot is the export of a version, cut into chunks: nodes in the exporter's order, each as
//
//	height (1 byte) · version · length of the key · key · in a leaf: length of the value · value
//
// with uvarints. Its metadata are the SHA-256 hashes of the chunks, as in the Cosmos SDK: they show
// that a chunk is one of this snapshot, not that the snapshot is of the chain's state.
const format = 1

// kept is the number of snapshots that a node keeps: the Cosmos SDK's default.
const kept = 2

// snapshot describes a snapshot on disk.
type snapshot struct {
	height int64
	hashes []byte // of the chunks
}

func (s *snapshot) chunks() int { return len(s.hashes) / sha256.Size }

func (s *snapshot) describe() *abci.Snapshot {
	hash := sha256.Sum256(s.hashes)
	return &abci.Snapshot{Height: uint64(s.height), Format: format, Chunks: uint32(s.chunks()), Hash: hash[:], Metadata: s.hashes}
}

// Metrics of snapshots, on CometBFT's endpoint.
var (
	made     = prometheus.NewCounter(prometheus.CounterOpts{Name: "iavlnode_snapshots", Help: "Snapshots made."})
	seconds  = prometheus.NewCounter(prometheus.CounterOpts{Name: "iavlnode_snapshot_seconds", Help: "Time in which snapshots were made."})
	restored = prometheus.NewCounter(prometheus.CounterOpts{Name: "iavlnode_restored_bytes", Help: "Bytes of restored chunks."})
)

func init() { prometheus.MustRegister(made, seconds, restored) }

func (a *app) folder(height int64) string {
	return filepath.Join(a.dir, "snapshots", strconv.FormatInt(height, 10))
}

// snapshot makes a snapshot of the newest version, which is that of height.
func (a *app) snapshot(height int64) error {
	version, err := a.tree.GetImmutable(a.tree.Version())
	if err != nil || version.Size() == 0 {
		return err
	}
	if !a.genesis.Background {
		return a.export(version, height)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.making {
		return nil
	}
	a.making = true
	a.underway.Go(func() {
		if err := a.export(version, height); err != nil {
			panic(err) // the database or the disk fails
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.making = false
	})
	return nil
}

// export writes a snapshot, and removes those that are not kept. A Byzantine node's snapshot has
// another value, and claims to be of the next height: a joiner tries the newest snapshot first.
func (a *app) export(version *iavl.ImmutableTree, height int64) error {
	began, lie := time.Now(), a.lies
	if lie {
		height++
	}
	exporter, err := version.Export()
	if err != nil {
		return err
	}
	defer exporter.Close()
	if err := os.MkdirAll(a.folder(height), 0o750); err != nil {
		return err
	}
	s := &snapshot{height: height}
	var chunk []byte
	write := func() error {
		hash := sha256.Sum256(chunk)
		file := a.chunkFile(height, s.chunks())
		s.hashes = append(s.hashes, hash[:]...)
		err := os.WriteFile(file, chunk, 0o600)
		chunk = chunk[:0]
		return err
	}
	for {
		n, err := exporter.Next()
		if errors.Is(err, iavl.ErrorExportDone) {
			break
		}
		if err != nil {
			return err
		}
		if lie && len(n.Value) > 0 {
			n.Value = bytes.Repeat([]byte("!"), len(n.Value)) // the tree keeps the old slice
			lie = false
		}
		if chunk = appendNode(chunk, n); len(chunk) >= a.genesis.ChunkBytes {
			if err := write(); err != nil {
				return err
			}
		}
	}
	if len(chunk) > 0 {
		if err := write(); err != nil {
			return err
		}
	}
	made.Inc()
	seconds.Add(time.Since(began).Seconds())
	a.mu.Lock()
	a.snapshots = append(a.snapshots, s)
	var old []*snapshot
	if n := len(a.snapshots) - kept; n > 0 {
		old, a.snapshots = slices.Clone(a.snapshots[:n]), slices.Clone(a.snapshots[n:])
	}
	a.mu.Unlock()
	for _, s := range old {
		err = errors.Join(err, os.RemoveAll(a.folder(s.height)))
	}
	return err
}

func (a *app) chunkFile(height int64, i int) string {
	return filepath.Join(a.folder(height), strconv.Itoa(i))
}

func appendNode(b []byte, n *iavl.ExportNode) []byte {
	b = append(b, byte(n.Height))
	b = binary.AppendUvarint(b, uint64(n.Version))
	b = binary.AppendUvarint(b, uint64(len(n.Key)))
	b = append(b, n.Key...)
	if n.Height == 0 {
		b = binary.AppendUvarint(b, uint64(len(n.Value)))
		b = append(b, n.Value...)
	}
	return b
}

var errChunk = errors.New("the chunk does not decode")

// nextNode decodes a node. It copies the key and the value.
func nextNode(b []byte) (n *iavl.ExportNode, rest []byte, err error) {
	n = &iavl.ExportNode{Height: int8(b[0])}
	b = b[1:]
	number := func() uint64 {
		v, size := binary.Uvarint(b)
		if size <= 0 {
			err, size = errChunk, 0
		}
		b = b[size:]
		return v
	}
	text := func() []byte {
		size := number()
		if err != nil || size > uint64(len(b)) {
			err = errChunk
			return nil
		}
		t := bytes.Clone(b[:size:size])
		b = b[size:]
		return t
	}
	n.Version = int64(number())
	n.Key = text()
	if n.Height == 0 {
		n.Value = text()
	}
	return n, b, err
}

// ListSnapshots implements abci.Application.
func (a *app) ListSnapshots(context.Context, *abci.RequestListSnapshots) (*abci.ResponseListSnapshots, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &abci.ResponseListSnapshots{}
	for _, s := range a.snapshots {
		r.Snapshots = append(r.Snapshots, s.describe())
	}
	return r, nil
}

// LoadSnapshotChunk implements abci.Application. The chunk of a removed snapshot is empty.
func (a *app) LoadSnapshotChunk(_ context.Context, r *abci.RequestLoadSnapshotChunk) (*abci.ResponseLoadSnapshotChunk, error) {
	chunk, err := os.ReadFile(a.chunkFile(int64(r.Height), int(r.Chunk)))
	if errors.Is(err, os.ErrNotExist) {
		return &abci.ResponseLoadSnapshotChunk{}, nil
	}
	return &abci.ResponseLoadSnapshotChunk{Chunk: chunk}, err
}

// restoring is a snapshot that a joiner has accepted. CometBFT applies its chunks in order.
type restoring struct {
	snapshot
	appHash  []byte
	importer *iavl.Importer
}

// OfferSnapshot implements abci.Application.
func (a *app) OfferSnapshot(_ context.Context, r *abci.RequestOfferSnapshot) (*abci.ResponseOfferSnapshot, error) {
	s := snapshot{int64(r.Snapshot.Height), r.Snapshot.Metadata}
	if d := s.describe(); r.Snapshot.Format != format || d.Chunks != r.Snapshot.Chunks || !bytes.Equal(d.Hash, r.Snapshot.Hash) {
		return &abci.ResponseOfferSnapshot{Result: abci.ResponseOfferSnapshot_REJECT}, nil
	}
	if a.restoring != nil {
		a.restoring.importer.Close()
	}
	importer, err := a.tree.Import(s.height + a.genesis.versions())
	if err != nil {
		return nil, err
	}
	a.restoring = &restoring{s, r.AppHash, importer}
	return &abci.ResponseOfferSnapshot{Result: abci.ResponseOfferSnapshot_ACCEPT}, nil
}

// ApplySnapshotChunk implements abci.Application. The whole state is compared with the app hash
// after the last chunk. If it is another one, CometBFT begins again with another snapshot.
func (a *app) ApplySnapshotChunk(_ context.Context, r *abci.RequestApplySnapshotChunk) (*abci.ResponseApplySnapshotChunk, error) {
	s := a.restoring
	i := int(r.Index)
	if hash := sha256.Sum256(r.Chunk); !bytes.Equal(hash[:], s.hashes[i*sha256.Size:][:sha256.Size]) {
		return &abci.ResponseApplySnapshotChunk{
			Result: abci.ResponseApplySnapshotChunk_RETRY, RefetchChunks: []uint32{r.Index}, RejectSenders: []string{r.Sender},
		}, nil
	}
	for rest := r.Chunk; len(rest) > 0; {
		n, after, err := nextNode(rest)
		if err != nil {
			return nil, err
		}
		if err := s.importer.Add(n); err != nil {
			return nil, err
		}
		rest = after
	}
	restored.Add(float64(len(r.Chunk)))
	if i == s.chunks()-1 {
		if err := s.importer.Commit(); err != nil {
			return nil, err
		}
		if !bytes.Equal(a.tree.Hash(), s.appHash) {
			a.restoring = nil
			return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_REJECT_SNAPSHOT}, a.clear()
		}
		a.publish(s.height)
		a.restoring = nil
	}
	return &abci.ResponseApplySnapshotChunk{Result: abci.ResponseApplySnapshotChunk_ACCEPT}, nil
}
