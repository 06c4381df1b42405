package home

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/storage/pages"
	"github.com/starling-kv/starling/storage/treestore"
)

// Inspection describes the data on a node's disk.
type Inspection struct {
	Home   string           `json:"home"`
	Mode   string           `json:"mode"` // state mode: local or sharded
	State  InspectedState   `json:"state"`
	Blocks *InspectedBlocks `json:"blocks"` // nil: none
	// Lag is the number of blocks that the next start executes; 0 if that depends on storage nodes.
	Lag int64 `json:"lag_blocks"`
}

// InspectedState is the state zone.
type InspectedState struct {
	Folder  string `json:"folder"`
	Height  int64  `json:"height"` // 0: no state
	AppHash string `json:"app_hash"`
	ChainID string `json:"chain_id"`
	// Restored: the state comes from a join or an import, and no block was executed since.
	Restored bool `json:"restored"`
	// Joining is the height that an interrupted join was restoring; 0: none.
	Joining   int64               `json:"joining"`
	Keys      uint64              `json:"keys"`
	Exact     bool                `json:"keys_exact"` // false: estimated
	Bytes     uint64              `json:"bytes"`
	Levels    []InspectedLevel    `json:"levels"`
	Snapshots []InspectedSnapshot `json:"snapshots"`
}

// InspectedLevel is a non-empty level of the LSM tree.
type InspectedLevel struct {
	Level int    `json:"level"`
	Files int    `json:"files"`
	Bytes uint64 `json:"bytes"`
}

// InspectedSnapshot is a stored snapshot.
type InspectedSnapshot struct {
	Height int64 `json:"height"`
	// Bytes is the size of its files. Many of them are shared with the state and take no extra
	// space.
	Bytes uint64 `json:"bytes"`
}

// InspectedBlocks are CometBFT's databases.
type InspectedBlocks struct {
	Folder    string              `json:"folder"`
	Backend   string              `json:"backend"`
	Base      int64               `json:"base"` // first block
	Height    int64               `json:"height"`
	Bytes     uint64              `json:"bytes"`
	Databases []InspectedDatabase `json:"databases"`
}

// InspectedDatabase is one of CometBFT's databases.
type InspectedDatabase struct {
	ID string `json:"id"`
	// Bytes is an estimate in the block zone, without its write-ahead log.
	Bytes uint64 `json:"bytes"`
}

// Inspect describes the data on disk. With count it counts the keys, which reads the whole state;
// progress is called with the keys read and the estimated total.
func Inspect(ctx context.Context, conf *config.Config, count bool, progress func(done, total uint64)) (result Inspection, err error) {
	d, err := openOffline(conf, true)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	result.Home, result.Mode = conf.Home, config.ModeLocal
	if d.sharded {
		result.Mode = config.ModeSharded
	}
	if result.State, err = d.inspectState(ctx, count, progress); err != nil {
		return result, err
	}
	if d.blocks == nil {
		return result, nil
	}
	if result.Blocks, err = d.inspectBlocks(); err != nil {
		return result, err
	}
	if !d.sharded {
		result.Lag = max(result.Blocks.Height-result.State.Height, 0)
	}
	return result, nil
}

func (d *offline) inspectState(ctx context.Context, count bool, progress func(done, total uint64)) (s InspectedState, err error) {
	s.Folder = config.StateDir(d.dataDir())
	s.Levels, s.Snapshots = []InspectedLevel{}, []InspectedSnapshot{}
	if d.state == nil {
		return s, nil
	}
	if s.Bytes, err = folderBytes(s.Folder); err != nil {
		return s, err
	}
	for i, level := range d.state.Levels() {
		if level.Tables > 0 {
			s.Levels = append(s.Levels, InspectedLevel{i, level.Tables, level.Bytes})
		}
	}
	for _, pin := range d.state.Pins() {
		bytes, err := folderBytes(filepath.Join(config.SnapshotsDir(d.dataDir()), strconv.FormatInt(pin.Height, 10)))
		if err != nil {
			return s, err
		}
		s.Snapshots = append(s.Snapshots, InspectedSnapshot{pin.Height, bytes})
	}
	s.Joining, _, _ = treestore.Unfinished(d.state)
	meta, ok := d.state.Meta()
	if !ok {
		return s, nil
	}
	s.Height, s.AppHash, s.ChainID, s.Restored = meta.Height, fmt.Sprintf("%X", meta.AppHash), meta.ChainID, meta.Restored
	if s.Keys, err = d.state.EstimateKeys(); err != nil || !count {
		return s, err
	}
	total := s.Keys
	s.Keys, s.Exact = 0, true
	for _, err := range pages.Interruptible(ctx, d.state.Scan(), func(done uint64) { progress(done, max(done, total)) }) {
		if err != nil {
			return s, err
		}
		s.Keys++
	}
	return s, nil
}

func (d *offline) inspectBlocks() (*InspectedBlocks, error) {
	b := &InspectedBlocks{
		Folder: d.dataDir(), Backend: d.config.CometBFT.DBBackend, Base: d.blocks.Base(), Height: d.blocks.Height(),
		Databases: []InspectedDatabase{},
	}
	zone := d.databases.BlockZone()
	if zone == nil {
		for _, id := range cometDatabases {
			bytes, err := folderBytes(filepath.Join(d.dataDir(), id+".db"))
			if err != nil {
				return nil, err
			}
			b.Bytes += bytes
			b.Databases = append(b.Databases, InspectedDatabase{id, bytes})
		}
		return b, nil
	}
	b.Folder = config.BlocksDir(d.dataDir())
	ids, err := zone.IDs()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		bytes, err := zone.Bytes(id)
		if err != nil {
			return nil, err
		}
		b.Databases = append(b.Databases, InspectedDatabase{id, bytes})
	}
	b.Bytes, err = folderBytes(b.Folder)
	return b, err
}
