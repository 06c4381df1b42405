package treebench

import (
	"context"
	"time"
)

// startStream exports the newest version during commits, at the requested rate or as fast as the
// contestant can. stop ends the export, and returns the bytes exported and the time taken.
func (c *contender) startStream() (stop func() (bytes int, seconds float64, err error), err error) {
	stream, err := c.tree.Stream()
	if err != nil {
		return nil, err
	}
	type end struct {
		bytes int
		err   error
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan end, 1)
	from := time.Now()
	go func() {
		var e end
		for e.err == nil && ctx.Err() == nil {
			var n int
			n, e.err = stream.Next()
			e.bytes += n
			due := time.Duration(float64(e.bytes) / (c.ExportRate * 1e6) * float64(time.Second))
			select {
			case <-ctx.Done():
			case <-time.After(due - time.Since(from)):
			}
		}
		ended <- e
	}()
	return func() (int, float64, error) {
		// The last piece, which may end after the commits, does not count.
		took := time.Since(from).Seconds()
		cancel()
		e := <-ended
		stream.Close()
		return e.bytes, took, e.err
	}, nil
}
