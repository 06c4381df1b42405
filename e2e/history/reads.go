package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/internal/sleep"
)

// ProvedRead is an answer of one node, whose proof leads to a header that the reader's light client
// trusts.
type ProvedRead struct {
	Reader int           `json:"reader"`
	Node   string        `json:"node"`
	Key    string        `json:"key"`
	Call   time.Duration `json:"call"` // since the start of the history, by the monotonic clock
	Return time.Duration `json:"return"`
	Head   int64         `json:"head"`   // the head that the node reported before the read
	Height int64         `json:"height"` // the state after this block
	Found  bool          `json:"found,omitempty"`
	Value  string        `json:"value,omitempty"`
	Time   time.Time     `json:"time"` // of the header that proves the state, Height+1
	// the reason why the answer is not proved, or its header conflicts with another: the node is
	// Byzantine or broken
	False string `json:"false,omitempty"`
}

// Disturbance is a time in which a node (empty: every node) was killed, cut off, or slowed down.
type Disturbance struct {
	Node string        `json:"node,omitempty"`
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// source returns proved answers of a node.
type source interface {
	head(ctx context.Context) (int64, error)
	get(ctx context.Context, key string) (*client.Value, error)
}

type starlingSource struct{ *client.Client }

// connectSource connects to one node only, so that answers of different nodes are not mixed.
func connectSource(ctx context.Context, node, chainID string, trust client.Trust) (source, error) {
	c, err := client.Dial(ctx, []string{node}, client.WithChainID(chainID), client.WithVerification(trust))
	if err != nil {
		return nil, err
	}
	return starlingSource{c}, nil
}

func (s starlingSource) head(ctx context.Context) (int64, error) {
	status, err := s.Status(ctx)
	if err != nil {
		return 0, err
	}
	return status.SyncInfo.LatestBlockHeight, nil
}

func (s starlingSource) get(ctx context.Context, key string) (*client.Value, error) {
	return s.Get(ctx, []byte(key))
}

// read is a reader: it reads one key after another, each from another node.
func (r *Run) read(ctx context.Context, id int) {
	random := rand.New(rand.NewPCG(^r.config.Seed, uint64(id)))
	sources := map[string]source{}
	node := ""
	for ctx.Err() == nil {
		node = r.nodeAfter(random, node)
		read := ProvedRead{Reader: id, Node: node, Key: r.config.anyKey(random, r.counters()), Call: r.now()}
		_, err := bounded(ctx, r.config.Patience, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, r.readOnce(ctx, sources, &read)
		})
		read.Return = r.now()
		if errors.Is(err, client.ErrUnproved) || errors.Is(err, client.ErrConflict) {
			read.False, err = err.Error(), nil
		}
		if err != nil { // the node is down, or does not follow the chain
			_ = sleep.For(ctx, afterFailure)
			continue
		}
		r.mu.Lock()
		r.mu.history.Reads = append(r.mu.history.Reads, read)
		r.mu.Unlock()
		_ = sleep.For(ctx, time.Duration(random.Int64N(2*int64(r.config.Pause))))
	}
}

func (r *Run) readOnce(ctx context.Context, sources map[string]source, read *ProvedRead) error {
	from := sources[read.Node]
	if from == nil {
		var err error
		from, err = bounded(ctx, connectPatience, func(ctx context.Context) (source, error) { return r.config.source(ctx, read.Node) })
		if err != nil {
			return err
		}
		sources[read.Node] = from
	}
	var err error
	if read.Head, err = from.head(ctx); err != nil {
		return err
	}
	value, err := from.get(ctx, read.Key)
	if err != nil {
		return err
	}
	read.Height, read.Found, read.Value, read.Time = value.Height, value.Found, string(value.Value), value.Time
	return nil
}

// Bounds are the limits that proved reads are checked against.
type Bounds struct {
	// Age limits the age of a state's proof at the time of the request, for a node that the test
	// does not disturb; 0: no limit.
	Age time.Duration
	// Recovery is the time after a disturbance in which a node may still return older answers.
	Recovery time.Duration
}

// CheckReads checks the guarantees of a node to readers:
//
//   - the proof is valid;
//   - it is monotonic: a reader that reads again never gets an older state, not even from a node that was killed and restarted in between,
//     since a block is saved before it is executed, and executed again before the node answers (a node that lost its home and joined again
//     guarantees nothing about its earlier answers);
//   - it is bounded: at most the newest block that the node itself knows is missing (that block is saved and being executed);
//   - it is not older than Bounds.Age if the test does not disturb the node.
//
// There is no guarantee between nodes: a reader that changes nodes keeps the greatest height that
// it has seen as its floor, and has to read again if an answer is below (Staleness counts these
// answers). CheckBlocks compares the values.
func (h *History) CheckReads(bounds Bounds) error {
	type pair struct {
		reader int
		node   string
	}
	last := map[pair]*ProvedRead{}
	var errs []error
	for i := range h.Reads {
		r := &h.Reads[i]
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%v: %s", r, fmt.Sprintf(format, args...)))
		}
		if r.False != "" {
			wrong("the answer is false: %s", r.False)
			continue
		}
		if r.Height < r.Head-1 {
			wrong("the node reported before that it has block %d", r.Head)
		}
		key := pair{r.Reader, r.Node}
		if before := last[key]; before != nil && r.Height < before.Height {
			wrong("the same reader got an answer from height %d before", before.Height)
		}
		last[key] = r
		if age := h.Start.Add(r.Call).Sub(r.Time); bounds.Age > 0 && age > bounds.Age && !h.disturbed(r, bounds.Recovery) {
			wrong("its state was proved %v before the request, more than %v", age, bounds.Age)
		}
	}
	return firstErrors(errs)
}

func (h *History) disturbed(r *ProvedRead, recovery time.Duration) bool {
	for _, d := range h.Disturbed {
		if (d.Node == "" || d.Node == r.Node) && d.From <= r.Return && r.Call <= d.To+recovery {
			return true
		}
	}
	return false
}

// Staleness counts the answers that were older than an earlier answer of another node to the same
// reader, and returns the greatest difference in blocks.
func (h *History) Staleness() (answers int, blocks int64) {
	floor := map[int]int64{}
	for _, r := range h.Reads {
		if r.Height < floor[r.Reader] {
			answers++
			blocks = max(blocks, floor[r.Reader]-r.Height)
		}
		floor[r.Reader] = max(floor[r.Reader], r.Height)
	}
	return answers, blocks
}

func (r *ProvedRead) String() string {
	value := "absent"
	if r.Found {
		value = short(r.Value)
	}
	return fmt.Sprintf("reader %d at %s [%v, %v]: %s = %s at height %d", r.Reader, r.Node, r.Call, r.Return, r.Key, value, r.Height)
}
