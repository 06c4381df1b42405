package node

import (
	"os"
	"time"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/disk"
	"github.com/starling-kv/starling/storage/events"
)

// watchWait limits the time for which a query waits for an event or a result. CometBFT's RPC server
// ends a call after 10 s.
const watchWait = 5 * time.Second

// openEvents opens the event log; nil: this node keeps no events. In that case the log of an
// earlier start is removed, because it would have a gap once the node keeps events again.
func openEvents(o ApplicationOptions) (*events.Log, error) {
	c, dir := o.Config.State, config.EventsDir(o.DataDir)
	if c.KeepEvents == 0 {
		return nil, os.RemoveAll(dir)
	}
	return events.Open(dir, events.Options{
		FS: o.fs, Logger: o.Logger.With("module", "events"), Failed: o.Failed, Fatal: disk.EndProcess,
		KeepBlocks: c.KeepEvents, KeepBytes: c.KeepEventsBytes, SyncEach: c.Sharded(),
	})
}

func closeEvents(log *events.Log) error {
	if log == nil {
		return nil
	}
	return log.Close()
}
