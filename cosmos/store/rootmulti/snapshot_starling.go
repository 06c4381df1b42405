package rootmulti

import (
	"fmt"

	protoio "github.com/cosmos/gogoproto/io"

	errorsmod "cosmossdk.io/errors"
	snapshottypes "cosmossdk.io/store/snapshots/types"
	"cosmossdk.io/store/types"

	"github.com/starling-kv/starling/avlstar"
)

// A Starling store in a snapshot is the store's item, with its name, and then items of IAVL nodes
// (docs/spec/cosmosstore.md#snapshots): one with the manifest, and one for each chunk, in order.
//
//	manifest   Height itemHeight, Version 0, Value manifest
//	chunk k    Height itemHeight, Version k + 1, Value chunk
//
// No IAVL node has that height: a program that takes the store for an IAVL store refuses the item.
const itemHeight = 0x5301

func snapshotStarling(name string, s *starling, height int64, w protoio.Writer) error {
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

// restoration takes the Starling stores of a snapshot. Each chunk is verified against its store's
// manifest when it comes; what proves the manifests is the app hash, which the node compares when
// all stores are there.
type restoration struct {
	rs     *Store
	states map[string]*avlstar.Version

	name      string // of the store that is under way; "": none
	manifest  *avlstar.Manifest
	assembler *avlstar.Assembler
	next      int64 // number of the next item
}

func (r *restoration) begin(name string, height uint64) error {
	if err := r.end(); err != nil {
		return err
	}
	if height == 0 || r.rs.flushed != 0 {
		return errorsmod.Wrapf(types.ErrLogic, "store %q: a snapshot is restored into an empty multi-store only, and this one is at version %d", name, r.rs.flushed)
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
		return errorsmod.Wrapf(types.ErrLogic, "cannot import nodes of IAVL into Starling store %q", r.name)
	case item.Version != r.next:
		return errorsmod.Wrapf(types.ErrLogic, "store %q: item %d where item %d should be", r.name, item.Version, r.next)
	}
	r.next++
	if r.manifest == nil {
		m, err := avlstar.DecodeManifest(item.Value)
		if err != nil {
			return errorsmod.Wrapf(err, "store %q", r.name)
		}
		if want := r.rs.chunkBytes(); m.ChunkBytes != want {
			return errorsmod.Wrapf(types.ErrLogic, "store %q: chunks of %d bytes, not of %d", r.name, m.ChunkBytes, want)
		}
		r.manifest, r.assembler = m, avlstar.NewAssembler(m)
		return nil
	}
	k := uint32(item.Version - 1)
	if uint64(item.Version) > uint64(len(r.manifest.Entries)) {
		return errorsmod.Wrapf(types.ErrLogic, "store %q has %d chunks, not more", r.name, len(r.manifest.Entries))
	}
	c, err := r.manifest.VerifyChunk(k, item.Value)
	if err != nil {
		return errorsmod.Wrapf(err, "store %q, chunk %d", r.name, k)
	}
	return r.assembler.Add(k, c)
}

// end finishes the store that is under way.
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
	if r.states == nil {
		r.states = map[string]*avlstar.Version{}
	}
	r.states[r.name] = v
	r.name, r.manifest, r.assembler = "", nil, nil
	return nil
}

// commit puts all of them on disk, and their roots into the commit info, which is to be written
// next.
func (r *restoration) commit(info *types.CommitInfo) error {
	if err := r.end(); err != nil {
		return err
	}
	for name := range r.rs.starlingNames(nil) {
		if r.states[name] == nil {
			return fmt.Errorf("the snapshot does not have Starling store %q", name)
		}
	}
	if len(r.states) == 0 {
		return nil
	}
	for i, s := range info.StoreInfos {
		if v := r.states[s.Name]; v != nil {
			hash := v.AppHash()
			info.StoreInfos[i].CommitId = types.CommitID{Version: info.Version, Hash: hash[:]}
		}
	}
	return r.rs.disk.Replace(info.Version, r.states)
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
