package join

import (
	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/nodedb"
)

// Target is where a state is written: InFolder or InDB.
type Target interface {
	// Unfinished returns the format and the encoded manifest of an unfinished join; manifest is nil
	// if there is none.
	Unfinished() (f iavlsync.Format, manifest []byte, err error)
	// Begin begins, or resumes, the join of a verified manifest's state.
	Begin(m *iavlsync.Manifest) (Installer, error)
}

// Installer takes verified chunks, together with the bytes that were verified, in any order. Its
// methods may be called concurrently.
type Installer interface {
	// Missing returns the numbers of the missing chunks, ascending.
	Missing() []int
	Install(k int, c *iavlsync.Chunk, data []byte) error
	// InstallPart takes a part of a chunk that arrives in halves. first is the number of its first
	// leaf. Join puts two parts together, below a node with a verified image.
	InstallPart(k int, first int64, c *iavlsync.Chunk, data []byte) (*nodedb.Placed, error)
	Join(k int, image *iavlsync.Image, left, right *nodedb.Placed, data []byte) (*nodedb.Placed, error)
	// Finish makes the state visible, durably.
	Finish() error
}

// InFolder keeps chunks in a folder, from which Finish makes the database that tables returns. The
// folder is removed afterwards. snapshots is the nodedb.Spool's SnapshotInterval, and progress,
// which may be nil, its Progress.
func InFolder(dir string, snapshots int64, tables func() (nodedb.Tables, error), progress func(share float64)) Target {
	return folder{dir, snapshots, tables, progress}
}

type folder struct {
	dir       string
	snapshots int64
	tables    func() (nodedb.Tables, error)
	progress  func(share float64)
}

func (f folder) Unfinished() (iavlsync.Format, []byte, error) { return nodedb.UnfinishedSpool(f.dir) }

func (f folder) Begin(m *iavlsync.Manifest) (Installer, error) {
	s, err := nodedb.NewSpool(f.dir, m)
	if err != nil {
		return nil, err
	}
	s.SnapshotInterval, s.Progress = f.snapshots, f.progress
	return spooled{s, f.tables}, nil
}

type spooled struct {
	*nodedb.Spool
	tables func() (nodedb.Tables, error)
}

func (s spooled) Finish() error {
	t, err := s.tables()
	if err != nil {
		return err
	}
	if err := s.Spool.Finish(t); err != nil {
		return err
	}
	return s.Remove()
}

// InDB writes chunks, as they arrive, to an open database that is empty or has an unfinished join.
// snapshots is the nodedb.Installer's SnapshotInterval.
func InDB(db nodedb.DB, snapshots int64) Target { return database{db, snapshots} }

type database struct {
	db        nodedb.DB
	snapshots int64
}

func (d database) Unfinished() (iavlsync.Format, []byte, error) { return nodedb.Unfinished(d.db) }

func (d database) Begin(m *iavlsync.Manifest) (Installer, error) {
	in, err := nodedb.NewInstaller(d.db, m)
	if err != nil {
		return nil, err
	}
	in.SnapshotInterval = d.snapshots
	return in, nil
}
