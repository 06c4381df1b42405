package storage

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// Number of syncing goroutines: several files are synced at the cost of one.
	syncers = 4
	// Maximum number of files that wait to be synced, each of about appendBytes or tableBytes.
	syncBacklog = 4
)

// syncer makes files durable in the background.
//
//	Add ──file, open──► backlog ──► syncers ──► synced, closed
//
// A file is synced through the handle that wrote it, because only that handle is certain to report
// an earlier disk error.
type syncer struct {
	backlog chan unsynced
	workers sync.WaitGroup
	pending sync.WaitGroup // unsynced files
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

// add queues a file, which will be synced and closed; done is called with the result. It blocks
// while the backlog is full.
func (s *syncer) add(file vfs.File, done func(error)) {
	s.pending.Add(1)
	s.backlog <- unsynced{file, done}
}

// wait waits until all files are synced. No add may be under way.
func (s *syncer) wait() { s.pending.Wait() }

// stop syncs the remaining files. No add may follow.
func (s *syncer) stop() {
	close(s.backlog)
	s.workers.Wait()
}

// syncPaths syncs closed files, several at a time.
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
