package events

import (
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/starling-kv/starling/storage/internal/engine"
)

// damage is what was found in a database: in that of another number it is no more.
type damage struct {
	number int
	err    error
}

// number returns which database is in use.
func (l *Log) number() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.number
}

// folderOf is the folder as the database of a number sees it. That database compacts by itself, and
// may find damage: then the writer replaces it. Of other failures it cannot continue.
func (l *Log) folderOf(number int) engine.Folder {
	f := l.folder
	f.Background = func(err error) {
		switch {
		case errors.Is(err, pebble.ErrClosed):
		case errors.Is(err, engine.ErrCorrupt):
			select {
			case l.damages <- damage{number, err}:
			default: // one is enough, and it tries again as long as it is open
			}
		default:
			f.Fatal(err)
		}
	}
	return f
}

// sayAnew says that what was there is given up.
func (l *Log) sayAnew(why error) {
	l.folder.Logger.Error("The log of events cannot be read and begins anew: watchers of older heights are told that these are compacted", "err", why)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.anew++
}

// beginAnew replaces the database in which damage was found, unless that has happened already. What
// is in memory is kept: the log begins with the first block there, or with the next one. A node is
// not to stop for a log that proves nothing and that others have, too. The error is the failure of
// the log.
func (l *Log) beginAnew(d damage) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.using.Lock()
	defer l.using.Unlock()
	if l.number() != d.number || l.db == nil {
		return nil
	}
	l.sayAnew(d.err)
	// What Close says is of files that are removed.
	if err := l.db.Close(); err != nil {
		l.folder.Logger.Info("The damaged log of events was not closed cleanly", "err", err)
	}
	l.db = nil
	err := l.replace(d.number + 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && l.mu.failure == nil {
		l.mu.failure = err
	}
	l.changed()
	signal(l.wake) // the writer writes what is in memory, or reports the failure
	return err
}

// replace makes a database in the place of the one that was closed. The caller holds writing and
// using.
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
	defer l.mu.Unlock() // until what is written is true
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
