package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/starling-kv/starling/client"
)

// ProvedRead is an answer of one node, whose proof leads to a header that the reader's light client
// trusts.
type ProvedRead struct {
	Reader int           `json:"reader"`
	Node   string        `json:"node"`
	Key    string        `json:"key"`
	Call   time.Duration `json:"call"` // since the start of the history, by the monotonic clock
	Return time.Duration `json:"return"`
	Head   int64         `json:"head"`   // what the node said that its head is, before it was asked
	Height int64         `json:"height"` // the state after this block
	Found  bool          `json:"found,omitempty"`
	Value  string        `json:"value,omitempty"`
	Time   time.Time     `json:"time"` // of the header that proves the state, Height+1
	// why the answer is not proved, or its header is one of two: the node lies or is broken
	False string `json:"false,omitempty"`
}

// Disturbance is a time in which a node (empty: every one) was killed, cut off, or slowed down.
type Disturbance struct {
	Node string        `json:"node,omitempty"`
	From time.Duration `json:"from"`
	To   time.Duration `json:"to"`
}

// source gives proved answers: a node.
type source interface {
	head(ctx context.Context) (int64, error)
	get(ctx context.Context, key string) (*client.Value, error)
}

type starlingSource struct{ *client.Client }

// connectSource connects to one node only: nobody else's answers are mixed with its own.
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

// read is a reader: one key after the other, each at another node.
func (r *Run) read(ctx context.Context, id int) {
	random := rand.New(rand.NewPCG(^r.config.Seed, uint64(id)))
	sources := map[string]source{}
	node := ""
	for ctx.Err() == nil {
		node = r.nodeAfter(random, node)
		read := ProvedRead{Reader: id, Node: node, Key: r.config.anyKey(random), Call: r.now()}
		_, err := bounded(ctx, r.config.Patience, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, r.readOnce(ctx, sources, &read)
		})
		read.Return = r.now()
		if errors.Is(err, client.ErrUnproved) || errors.Is(err, client.ErrConflict) {
			read.False, err = err.Error(), nil
		}
		if err != nil { // it is away, or does not follow the chain
			pause(ctx, afterFailure)
			continue
		}
		r.mu.Lock()
		r.mu.history.Reads = append(r.mu.history.Reads, read)
		r.mu.Unlock()
		pause(ctx, time.Duration(random.Int64N(2*int64(r.config.Pause))))
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

// Bounds is what proved reads are held to.
type Bounds struct {
	// Age of a state's proof when it was asked for, of a node that nobody disturbs; 0: any.
	Age time.Duration
	// Recovery is how long after a disturbance a node may still give older answers.
	Recovery time.Duration
}

// CheckReads checks what a node promises to those who read from it:
//
//   - the proof holds;
//   - it is monotonic: a reader that asks again is never answered from an older state, not even by a node that was killed and started
//     again in between, since a block is saved before it is executed, and executed again before the node answers (one that lost its
//     home and joined anew promises nothing of what it answered before);
//   - it is bounded: at most the newest block that the node itself knows is missing (that one is saved and being executed);
//   - it is no older than Bounds.Age where nobody disturbs the node.
//
// Between nodes nothing is promised: a reader that goes from one to another keeps the greatest
// height that it has seen as its floor, and has to ask again where an answer is below (Staleness
// counts those). CheckBlocks compares the values.
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
			wrong("the node said before that it has block %d", r.Head)
		}
		key := pair{r.Reader, r.Node}
		if before := last[key]; before != nil && r.Height < before.Height {
			wrong("the same reader was answered from height %d before", before.Height)
		}
		last[key] = r
		if age := h.Start.Add(r.Call).Sub(r.Time); bounds.Age > 0 && age > bounds.Age && !h.disturbed(r, bounds.Recovery) {
			wrong("its state was proved %v before it was asked for, more than %v", age, bounds.Age)
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

// Staleness counts the answers that were older than what the same reader had from another node
// before, and by how many blocks at most.
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
