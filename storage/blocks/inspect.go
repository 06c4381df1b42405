package blocks

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/sstable"
)

// Bytes is about how much room a database's keys take in files. What is in the write-ahead log only
// is not counted.
func (z *Zone) Bytes(id string) (uint64, error) {
	release, err := z.use()
	if err != nil {
		return 0, err
	}
	defer release()
	prefix := append([]byte{byte(len(id))}, id...)
	bytes, err := z.db.EstimateDiskUsage(prefix, after(prefix))
	return bytes, z.readErr(err)
}

// Tables are the files of a zone.
type Tables struct {
	Count int
	Bytes uint64
}

// Verify reads every table of the zone, compares all checksums in it, and returns the tables that
// are good. progress, if not nil, hears of bytes done and in total. Errors: ErrCorrupt for each
// damaged file, joined; the first one of reading; the end of ctx. The log was read, and its
// checksums compared, when the zone was opened.
func (z *Zone) Verify(ctx context.Context, progress func(done, total uint64)) (good Tables, err error) {
	release, err := z.use()
	if err != nil {
		return Tables{}, err
	}
	defer release()
	if progress == nil {
		progress = func(uint64, uint64) {}
	}
	files, total, err := z.files()
	if err != nil {
		return Tables{}, err
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
	// It owns readable, also after an error.
	table, err := sstable.NewReader(ctx, readable, sstable.ReaderOptions{})
	if err != nil {
		return fmt.Errorf("file %s: %w", path, err)
	}
	if err = table.ValidateBlockChecksums(); err != nil {
		err = fmt.Errorf("file %s: %w", path, err)
	}
	return errors.Join(err, table.Close())
}
