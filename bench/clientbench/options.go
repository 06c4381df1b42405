package clientbench

import (
	"fmt"
	"time"
)

// Options of a run beside etcd.
type Options struct {
	Rounds        int
	Seconds       int // of each operation in each round
	Keys          int // of the state, written before
	ValueBytes    int
	RangeKeys     int // of one range
	Workers       int // operations under way at any time
	Validators    int // of Starling; etcd has three members
	TimeoutCommit time.Duration
	Dir           string // for the homes; the run makes a folder in it
	Starlingd     string // a built starlingd; empty: built
	EtcdStore     string // a built bench/etcdstore; empty: built
}

// members is how many processes etcd has, the least with which it survives the end of one.
const members = 3

// tolerated is how many of n validators of equal power may stop or lie: fewer than a third.
func tolerated(n int) int { return (n - 1) / 3 }

// Check returns an error that names the flag that is out of range, and the range.
func (o Options) Check() error {
	switch {
	case o.Rounds < 1 || o.Rounds > 100:
		return fmt.Errorf("--rounds is %d, it must be from 1 to 100", o.Rounds)
	case o.Seconds < 1 || o.Seconds > 3600:
		return fmt.Errorf("--seconds is %d, it must be from 1 to 3600", o.Seconds)
	case o.Keys < 1 || o.Keys > 10_000_000:
		return fmt.Errorf("--keys is %d, it must be from 1 to 10000000", o.Keys)
	case o.ValueBytes < 16 || o.ValueBytes > 4096:
		return fmt.Errorf("--value-bytes is %d, it must be from 16 to 4096", o.ValueBytes)
	case o.RangeKeys < 1 || o.RangeKeys > 1000:
		return fmt.Errorf("--range-keys is %d, it must be from 1 to 1000", o.RangeKeys)
	case o.Workers < 1 || o.Workers > 256:
		return fmt.Errorf("--workers is %d, it must be from 1 to 256", o.Workers)
	case o.Validators < 1 || o.Validators > 16:
		return fmt.Errorf("--validators is %d, it must be from 1 to 16", o.Validators)
	case o.TimeoutCommit < 0 || o.TimeoutCommit > time.Minute:
		return fmt.Errorf("--timeout-commit is %v, it must be from 0 to 1m", o.TimeoutCommit)
	}
	return nil
}
