package storage

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	syncers     = 16 // goroutines that sync: a file system makes several files durable at the price of one
	syncBacklog = 32
)

// syncer makes files durable behind the backs of those who wrote them.
//
//	Add ──file, open──► backlog ──► syncers ──► synced, closed
//
// A file is synced by the handle that wrote it: an error of the disk in between reaches no other for sure.
type syncer struct {
	backlog chan unsynced
	workers sync.WaitGroup
	pending sync.WaitGroup // files
}

type unsynced struct {
	file vfs.File
	done func(error) // called by the syncer
}

func newSyncer() *syncer {
	s := &syncer{backlog: make(chan unsynced, syncBacklog)}
	for range syncers {
		s.workers.Go(func() {
			for u := range s.backlog {
				u.done(errors.Join(u.file.Sync(), u.file.Close()))
				s.pending.Done()
			}
		})
	}
	return s
}

// add hands a file over; done hears of it.
func (s *syncer) add(file vfs.File, done func(error)) {
	s.pending.Add(1)
	s.backlog <- unsynced{file, done}
}

// wait returns when all files are synced. No add may be under way.
func (s *syncer) wait() { s.pending.Wait() }

// stop syncs what is left. There must be no add any more.
func (s *syncer) stop() {
	close(s.backlog)
	s.workers.Wait()
}

// syncPaths makes closed files durable, several at a time.
func syncPaths(fs vfs.FS, paths []string) error {
	next := make(chan string)
	errs := make(chan error, syncers)
	for range syncers {
		go func() {
			var failed error
			for path := range next {
				if failed == nil {
					failed = syncPath(fs, path)
				}
			}
			errs <- failed
		}()
	}
	for _, path := range paths {
		next <- path
	}
	close(next)
	var failed error
	for range syncers {
		failed = errors.Join(failed, <-errs)
	}
	return failed
}

func syncPath(fs vfs.FS, path string) error {
	file, err := fs.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
