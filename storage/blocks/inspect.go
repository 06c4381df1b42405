package blocks

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/starling-kv/starling/internal/keyspace"
	"github.com/starling-kv/starling/storage/seglog"
)

// Bytes estimates the size of a database's keys and values on disk, without the write-ahead log.
func (z *Zone) Bytes(id string) (uint64, error) {
	release, err := z.use()
	if err != nil {
		return 0, err
	}
	defer release()
	prefix := append([]byte{byte(len(id))}, id...)
	bytes, err := z.db.EstimateDiskUsage(prefix, keyspace.PrefixEnd(prefix))
	if id == partsID {
		bytes += z.parts.store.Bytes()
	}
	return bytes, z.readErr(err)
}

// Tables lists the tables and segments of a zone.
type Tables struct {
	Count int
	Bytes uint64
}

// Verify reads all tables and segments of the zone, compares all checksums, and returns the
// undamaged files. Each reference must refer to a record. progress, if not nil, is called with the
// bytes done and in total. Errors: ErrCorrupt for each damaged file, joined; the first read error;
// that of ctx. The write-ahead log was verified by Open.
func (z *Zone) Verify(ctx context.Context, progress func(done, total uint64)) (good Tables, err error) {
	release, err := z.use()
	if err != nil {
		return Tables{}, err
	}
	defer release()
	if progress == nil {
		progress = func(uint64, uint64) {}
	}
	if err := z.releaseHeld(false); err != nil {
		return Tables{}, err
	}
	all, at, unhold := z.partsNow()
	defer func() { err = errors.Join(err, at.Close(), z.partErr("prune", unhold())) }()
	files, total, err := z.files()
	if err != nil {
		return Tables{}, err
	}
	for _, number := range all {
		total += z.parts.store.End(number)
	}
	var damaged []error
	done := uint64(0)
	for _, f := range files {
		progress(done, total)
		if err := ctx.Err(); err != nil {
			return good, err
		}
		path := z.folder.FS.PathJoin(z.folder.Dir, fmt.Sprintf("%06d.sst", uint64(f.BackingSSTNum)))
		switch err := z.folder.Err("verify", z.verifyTable(ctx, path)); {
		case errors.Is(err, ErrCorrupt):
			damaged = append(damaged, err)
		case err != nil:
			return good, errors.Join(append(damaged, err)...)
		default:
			good.Count, good.Bytes = good.Count+1, good.Bytes+f.Size
		}
		done += f.Size
	}
	if len(damaged) > 0 { // references to the segments are incomplete
		progress(total, total)
		return good, errors.Join(damaged...)
	}
	references, err := z.references(at)
	if err != nil {
		return good, z.folder.Err("verify", err)
	}
	for _, number := range all {
		progress(done, total)
		if err := ctx.Err(); err != nil {
			return good, err
		}
		end := z.parts.store.End(number)
		found, err := z.verifySegment(at, number)
		if err == nil && found != references[number] {
			err = fmt.Errorf("%w: file %s: want %d parts, found %d", seglog.ErrDamaged, z.parts.store.Path(number), references[number], found)
		}
		delete(references, number)
		switch err := z.partErr("verify", err); {
		case errors.Is(err, ErrCorrupt):
			damaged = append(damaged, err)
		case err != nil:
			return good, errors.Join(append(damaged, err)...)
		default:
			good.Count, good.Bytes = good.Count+1, good.Bytes+end
		}
		done += end
	}
	for number := range references {
		damaged = append(damaged, z.folder.Corrupt(fmt.Errorf("file %s, which parts refer to, is missing", z.parts.store.Path(number))))
	}
	progress(total, total)
	return good, errors.Join(damaged...)
}

func (z *Zone) verifyTable(ctx context.Context, path string) (err error) {
	file, err := z.folder.FS.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	// It closes readable, even after an error.
	table, err := sstable.NewReader(ctx, readable, sstable.ReaderOptions{})
	if err != nil {
		return fmt.Errorf("file %s: %w", path, err)
	}
	if err = table.ValidateBlockChecksums(); err != nil {
		err = fmt.Errorf("file %s: %w", path, err)
	}
	return errors.Join(err, table.Close())
}
