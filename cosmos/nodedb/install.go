package nodedb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/internal/keyspace"
)

var (
	// ErrNotEmpty reports a database that has a state or any other key.
	ErrNotEmpty = errors.New("the database is not empty")
	// ErrOtherJoin reports a database with an unfinished join of another state, which Discard
	// deletes.
	ErrOtherJoin = errors.New("the database has an unfinished join of another state")
)

// Keys of an unfinished join. No application key has this prefix.
const (
	joinPrefix    = "starling-join/"
	joinKey       = joinPrefix + "manifest"
	joinChunksKey = joinPrefix + "chunk/" // ‖ number:4 → the place of its root, and its first key
)

// Installer writes a verified state into an empty database, chunk by chunk in any order.
//
//	empty ── NewInstaller ──▶ joining ── Install × chunks ──▶ Finish ──▶ the home of a node at H
//
// A chunk and its mark are written in one batch, and "s/latest" is written last. So NewInstaller
// resumes with the missing chunks after a crash, and an application that opens the database before
// Finish finds no state. Its methods may be called concurrently.
type Installer struct {
	*placing
	db DB

	mu   sync.Mutex
	done []*Placed // by chunk; guarded by mu
}

// placing computes where the nodes of a manifest's state belong.
type placing struct {
	// SnapshotInterval is the number of heights between the snapshots that the joined node takes of
	// its own; 0: it takes none. It is set before Finish. See SnapshotRecord.
	SnapshotInterval int64

	m      *iavlsync.Manifest
	upper  []*iavlsync.Upper
	stores []installing
	start  []int // at i: number of the first chunk of store i
}

// installing has the constants of a store.
type installing struct {
	prefix []byte
	leaves int64
}

// Placed is a subtree that has been installed.
type Placed struct {
	first, leaves int64 // its leaves, counted in the store
	version       int64 // version of its root
	place         int64 // place of its root, like iavlsync.Place but counted in the store
	key           []byte
}

// NewInstaller begins, or resumes, the installation of a verified manifest's state. It fails with
// ErrNotEmpty or ErrOtherJoin if the database has anything else.
func NewInstaller(db DB, m *iavlsync.Manifest) (*Installer, error) {
	p, err := newPlacing(m)
	if err != nil {
		return nil, err
	}
	in := &Installer{placing: p, db: db, done: make([]*Placed, m.Chunks())}
	described := append(binary.BigEndian.AppendUint32(nil, uint32(m.Format)), m.Encode()...)
	switch b, err := db.Get([]byte(joinKey)); {
	case err != nil:
		return nil, fmt.Errorf("look for a join: %w", err)
	case b == nil:
		return in, in.begin(described)
	case !slices.Equal(b, described):
		return nil, ErrOtherJoin
	}
	return in, in.resume()
}

func newPlacing(m *iavlsync.Manifest) (*placing, error) {
	p := &placing{m: m}
	start := 0
	for i := range m.Stores {
		u, err := m.Upper(i)
		if err != nil {
			return nil, err
		}
		s := installing{prefix: appendStore(nil, m.Stores[i].Name)}
		for k := range m.Stores[i].Entries {
			s.leaves += m.Stores[i].Entries[k].Root.Size
		}
		p.upper, p.stores, p.start = append(p.upper, u), append(p.stores, s), append(p.start, start)
		start += len(m.Stores[i].Entries)
	}
	return p, nil
}

// last returns the records that make the state visible.
func (in *placing) last() []Record {
	records := []Record{{commitKey(in.m.Height), in.commit().Encode()}, {[]byte(latestKey), encodeLatest(in.m.Height)}}
	if r, ok := SnapshotRecord(in.m.Height, in.SnapshotInterval); ok {
		records = append(records, r)
	}
	return records
}

// commit returns what the multi-store records for the state.
func (in *placing) commit() *Commit {
	c := &Commit{Height: in.m.Height}
	for i := range in.m.Stores {
		c.Stores = append(c.Stores, CommitStore{in.m.Stores[i].Name, in.m.Height, in.upper[i].Hash[:]})
	}
	return c
}

// Unfinished returns the format and the encoded manifest of an unfinished installation; manifest is
// nil if there is none.
func Unfinished(db DB) (f iavlsync.Format, manifest []byte, err error) {
	b, err := db.Get([]byte(joinKey))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("look for a join: %w", err)
	case b == nil:
		return 0, nil, nil
	case len(b) < 4:
		return 0, nil, fmt.Errorf("unfinished join: %w", ErrInvalidRecord)
	}
	return iavlsync.Format(binary.BigEndian.Uint32(b)), b[4:], nil
}

var discardedKeys = 1 << 14 // keys that Discard deletes in a batch; tests set it

// Discard deletes an unfinished installation, so that another state can be installed. It does
// nothing if the database has none. After a crash, the installation is still there, with fewer
// chunks.
func Discard(db DB) error {
	if _, begun, err := Unfinished(db); err != nil || begun == nil {
		return err
	}
	manifest, chunks := []byte(joinKey), []byte(joinChunksKey)
	// The marks of chunks go first: a join that resumes does not fetch a chunk that has a mark. The
	// manifest goes last: without it, the other keys would be somebody else's.
	for _, keys := range [][2][]byte{{chunks, keyspace.PrefixEnd(chunks)}, {nil, manifest}, {keyspace.PrefixEnd(manifest), nil}, {manifest, keyspace.PrefixEnd(manifest)}} {
		if err := deleteRange(db, keys[0], keys[1]); err != nil {
			return fmt.Errorf("discard an unfinished join: %w", err)
		}
	}
	return nil
}

// deleteRange deletes the keys in [from, to), durably. It deletes from the start, in batches.
func deleteRange(db DB, from, to []byte) error {
	for {
		// The iterator is closed before the batch is written: a database may lock while one is
		// open.
		it, err := db.Iterator(from, to)
		if err != nil {
			return err
		}
		var keys [][]byte
		for ; it.Valid() && len(keys) < discardedKeys; it.Next() {
			keys = append(keys, slices.Clone(it.Key()))
		}
		if err := errors.Join(it.Error(), it.Close()); err != nil || len(keys) == 0 {
			return err
		}
		b := db.NewBatch()
		for _, key := range keys {
			err = errors.Join(err, b.Delete(key))
		}
		if err == nil {
			err = b.WriteSync() // synced for the reason given in write
		}
		if err = errors.Join(err, b.Close()); err != nil {
			return err
		}
		from = keys[len(keys)-1]
	}
}

func (in *Installer) begin(described []byte) error {
	it, err := in.db.Iterator(nil, nil)
	if err != nil {
		return fmt.Errorf("look for keys: %w", err)
	}
	// An application that was opened before its first block has written the fast index versions of
	// its empty stores.
	for ; it.Valid() && err == nil; it.Next() {
		if key := it.Key(); !bytes.HasPrefix(key, []byte(storesPrefix)) || !bytes.HasSuffix(key, []byte("/"+string(kindMetadata)+storageVersionKey)) {
			err = ErrNotEmpty
		}
	}
	if err = errors.Join(err, it.Error(), it.Close()); err != nil {
		return err
	}
	b := in.db.NewBatch()
	defer b.Close() //nolint:errcheck // written or discarded
	if err := b.Set([]byte(joinKey), described); err != nil {
		return err
	}
	return b.WriteSync()
}

func (in *Installer) resume() (err error) {
	chunks := []byte(joinChunksKey)
	it, err := in.db.Iterator(chunks, keyspace.PrefixEnd(chunks))
	if err != nil {
		return fmt.Errorf("look for chunks: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ; it.Valid(); it.Next() {
		number := it.Key()[len(joinChunksKey):]
		d := decoder{b: slices.Clone(it.Value())}
		place, key := d.varint(0, 2*iavlsync.MaxLeaves), d.bytes()
		if err := d.end(); err != nil {
			return fmt.Errorf("chunk %x: %w", number, err)
		}
		if len(number) != 4 || int64(binary.BigEndian.Uint32(number)) >= int64(len(in.done)) {
			return fmt.Errorf("chunk %x: %w", number, ErrInvalidRecord)
		}
		k := int(binary.BigEndian.Uint32(number))
		i, e := in.m.At(k)
		image := in.image(k)
		in.done[k] = &Placed{in.upper[i].First[e], image.Size, image.Version, place, key}
	}
	return it.Error()
}

func (in *placing) image(k int) *iavlsync.Image {
	i, e := in.m.At(k)
	return &in.m.Stores[i].Entries[e].Root
}

// Missing returns the numbers of the missing chunks, ascending.
func (in *Installer) Missing() (missing []int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for k, p := range in.done {
		if p == nil {
			missing = append(missing, k)
		}
	}
	return missing
}

// Install writes chunk k, which VerifyChunk has returned for the chunk's image in the manifest.
func (in *Installer) Install(k int, c *iavlsync.Chunk, _ []byte) error {
	i, e := in.m.At(k)
	_, err := in.write(k, func(b *batchRecorder) (*Placed, error) { return in.both(b, i, in.upper[i].First[e], c) })
	return err
}

// InstallPart writes a subtree of chunk k, if the chunk arrives in halves. first is the number of
// its first leaf, counted in the store. Join combines parts.
func (in *Installer) InstallPart(k int, first int64, c *iavlsync.Chunk, _ []byte) (*Placed, error) {
	i, _ := in.m.At(k)
	return in.write(k, func(b *batchRecorder) (*Placed, error) { return in.both(b, i, first, c) })
}

// Join writes the node of chunk k that has this verified image and two parts as its children. When
// that is the chunk's root, the chunk is complete.
func (in *Installer) Join(k int, image *iavlsync.Image, left, right *Placed, _ []byte) (*Placed, error) {
	i, _ := in.m.At(k)
	return in.write(k, func(b *batchRecorder) (*Placed, error) {
		n := iavlsync.Inner{Hash: image.Hash(), Size: image.Size, Version: image.Version, Height: image.Height}
		return in.inner(b, i, &n, left, right)
	})
}

// both writes the nodes of a subtree and its part of the fast index.
func (in *Installer) both(b *batchRecorder, i int, first int64, c *iavlsync.Chunk) (*Placed, error) {
	p, err := in.subtree(b, i, first, c)
	if err != nil {
		return nil, err
	}
	prefix := in.stores[i].prefix
	for j := range c.Leaves {
		leaf := &c.Leaves[j]
		key := b.add(func(b []byte) []byte { return append(append(append(b, prefix...), kindFast), leaf.Key...) })
		if err := b.b.Set(key, b.add(func(b []byte) []byte { return AppendFast(b, leaf.Version, leaf.Value) })); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// batchRecorder writes records to a batch. The batch keeps the slices, so they are parts of arrays
// that are not reused.
type batchRecorder struct {
	in    *placing
	b     Batch
	array []byte
}

func (r *batchRecorder) add(fn func(b []byte) []byte) []byte {
	if cap(r.array)-len(r.array) < 1024 {
		r.array = make([]byte, 0, 256<<10)
	}
	start := len(r.array)
	r.array = fn(r.array)
	return r.array[start:len(r.array):len(r.array)]
}

func (r *batchRecorder) record(store int, version int64, nonce uint32, fn func(b []byte) []byte) error {
	key := r.add(func(b []byte) []byte {
		return appendNodeKey(append(append(b, r.in.stores[store].prefix...), kindNode), version, nonce)
	})
	return r.b.Set(key, r.add(fn))
}

// write writes a batch that fn fills with chunk k or a part of it. If it is the whole chunk, the
// batch includes the chunk's mark.
func (in *Installer) write(k int, fn func(b *batchRecorder) (*Placed, error)) (*Placed, error) {
	b := in.db.NewBatch()
	defer b.Close() //nolint:errcheck // written or discarded
	p, err := fn(&batchRecorder{in: in.placing, b: b})
	if err != nil {
		return nil, fmt.Errorf("install chunk %d: %w", k, err)
	}
	complete := p.leaves == in.image(k).Size
	if complete {
		err = b.Set(chunkKey(k), appendBytes(binary.AppendVarint(nil, p.place), p.key))
	}
	// One fsync per chunk is necessary: goleveldb closes a full journal without an fsync, so a
	// power loss could lose an earlier batch and keep a later one, even "s/latest", which is
	// synced.
	if err == nil {
		err = b.WriteSync()
	}
	if err != nil {
		return nil, fmt.Errorf("install chunk %d: %w", k, err)
	}
	if complete {
		in.mu.Lock()
		in.done[k] = p
		in.mu.Unlock()
	}
	return p, nil
}

func chunkKey(k int) []byte {
	return binary.BigEndian.AppendUint32([]byte(joinChunksKey), uint32(k))
}

// Finish writes the nodes above the chunks and makes the state visible, durably. All chunks must be
// installed.
func (in *Installer) Finish() error {
	if n := len(in.Missing()); n > 0 {
		return fmt.Errorf("finish: %d chunks are missing", n)
	}
	b := in.db.NewBatch()
	defer b.Close() //nolint:errcheck // written or discarded
	for i := range in.m.Stores {
		if err := in.finishStore(&batchRecorder{in: in.placing, b: b}, i); err != nil {
			return fmt.Errorf("finish store %q: %w", in.m.Stores[i].Name, err)
		}
	}
	if err := b.WriteSync(); err != nil { // synced for the reason given in write
		return fmt.Errorf("finish: %w", err)
	}
	last := in.db.NewBatch()
	defer last.Close() //nolint:errcheck // written or discarded
	var err error
	for k := range in.done {
		err = errors.Join(err, last.Delete(chunkKey(k)))
	}
	err = errors.Join(err, last.Delete([]byte(joinKey)))
	for _, r := range in.last() {
		err = errors.Join(err, last.Set(r.Key, r.Value))
	}
	if err == nil {
		err = last.WriteSync()
	}
	if err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	return nil
}

// finishStore writes the upper tree, the version's root, and the version of the fast index.
func (in *Installer) finishStore(r *batchRecorder, i int) error {
	version, err := in.upperTree(r, i, in.done)
	if root := in.reference(i, version); err == nil && root != nil {
		err = r.record(i, in.m.Height, rootNonce, func(b []byte) []byte { return append(b, root...) })
	}
	return errors.Join(err, r.b.Set(in.stores[i].key(kindMetadata, []byte(storageVersionKey)), encodeStorageVersion(in.m.Height)))
}
