package events

import (
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/internal/wake"
	"github.com/starling-kv/starling/storage/internal/engine"
)

// damage is damage found in a database. It is obsolete once another database is in use.
type damage struct {
	number int
	err    error
}

// number returns the number of the current database.
func (l *Log) number() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.number
}

// folderOf returns the folder for the database with a number. If a compaction finds damage, the
// writer replaces the database. Other failures end the process.
func (l *Log) folderOf(number int) engine.Folder {
	f := l.folder
	f.Background = func(err error) {
		switch {
		case errors.Is(err, pebble.ErrClosed):
		case errors.Is(err, engine.ErrCorrupt):
			select {
			case l.damages <- damage{number, err}:
			default: // one report is enough
			}
		default:
			f.Fatal(err)
		}
	}
	return f
}

// logReplaced logs that the old log is discarded.
func (l *Log) logReplaced(why error) {
	l.folder.Logger.Error("The event log cannot be read and is replaced by an empty one: watchers of older heights get a compaction error", "err", why)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.replaced++
}

// replaceDamaged replaces the damaged database, unless that has already happened. The new log
// starts with the first block in memory, or with the next block. A node does not stop for this log,
// because the log proves nothing and other nodes have it, too. The error is the failure of the log.
func (l *Log) replaceDamaged(d damage) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.using.Lock()
	defer l.using.Unlock()
	if l.number() != d.number || l.db == nil {
		return nil
	}
	l.logReplaced(d.err)
	// Errors of Close concern files that are removed now.
	if err := l.db.Close(); err != nil {
		l.folder.Logger.Info("The damaged event log was not closed cleanly", "err", err)
	}
	l.db = nil
	err := l.replace(d.number + 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && l.mu.failure == nil {
		l.mu.failure = err
	}
	l.changed()
	wake.Up(l.wake) // the writer writes the blocks in memory, or reports the failure
	return err
}

// replace creates a new database in place of the closed one. The caller holds writing and using.
func (l *Log) replace(number int) error {
	if err := l.folder.FS.RemoveAll(l.folder.Dir); err != nil {
		return l.folder.Err("remove", err)
	}
	db, err := l.folderOf(number).Open(databaseOptions())
	if err != nil {
		return err
	}
	l.db = db
	batch := db.NewBatch()
	defer batch.Close()
	l.mu.Lock()
	defer l.mu.Unlock() // held until the records below are valid
	s := &l.mu.state
	base := s.last
	if len(s.tail) > 0 {
		base = s.tail[0].height - 1
	}
	err = batch.Set(formatKey, []byte{FormatVersion}, nil)
	if err == nil && s.begun {
		err = batch.Set(blockKey(base), binary.BigEndian.AppendUint64(nil, 0), nil)
	}
	if err == nil {
		err = batch.Commit(pebble.Sync)
	}
	if err != nil {
		return l.folder.Err("write", err)
	}
	l.mu.number = number
	s.base, s.written, s.synced, s.total, s.trimmed, s.backlog = base, base, base, 0, 0, s.tailBytes
	return nil
}
