package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/starling-kv/starling/internal/crc32c"
	"github.com/starling-kv/starling/internal/durable/onvfs"
)

// Readable makes the runs durable and readable by Scan and Page. No more runs can be added. The
// runs become the state of the zone with Commit.
func (r *Restore) Readable() error {
	s := r.s
	if !s.users.enter() {
		return r.overErr()
	}
	defer s.users.leave()
	r.life.Lock()
	defer r.life.Unlock()
	if r.life.over {
		return r.overErr()
	}
	if r.life.readable != nil {
		return nil
	}
	if err := r.finish(); err != nil {
		return err
	}
	s.generations.replace(newUnsettledGeneration(0, r.life.readable))
	return nil
}

// finish makes all runs durable and ends adding. The caller holds r.life.
func (r *Restore) finish() error {
	if err := r.s.failure.get(); err != nil {
		return err
	}
	r.completeLast()
	r.syncer.wait()
	r.mu.Lock()
	failure := r.mu.failure
	var closed []string
	for number := range r.mu.closed {
		closed = append(closed, r.s.runsPath(number))
	}
	runs := maps.Clone(r.mu.runs)
	r.mu.Unlock()
	if failure != nil {
		return failure
	}
	err := syncPaths(r.s.opts.FS, closed)
	if err == nil {
		err = r.syncJournal()
	}
	var set *runSet
	if err == nil {
		set, err = r.s.newRunSet(runs)
	}
	if err != nil {
		err = r.s.folder.Err("restore", err)
		r.mu.Lock()
		r.mu.failure = err
		r.mu.Unlock()
		return err
	}
	r.life.readable = set
	return nil
}

// syncJournal makes the journal durable.
func (r *Restore) syncJournal() error {
	r.journal.Lock()
	defer r.journal.Unlock()
	if r.journal.file == nil {
		return r.renewJournal()
	}
	return errors.Join(r.journal.file.Sync(), onvfs.SyncDir(r.s.opts.FS, r.s.inZone(restoreName)))
}

// Commit makes the restored state the state of the zone, durably. It returns before the state is
// settled (see Settled). Until then, blocks wait, Kept finds nothing, and the state takes twice its
// space. After an error the restore can be aborted, or closed and resumed.
func (r *Restore) Commit(m Meta) error {
	m.Restored = true
	return r.commit(m)
}

func (r *Restore) commit(m Meta) error {
	s := r.s
	if err := m.validate(); err != nil {
		return fmt.Errorf("state folder %s: restore: %w", s.dir, err)
	}
	if !s.users.enter() {
		return r.overErr()
	}
	defer s.users.leave()
	s.admin.Lock()
	defer s.admin.Unlock()
	r.life.Lock()
	defer r.life.Unlock()
	if r.life.over {
		return r.overErr()
	}
	if err := s.failure.get(); err != nil {
		return err
	}
	if r.life.readable == nil {
		if err := r.finish(); err != nil {
			return err
		}
	}
	m = m.clone()
	set := r.life.readable
	if err := s.writeComplete(complete{m, uint64(len(set.runs)), set.bytes}); err != nil {
		return err
	}
	r.endLocked()
	s.generations.replace(newUnsettledGeneration(m.Height, set))
	s.mu.Lock()
	s.setSafe(m)
	s.mu.restore, s.mu.unsettled = nil, newUnsettled(m, set)
	s.mu.Unlock()
	s.wakeFlusher()
	return nil
}

// writeComplete makes the current restore the state of the zone.
func (s *Zone) writeComplete(c complete) error {
	fs, path := s.opts.FS, s.inRestore(completeFile)
	if err := writeSynced(fs, path+newSuffix, c.encode()); err != nil {
		return s.folder.Err("restore", errors.Join(err, fs.Remove(path+newSuffix)))
	}
	err := onvfs.Rename(fs, path+newSuffix, path)
	if err != nil {
		err = s.folder.Err("restore", err)
		s.failure.fail(err) // the file may exist after a crash, or not
	}
	return err
}

// completeFile marks a committed restore. Once the file has this name, the runs are the state of
// the zone, until the database has meta. It contains
//
//	version:u8 ‖ number of runs:u64be ‖ bytes of their records:u64be ‖ meta ‖ CRC-32C of all before:u32be
//
// The runs are those that are not empty; meta is encoded as in the database.
const (
	completeFile    = "COMPLETE"
	completeVersion = 1
)

// complete describes a committed restore.
type complete struct {
	meta  Meta
	runs  uint64
	bytes uint64
}

func (c complete) encode() []byte {
	b := binary.BigEndian.AppendUint64([]byte{completeVersion}, c.runs)
	b = binary.BigEndian.AppendUint64(b, c.bytes)
	b = append(b, c.meta.encode()...)
	return binary.BigEndian.AppendUint32(b, crc32c.Sum(b))
}

// decodeComplete is the inverse of encode. It fails with ErrCorrupt or ErrNewerFormat.
func decodeComplete(b []byte) (complete, error) {
	if len(b) < 1+8+8+4 {
		return complete{}, fmt.Errorf("%s of %d bytes: %w", completeFile, len(b), ErrCorrupt)
	}
	body := b[:len(b)-4]
	switch {
	case crc32c.Sum(body) != binary.BigEndian.Uint32(b[len(b)-4:]):
		return complete{}, fmt.Errorf("%s: wrong checksum: %w", completeFile, ErrCorrupt)
	case body[0] > completeVersion:
		return complete{}, newerRestore(body[0])
	case body[0] < completeVersion:
		return complete{}, fmt.Errorf("%s: version %d: %w", completeFile, body[0], ErrCorrupt)
	}
	c := complete{runs: binary.BigEndian.Uint64(body[1:]), bytes: binary.BigEndian.Uint64(body[9:])}
	if c.bytes > math.MaxInt64 {
		return complete{}, fmt.Errorf("%s: %d bytes: %w", completeFile, c.bytes, ErrCorrupt)
	}
	var err error
	c.meta, err = decodeMeta(body[17:])
	return c, err
}

// maxCompleteBytes is a generous size limit of the file.
const maxCompleteBytes = 4<<10 + MaxExtra
