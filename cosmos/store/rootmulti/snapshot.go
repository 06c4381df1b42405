package rootmulti

import (
	"errors"
	"fmt"
	"io"

	dbm "github.com/cosmos/cosmos-db"
	protoio "github.com/cosmos/gogoproto/io"
	"github.com/cosmos/gogoproto/proto"

	errorsmod "cosmossdk.io/errors"
	snapshottypes "github.com/cosmos/cosmos-sdk/store/v2/snapshots/types"
	"github.com/cosmos/cosmos-sdk/store/v2/types"

	"github.com/starling-kv/starling/avlstar"
)

// In a snapshot, a Starling store is a store item with the store's name, followed by items of type
// IAVL node (docs/spec/cosmosstore.md#snapshots): one with the manifest, and one for each chunk, in
// order.
//
//	manifest   Height itemHeight, Version 0, Value manifest
//	chunk k    Height itemHeight, Version k + 1, Value chunk
//
// No IAVL node has this height, so a program that expects an IAVL store rejects the item.
const itemHeight = 0x5301

// Snapshot implements snapshottypes.Snapshotter. It writes the stores in the order of their names.
func (rs *Store) Snapshot(height uint64, w protoio.Writer) error {
	s := &snapshotWriter{Writer: w, rs: rs, height: int64(height), left: rs.sortedKeys()}
	if err := rs.sdkStore.Snapshot(height, s); err != nil {
		return err
	}
	return s.writeBefore("")
}

// snapshotWriter inserts the Starling stores between the stores that the SDK's multi-store writes.
type snapshotWriter struct {
	protoio.Writer
	rs     *Store
	height int64
	left   []types.StoreKey // keys of the Starling stores that are not written yet, in order
}

// WriteMsg implements protoio.Writer.
func (s *snapshotWriter) WriteMsg(m proto.Message) error {
	if item, ok := m.(*snapshottypes.SnapshotItem); ok && item.GetStore() != nil {
		if err := s.writeBefore(item.GetStore().Name); err != nil {
			return err
		}
	}
	return s.Writer.WriteMsg(m)
}

// writeBefore writes the remaining Starling stores whose names are less than name; "": all.
func (s *snapshotWriter) writeBefore(name string) error {
	for len(s.left) > 0 && (name == "" || s.left[0].Name() < name) {
		key := s.left[0]
		s.left = s.left[1:]
		if err := writeStarling(s.Writer, key.Name(), s.rs.stores[key], s.height); err != nil {
			return err
		}
	}
	return nil
}

func writeStarling(w protoio.Writer, name string, s *starling, height int64) error {
	v, err := s.State(height)
	if err != nil {
		return errorsmod.Wrapf(err, "cannot snapshot store %q", name)
	}
	defer v.Release()
	if err := w.WriteMsg(&snapshottypes.SnapshotItem{Item: &snapshottypes.SnapshotItem_Store{Store: &snapshottypes.SnapshotStoreItem{Name: name}}}); err != nil {
		return err
	}
	write := func(number int64, value []byte) error {
		return w.WriteMsg(&snapshottypes.SnapshotItem{Item: &snapshottypes.SnapshotItem_IAVL{
			IAVL: &snapshottypes.SnapshotIAVLItem{Value: value, Height: itemHeight, Version: number},
		}})
	}
	if err := write(0, v.Manifest().Encode()); err != nil {
		return err
	}
	for k := range v.NumChunks() {
		chunk, err := v.Chunk(k)
		if err != nil {
			return err
		}
		if err := write(int64(k)+1, chunk); err != nil {
			return err
		}
	}
	return nil
}

// Restore implements snapshottypes.Snapshotter. It returns the first item that does not belong to a
// store.
func (rs *Store) Restore(height uint64, format uint32, from protoio.Reader) (snapshottypes.SnapshotItem, error) {
	r := &restoration{rs: rs, from: from, height: int64(height), states: map[string]*avlstar.Version{}}
	defer r.release()
	var next snapshottypes.SnapshotItem
	err := rs.db.merging(func(info *types.CommitInfo, _ dbm.Batch) error {
		for name, v := range r.states {
			hash := v.AppHash()
			info.StoreInfos = append(info.StoreInfos, types.StoreInfo{Name: name, CommitId: types.CommitID{Version: info.Version, Hash: hash[:]}})
		}
		sortInfos(info)
		return nil
	}, func() (err error) {
		next, err = rs.sdkStore.Restore(height, format, r)
		return err
	})
	if r.err != nil {
		err = r.err // the SDK would report it as a malformed message
	}
	if err != nil {
		return snapshottypes.SnapshotItem{}, err
	}
	// Without a snapshot to continue from, the SDK would prune nothing until the next start
	// (docs/reference/cosmos-pruning.md). load reads the height that this writes.
	rs.pruning.HandleSnapshotHeight(int64(height))
	return next, rs.load(int64(height), nil, func() error { return nil })
}

// restoration extracts the Starling stores from a snapshot that the SDK's multi-store reads. Each
// chunk is verified against its store's manifest as soon as it is read. The manifests are verified
// by the app hash, which the node compares when all stores are restored.
type restoration struct {
	rs     *Store
	from   protoio.Reader
	height int64
	states map[string]*avlstar.Version // the stores that are complete
	err    error                       // the error of restoring the Starling stores

	name      string // name of the store that is being read; "": none
	manifest  *avlstar.Manifest
	assembler *avlstar.Assembler
	next      int64 // number of the next item
}

// ReadMsg implements protoio.Reader. It returns the next item that does not belong to a Starling
// store. Before it returns the end of the stream, or an item that does not belong to any store, it
// writes all Starling stores to disk.
func (r *restoration) ReadMsg(m proto.Message) error {
	item, ok := m.(*snapshottypes.SnapshotItem)
	if !ok {
		return r.fail(fmt.Errorf("unexpected snapshot item of type %T", m))
	}
	for {
		*item = snapshottypes.SnapshotItem{}
		err := r.from.ReadMsg(item)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		switch of := item.Item.(type) {
		case *snapshottypes.SnapshotItem_Store:
			if r.rs.mounted[of.Store.Name] == nil {
				return r.fail(r.end())
			}
			err = r.begin(of.Store.Name)
		case *snapshottypes.SnapshotItem_IAVL:
			if r.name == "" {
				return nil
			}
			err = r.add(of.IAVL)
		default: // the end of the stream, or an item that does not belong to a store
			if failed := r.finish(); failed != nil {
				return r.fail(failed)
			}
			return err
		}
		if err != nil {
			return r.fail(err)
		}
	}
}

func (r *restoration) fail(err error) error {
	r.err = err
	return err
}

func (r *restoration) begin(name string) error {
	if err := r.end(); err != nil {
		return err
	}
	if r.height == 0 || r.rs.flushed != 0 {
		return errorsmod.Wrapf(types.ErrLogic, "store %q: a snapshot can only be restored into an empty multi-store, and this one is at version %d", name, r.rs.flushed)
	}
	if r.states[name] != nil {
		return errorsmod.Wrapf(types.ErrLogic, "store %q is twice in the snapshot", name)
	}
	r.name, r.next = name, 0
	return nil
}

func (r *restoration) add(item *snapshottypes.SnapshotIAVLItem) error {
	switch {
	case item.Height != itemHeight:
		return errorsmod.Wrapf(types.ErrLogic, "cannot import IAVL nodes into Starling store %q", r.name)
	case item.Version != r.next:
		return errorsmod.Wrapf(types.ErrLogic, "store %q: item %d, expected item %d", r.name, item.Version, r.next)
	}
	r.next++
	if r.manifest == nil {
		m, err := avlstar.DecodeManifest(item.Value)
		if err != nil {
			return errorsmod.Wrapf(err, "store %q", r.name)
		}
		if want := r.rs.chunkBytes(); m.ChunkBytes != want {
			return errorsmod.Wrapf(types.ErrLogic, "store %q: chunk limit of %d bytes, expected %d", r.name, m.ChunkBytes, want)
		}
		r.manifest, r.assembler = m, avlstar.NewAssembler(m)
		return nil
	}
	k := uint32(item.Version - 1)
	if uint64(item.Version) > uint64(len(r.manifest.Entries)) {
		return errorsmod.Wrapf(types.ErrLogic, "store %q: more than %d chunks", r.name, len(r.manifest.Entries))
	}
	c, err := r.manifest.VerifyChunk(k, item.Value)
	if err != nil {
		return errorsmod.Wrapf(err, "store %q, chunk %d", r.name, k)
	}
	return r.assembler.Add(k, c)
}

// end finishes the store that is being read.
func (r *restoration) end() error {
	if r.name == "" {
		return nil
	}
	if r.manifest == nil {
		return errorsmod.Wrapf(types.ErrLogic, "store %q has no manifest", r.name)
	}
	v, err := r.assembler.Finish()
	if err != nil {
		return errorsmod.Wrapf(err, "store %q", r.name)
	}
	r.states[r.name] = v
	r.name, r.manifest, r.assembler = "", nil, nil
	return nil
}

// finish completes the store that is being read, and writes all Starling stores to disk.
func (r *restoration) finish() error {
	if err := r.end(); err != nil {
		return err
	}
	for name := range r.rs.mounted {
		if r.states[name] == nil {
			return fmt.Errorf("the snapshot does not have Starling store %q", name)
		}
	}
	if len(r.states) == 0 {
		return nil
	}
	return r.rs.disk.Replace(r.height, r.states)
}

func (r *restoration) release() {
	for _, v := range r.states {
		v.Release()
	}
}

func (rs *Store) chunkBytes() uint64 {
	if rs.options.ChunkBytes == 0 {
		return avlstar.DefaultChunkBytes
	}
	return rs.options.ChunkBytes
}
