package home

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/starling-kv/starling/node/config"
)

// PrunedSnapshots lists the stored snapshots that PruneSnapshots removed, and those that remain, in
// ascending order of height.
type PrunedSnapshots struct {
	Removed []InspectedSnapshot `json:"removed"`
	Kept    []InspectedSnapshot `json:"kept"`
}

// PruneSnapshots removes the stored snapshots of a stopped node except the newest keep. The state
// is not changed. If the process is killed, each snapshot is either complete or removed.
func PruneSnapshots(conf *config.Config, keep int) (result PrunedSnapshots, err error) {
	result.Removed, result.Kept = []InspectedSnapshot{}, []InspectedSnapshot{}
	d, err := openOffline(conf, false)
	if err != nil {
		return result, stopTheNode(err, "lower [snapshots] keep_recent in config/app.toml")
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if d.sharded {
		return result, config.Invalid(fmt.Errorf("%w: it stores no snapshots", ErrSharded))
	}
	if d.state == nil {
		return result, fmt.Errorf("%w: %q does not exist", ErrNoData, config.StateDir(d.dataDir()))
	}
	pins := d.state.Pins()
	for i, pin := range pins {
		bytes, err := folderBytes(filepath.Join(config.SnapshotsDir(d.dataDir()), strconv.FormatInt(pin.Height, 10)))
		if err != nil {
			return result, err
		}
		snapshot := InspectedSnapshot{pin.Height, bytes}
		if i >= len(pins)-keep {
			result.Kept = append(result.Kept, snapshot)
			continue
		}
		if err := d.state.DropPin(pin.Height); err != nil {
			return result, err
		}
		result.Removed = append(result.Removed, snapshot)
	}
	return result, nil
}
